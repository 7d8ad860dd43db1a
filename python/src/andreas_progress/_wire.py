"""Bodies of reports: Kubeflow Trainer's format (KEP-2779)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Optional, Union

Metric = Union[int, float, str]

MAX_METRICS = 256
"""The format's limit."""
MAX_TEXT = 128
"""Longest name and value sent, characters: with them 256 metrics stay below the endpoint's 64 KiB."""


def report(
    step: int,
    total_steps: int,
    epoch: Optional[float] = None,
    metrics: Optional[Mapping[str, Metric]] = None,
    checkpoint_step: Optional[int] = None,
    remaining_seconds: Optional[float] = None,
    now: Optional[datetime] = None,
) -> bytes:
    """The body that says `step` of `total_steps`. Counts come first: the endpoint reads 256 metrics."""
    named: dict[str, Metric] = {"current_step": step, "total_steps": total_steps}
    if epoch is not None and math.isfinite(epoch):
        named["current_epoch"] = round(epoch, 4)
    if checkpoint_step is not None:
        named["checkpoint_step"] = checkpoint_step
    for name, value in (metrics or {}).items():
        named.setdefault(str(name)[:MAX_TEXT], value)
    share = min(max(step / total_steps, 0.0), 1.0) if total_steps > 0 else 0.0
    status: dict[str, Any] = {
        "progressPercentage": int(share * 100),
        "metrics": [
            {"name": name, "value": str(value)[:MAX_TEXT]} for name, value in list(named.items())[:MAX_METRICS]
        ],
        "lastUpdatedTime": (now or datetime.now(timezone.utc)).isoformat(),
    }
    if remaining_seconds is not None and math.isfinite(remaining_seconds):
        status["estimatedRemainingSeconds"] = max(0, int(remaining_seconds))
    return json.dumps({"trainerStatus": status}).encode()
