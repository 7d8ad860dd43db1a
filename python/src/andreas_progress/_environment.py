"""What the operator says in the environment of a training container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Environment:
    """The facts of one attempt; `None` where the environment says nothing, or nothing that can be read."""

    url: Optional[str] = None
    """Full address that progress is posted to, `https://...`."""
    ca_file: Optional[Path] = None
    """File with the certificates (PEM) that sign the address's; it changes while the program runs."""
    token_file: Optional[Path] = None
    """File with the bearer token; the kubelet renews it while the program runs."""
    checkpoint_dir: Optional[Path] = None
    """Folder that is kept between attempts, if the job has a checkpoint claim."""
    job: Optional[str] = None
    """Name of the TrainingJob."""
    attempt: Optional[int] = None
    """Number of the attempt, from 1."""
    gpu_type: Optional[str] = None
    """GPU type of the allocation."""
    rank: int = 0
    """Rank of this process among all processes of the run."""
    world_size: int = 1
    """Number of processes of the run."""

    @classmethod
    def read(cls, env: Optional[Mapping[str, str]] = None) -> Environment:
        """Reads the environment, by default that of this process."""
        values = os.environ if env is None else env

        def text(name: str) -> Optional[str]:
            return values.get(name) or None

        def path(name: str) -> Optional[Path]:
            value = text(name)
            return Path(value) if value else None

        def number(name: str) -> Optional[int]:
            try:
                return int(values.get(name, ""))
            except ValueError:
                return None

        # torchrun sets RANK for each process. Without it there is one process for each worker.
        rank = number("RANK")
        world = number("WORLD_SIZE")
        return cls(
            url=text("KUBEFLOW_TRAINER_SERVER_URL"),
            ca_file=path("KUBEFLOW_TRAINER_SERVER_CA_CERT"),
            token_file=path("KUBEFLOW_TRAINER_SERVER_TOKEN"),
            checkpoint_dir=path("CHECKPOINT_DIR"),
            job=text("ANDREAS_JOB"),
            attempt=number("ANDREAS_ATTEMPT"),
            gpu_type=text("ANDREAS_GPU_TYPE"),
            rank=rank if rank is not None else number("PET_NODE_RANK") or 0,
            world_size=world if world is not None else number("PET_NNODES") or 1,
        )
