"""The callback for Lightning, with small modules in place of Lightning and PyTorch."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
from typing import Any
from unittest import mock

from andreas_progress import Environment, Run, StopFlag


def modules() -> dict[str, types.ModuleType]:
    found = {
        name: types.ModuleType(name)
        for name in (
            "torch",
            "torch.distributed",
            "lightning",
            "lightning.pytorch",
            "lightning.pytorch.callbacks",
        )
    }
    for name, attributes in {
        "torch": {"distributed": found["torch.distributed"]},
        "torch.distributed": {"is_available": lambda: False},
        "lightning.pytorch": {"LightningModule": object, "Trainer": object},
        "lightning.pytorch.callbacks": {"Callback": object},
    }.items():
        for key, value in attributes.items():
            setattr(found[name], key, value)
    return found


AUTOMATIC = types.SimpleNamespace(automatic_optimization=True)


class Lightning(unittest.TestCase):
    def setUp(self) -> None:
        patched = mock.patch.dict(sys.modules, modules())
        patched.start()
        self.addCleanup(patched.stop)
        self.module = importlib.import_module("andreas_progress.lightning")

    def trainer(self, **more: Any) -> Any:
        return types.SimpleNamespace(
            callback_metrics={},
            current_epoch=0,
            should_stop=False,
            limit_val_batches=1.0,
            early_stopping_callbacks=[types.SimpleNamespace(strict=True)],
            lr_scheduler_configs=[types.SimpleNamespace(strict=True), types.SimpleNamespace(strict=False)],
            estimated_stepping_batches=20,
            max_steps=-1,
            save_checkpoint=mock.Mock(),
            strategy=mock.Mock(),
            fit_loop=types.SimpleNamespace(
                min_epochs=2, epoch_loop=types.SimpleNamespace(min_steps=100, total_batch_idx=9)
            ),
            **more,
        )

    def test_a_run_without_a_limit_of_steps_goes_on_and_reports_nothing(self) -> None:
        run = mock.Mock(stop_requested=False)
        callback = self.module.AndreasCallback(run)
        trainer = self.trainer()
        for step, total in ((1, float("inf")), (2, 10)):
            trainer.global_step, trainer.estimated_stepping_batches = step, total
            callback.on_train_batch_end(trainer, AUTOMATIC, None, None, 0)
        run.report.assert_called_once_with(2, 10, {}, 0.0)
        self.assertFalse(trainer.should_stop)

    def test_without_a_folder_for_checkpoints_nothing_is_saved_and_a_stop_ends_the_fit(self) -> None:
        run = Run(Environment(), StopFlag(), 5.0, 2)
        callback = self.module.AndreasCallback(run, save_every=1)
        trainer = self.trainer(global_step=0)
        callback.on_train_start(trainer, AUTOMATIC)
        with self.assertLogs("andreas_progress", "WARNING") as logged:
            for step in (1, 2):
                trainer.global_step = step
                callback.on_train_batch_end(trainer, AUTOMATIC, None, None, 0)
            self.assertFalse(trainer.should_stop)
            run.stop.request()
            trainer.global_step = 3
            callback.on_train_batch_end(trainer, AUTOMATIC, None, None, 0)
        self.assertEqual(len(logged.output), 1, logged.output)
        trainer.save_checkpoint.assert_not_called()
        # Lightning looks at these before it leaves.
        self.assertTrue(trainer.should_stop)
        self.assertFalse(trainer.limit_val_batches or trainer.fit_loop.min_epochs)
        self.assertIsNone(trainer.fit_loop.epoch_loop.min_steps)
        # And at these, of which nothing may have been measured.
        watching = [*trainer.early_stopping_callbacks, *trainer.lr_scheduler_configs]
        self.assertFalse(any(one.strict for one in watching))
        # A batch may still follow. Then all is as it was, for a Trainer that fits again.
        trainer.global_step = 4
        callback.on_train_batch_end(trainer, AUTOMATIC, None, None, 0)
        callback.on_train_end(trainer, AUTOMATIC)
        self.assertEqual([one.strict for one in watching], [True, True, False])
        self.assertEqual((trainer.limit_val_batches, trainer.fit_loop.min_epochs), (1.0, 2))
        self.assertEqual(trainer.fit_loop.epoch_loop.min_steps, 100)

    def test_the_step_that_was_resumed_is_not_saved_again_and_sigterm_is_ours(self) -> None:
        run = mock.MagicMock(stop_requested=False)
        callback = self.module.AndreasCallback(run, save_every=5)
        trainer = self.trainer(global_step=5)
        callback.on_train_start(trainer, AUTOMATIC)
        run.stop.take.assert_called_once_with()
        # The first batch makes no step yet.
        for step in (5, 6, 10):
            trainer.global_step = step
            callback.on_train_batch_end(trainer, AUTOMATIC, None, None, 0)
        run.new_checkpoint.assert_called_once_with(10)
        trainer.save_checkpoint.assert_called_once()

    def test_with_optimizers_of_ones_own_batches_say_how_far_it_is(self) -> None:
        manual = types.SimpleNamespace(automatic_optimization=False)
        # Two optimizers: ten batches of ten an epoch and two epochs have taken 20 steps.
        for batches, epochs, reports in ((10, 2, [mock.call(10, 20, {}, 0.0)]), (float("inf"), 2, []), (10, -1, [])):
            run = mock.Mock(stop_requested=False)
            callback = self.module.AndreasCallback(run)
            trainer = self.trainer(global_step=20, num_training_batches=batches, max_epochs=epochs)
            callback.on_train_batch_end(trainer, manual, None, None, 9)
            self.assertEqual(run.report.mock_calls, reports, (batches, epochs))


if __name__ == "__main__":
    unittest.main()
