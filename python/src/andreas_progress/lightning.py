"""A callback for Lightning's Trainer.

from andreas_progress.lightning import AndreasCallback

callback = AndreasCallback()
trainer = Trainer(..., callbacks=[callback])
trainer.fit(model, data, ckpt_path=callback.resume_from())
"""

from __future__ import annotations

import math
from typing import Any, Optional

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ._run import Run, start
from .torch import stop_agreed

FILE = "lightning.ckpt"


class AndreasCallback(Callback):  # type: ignore[misc]
    """Reports steps, saves every so many steps, and turns SIGTERM into a save and an early end."""

    def __init__(self, run: Optional[Run] = None, save_every: int = 0, agree_every: int = 1) -> None:
        """`save_every`: optimizer steps between checkpoints, 0 for none but that of a stop."""
        self.run = run or start()
        self._save_every = save_every
        self._agree_every = agree_every
        self._done = -1

    def resume_from(self) -> Optional[str]:
        """For `Trainer.fit(ckpt_path=...)`: the newest complete checkpoint, `None` at first."""
        folder = self.run.resume_folder()
        return str(folder / FILE) if folder else None

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_index: int
    ) -> None:
        # Infinite without a limit of epochs or steps: nobody knows how far it is.
        estimated = trainer.estimated_stepping_batches
        step, total = trainer.global_step, int(estimated) if math.isfinite(estimated) else 0
        # Batches of one accumulated step share its number.
        if step == self._done:
            return
        self._done = step
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if total > 0:
            self.run.report(step, total, metrics, float(trainer.current_epoch))
        stop = stop_agreed(self.run, step, self._agree_every)
        if stop or (self._save_every and step % self._save_every == 0):
            self._save(trainer, step)
        if stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.run.flush()

    def _save(self, trainer: Trainer, step: int) -> None:
        with self.run.new_checkpoint(step) as folder:
            # All ranks take part; some strategies write a file for each.
            trainer.save_checkpoint(folder / FILE)
            trainer.strategy.barrier()
