"""A callback for Hugging Face's Trainer.

    from andreas_progress.huggingface import AndreasCallback

    callback = AndreasCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_from())

The `output_dir` of the training arguments is `CHECKPOINT_DIR`. When the operator asks the program to stop, all ranks
save the same step and leave.
"""

from __future__ import annotations

import numbers
from typing import Any, Optional

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._run import Run, start
from .torch import stop_agreed


class AndreasCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps, and turns SIGTERM into a save at the next step and an early end."""

    def __init__(self, run: Optional[Run] = None, agree_every: int = 1) -> None:
        """`run`: one that exists already. `agree_every`: steps between two questions whether to stop."""
        self.run = run or start()
        self._agree_every = agree_every
        self._metrics: dict[str, float] = {}
        self._leaving = False

    def resume_from(self) -> Optional[str]:
        """For `Trainer.train(resume_from_checkpoint=...)`: the newest complete checkpoint, `None` at first."""
        folder = self.run.resume_folder()
        return str(folder) if folder else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if getattr(args, "enable_jit_checkpoint", False):
            # It takes SIGTERM for itself, and each rank saves the step at which its own timer ends.
            raise ValueError("AndreasCallback saves on SIGTERM: set enable_jit_checkpoint=False")
        self._leaving = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        for name, value in (logs or {}).items():
            if isinstance(value, numbers.Real):
                self._metrics[name] = float(value)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.max_steps > 0:
            self.run.report(state.global_step, state.max_steps, self._metrics, state.epoch)
        if stop_agreed(self.run, state.global_step, self._agree_every):
            self._leaving = True
            # An evaluation comes before the save, and may last longer than the program has.
            control.should_evaluate = False
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The stop has cut the epoch short and is saved; by now the Trainer's own callback has asked for more.
        if self._leaving:
            control.should_evaluate = False
            control.should_save = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.checkpointed(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.run.flush()
