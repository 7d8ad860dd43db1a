"""The callback for Lightning, with small modules in place of Lightning and PyTorch."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
from typing import Any
from unittest import mock


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


class Lightning(unittest.TestCase):
    def test_a_run_without_a_limit_of_steps_goes_on_and_reports_nothing(self) -> None:
        with mock.patch.dict(sys.modules, modules()):
            module = importlib.import_module("andreas_progress.lightning")
            run = mock.Mock(stop_requested=False)
            callback = module.AndreasCallback(run)
            trainer: Any = types.SimpleNamespace(callback_metrics={}, current_epoch=0, should_stop=False)
            for step, total in ((1, float("inf")), (2, 10)):
                trainer.global_step, trainer.estimated_stepping_batches = step, total
                callback.on_train_batch_end(trainer, None, None, None, 0)
            run.report.assert_called_once_with(2, 10, {}, 0.0)
            self.assertFalse(trainer.should_stop)


if __name__ == "__main__":
    unittest.main()
