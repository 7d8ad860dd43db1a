"""A training run as its program sees it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Optional, Union

from . import _client, _wire
from ._checkpoints import Checkpoints
from ._environment import Environment
from ._reporter import Reporter
from ._stop import StopFlag

MAX_STEPS = 10**18
"""Counts are below it."""
INTERVAL = 5.0
"""Seconds between two reports, as Kubeflow's own clients keep them."""
LAST_SECONDS = 10.0
"""Longest wait for the last report, seconds."""


class Run:
    """Reports, stop flag and checkpoints of this process. Make it with `start`."""

    def __init__(self, environment: Environment, stop: StopFlag, interval: float, keep: int) -> None:
        self.environment = environment
        self.stop = stop
        self._process = os.getpid()
        self._began: Optional[tuple[float, int]] = None
        self._checkpoint_step: Optional[int] = None
        self._last: Optional[tuple[int, int, Optional[float], Mapping[str, _wire.Metric]]] = None
        folder = environment.checkpoint_dir
        self._checkpoints = Checkpoints(folder, keep, attempt=environment.attempt or 0) if folder else None
        self._reporter: Optional[Reporter] = None
        # One process reports for all.
        if environment.url and environment.rank == 0:
            self._reporter = Reporter(lambda body: _client.post(environment, body), interval)

    @property
    def stop_requested(self) -> bool:
        """Whether to save and leave now. Other ranks may learn of it some steps later: see `torch.stop_agreed`."""
        return bool(self.stop)

    @property
    def reports(self) -> bool:
        """Whether this process posts reports."""
        return self._reporter is not None

    @property
    def energy_joules(self) -> Optional[int]:
        """Energy of the job's GPUs so far in J, all its attempts, by the answer to the last report: measured where node agents run, else by the
        power model. `None` before the first answer, and on ranks that post no reports.
        """
        return self._reporter.energy_joules if self._reporter else None

    def report(
        self,
        step: int,
        total_steps: int,
        metrics: Optional[Mapping[str, _wire.Metric]] = None,
        epoch: Optional[float] = None,
    ) -> None:
        """Reports that `step` of `total_steps` optimizer steps of the whole run are done, earlier attempts included.

        Returns at once. The latest report wins; ranks above 0 report nothing.

        Raises `ValueError` for counts that make no sense.
        """
        # NaN and what is infinite too.
        if not 0 <= step < MAX_STEPS or not 1 <= total_steps < MAX_STEPS:
            raise ValueError(f"step {step} of {total_steps}: wanted 0 or more, of at least 1, below 10^18")
        # A forked data loader has no thread.
        if self._reporter is None or os.getpid() != self._process:
            return
        if self._began is None:
            self._began = (time.monotonic(), step)
        self._last = (step, total_steps, epoch, dict(metrics or {}))
        self._put(self._reporter)

    def checkpointed(self, step: int) -> None:
        """Reports that a checkpoint of this step can be resumed from, as metric `checkpoint_step`.

        `new_checkpoint` does it by itself. The operator accepts the metric and does not use it yet.
        """
        self._checkpoint_step = step
        if self._reporter is not None and self._last is not None and os.getpid() == self._process:
            self._put(self._reporter)

    def resume_folder(self) -> Optional[Path]:
        """The newest complete checkpoint of earlier attempts; `None` if there is none, or no `CHECKPOINT_DIR`."""
        return self._checkpoints.newest() if self._checkpoints else None

    @contextmanager
    def new_checkpoint(self, step: int, publish: Optional[bool] = None) -> Iterator[Path]:
        """A folder to save into, published as a whole at the end of the block; see `Checkpoints.new`.

        `publish`: by default on rank 0. Raises `RuntimeError` without `CHECKPOINT_DIR`.
        """
        if self._checkpoints is None:
            raise RuntimeError("CHECKPOINT_DIR is not set: the TrainingJob has no checkpoint")
        publishes = self.environment.rank == 0 if publish is None else publish
        with self._checkpoints.new(step, publishes) as folder:
            yield folder
        self.checkpointed(step)

    def flush(self, timeout: float = LAST_SECONDS) -> bool:
        """Waits until the last report is posted, at most `timeout` seconds. Whether it is."""
        return self._reporter.flush(timeout) if self._reporter and os.getpid() == self._process else True

    def close(self, timeout: float = LAST_SECONDS) -> bool:
        """As `flush`, and ends the thread; SIGTERM does what it did before."""
        self.stop.restore()
        if self._reporter is None or os.getpid() != self._process:
            return True
        return self._reporter.close(timeout)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _put(self, reporter: Reporter) -> None:
        assert self._last is not None
        step, total, epoch, metrics = self._last
        reporter.put(_wire.report(step, total, epoch, metrics, self._checkpoint_step, self._remaining(step, total)))

    def _remaining(self, step: int, total: int) -> Optional[float]:
        """Seconds by the pace of this attempt; resumed steps do not count."""
        if self._began is None or step <= self._began[1]:
            return None
        since, first = self._began
        return (time.monotonic() - since) / (step - first) * (total - step)


def start(
    environment: Optional[Environment] = None,
    interval: float = INTERVAL,
    keep: int = 2,
    checkpoint_dir: Union[str, Path, None] = None,
    handle_sigterm: bool = True,
) -> Run:
    """Begins a run.

    `environment`: by default that of this process. `interval`: least time between two reports, seconds.
    `keep`: checkpoints that are kept. `checkpoint_dir`: where the operator gives no folder, for example on a
    workstation. `handle_sigterm`: false if another library sets the flag.
    """
    env = environment or Environment.read()
    if checkpoint_dir is not None and env.checkpoint_dir is None:
        env = dataclasses.replace(env, checkpoint_dir=Path(checkpoint_dir))
    stop = StopFlag()
    if handle_sigterm:
        stop.install()
    return Run(env, stop, interval, keep)
