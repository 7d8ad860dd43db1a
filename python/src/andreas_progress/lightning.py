"""A callback for Lightning's Trainer.

from andreas_progress.lightning import AndreasCallback

callback = AndreasCallback()
trainer = Trainer(..., callbacks=[callback])
trainer.fit(model, data, ckpt_path=callback.resume_from())
"""

from __future__ import annotations

import logging
import math
from typing import Any, Optional

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ._run import Run, start
from .torch import stop_agreed

FILE = "lightning.ckpt"

logger = logging.getLogger("andreas_progress")


class AndreasCallback(Callback):  # type: ignore[misc]
    """Reports steps, saves every so many steps, and turns SIGTERM into a save and an early end."""

    def __init__(self, run: Optional[Run] = None, save_every: int = 0, agree_every: int = 1) -> None:
        """`save_every`: optimizer steps between checkpoints, 0 for none but that of a stop. Without a folder for
        checkpoints nothing is saved.
        """
        self.run = run or start()
        self._save_every = save_every
        self._agree_every = agree_every
        self._done = -1
        self._warned = False
        self._before: list[tuple[Any, str, Any]] = []

    def resume_from(self) -> Optional[str]:
        """For `Trainer.fit(ckpt_path=...)`: the newest complete checkpoint, `None` at first."""
        folder = self.run.resume_folder()
        return str(folder / FILE) if folder else None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        # The step that a checkpoint was resumed at is saved already.
        self._done = trainer.global_step
        # Lightning's own handler would end the run at once in a validation or between two batches, without a save.
        self.run.stop.take()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_index: int
    ) -> None:
        step = trainer.global_step
        # Batches of one accumulated step share its number.
        if step == self._done:
            return
        self._done = step
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        done, total = _progress(trainer, module)
        if total > 0:
            self.run.report(done, total, metrics, float(trainer.current_epoch))
        stop = stop_agreed(self.run, step, self._agree_every)
        if stop or (self._save_every and step % self._save_every == 0):
            self._save(trainer, step)
        if stop:
            self._leave(trainer)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        while self._before:
            setattr(*self._before.pop())
        self.run.flush()

    def _leave(self, trainer: Trainer) -> None:
        """Ends the fit now: Lightning would validate first, and train on to its least number of epochs and steps."""
        self._until_end(trainer, "limit_val_batches", 0)
        self._until_end(trainer.fit_loop, "min_epochs", None)
        self._until_end(trainer.fit_loop.epoch_loop, "min_steps", None)
        # What these watch may never have been measured: without a validation they would end the fit with an exception.
        for watching in (*trainer.early_stopping_callbacks, *trainer.lr_scheduler_configs):
            self._until_end(watching, "strict", False)
        trainer.should_stop = True

    def _until_end(self, of: Any, name: str, value: Any) -> None:
        """Another value until the fit ends: a Trainer may fit again."""
        self._before.append((of, name, getattr(of, name)))
        setattr(of, name, value)

    def _save(self, trainer: Trainer, step: int) -> None:
        if self.run.environment.checkpoint_dir is None:
            if not self._warned:
                logger.warning("no checkpoint is saved: CHECKPOINT_DIR is not set")
            self._warned = True
            return
        with self.run.new_checkpoint(step) as folder:
            # All ranks take part; some strategies write a file for each.
            trainer.save_checkpoint(folder / FILE)
            trainer.strategy.barrier()


def _progress(trainer: Trainer, module: LightningModule) -> tuple[int, int]:
    """What is done, and of how much; 0 without a limit of epochs or steps: nobody knows how far it is."""
    done, total = trainer.global_step, trainer.estimated_stepping_batches
    if not module.automatic_optimization and trainer.max_steps == -1:
        # Steps of all optimizers are counted together there, and a batch may take none: batches say how far it is.
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        total = trainer.num_training_batches * trainer.max_epochs
    return done, int(total) if math.isfinite(total) else 0
