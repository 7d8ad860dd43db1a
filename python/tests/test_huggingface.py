"""The callback for Hugging Face's Trainer, with small modules in place of transformers and PyTorch."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
from typing import Any
from unittest import mock


def modules() -> dict[str, types.ModuleType]:
    found = {name: types.ModuleType(name) for name in ("torch", "torch.distributed", "transformers")}
    classes = ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
    for name, attributes in {
        "torch": {"distributed": found["torch.distributed"]},
        "torch.distributed": {"is_available": lambda: False},
        "transformers": {name: object for name in classes},
    }.items():
        for key, value in attributes.items():
            setattr(found[name], key, value)
    return found


def control(**flags: bool) -> Any:
    none = {"should_evaluate": False, "should_save": False, "should_training_stop": False}
    return types.SimpleNamespace(**{**none, **flags})


class HuggingFace(unittest.TestCase):
    def setUp(self) -> None:
        patched = mock.patch.dict(sys.modules, modules())
        patched.start()
        self.addCleanup(patched.stop)
        self.training_run = mock.Mock(stop_requested=False)
        self.callback = importlib.import_module("andreas_progress.huggingface").AndreasCallback(self.training_run)
        self.state = types.SimpleNamespace(global_step=5, max_steps=10, epoch=0.5)

    def step(self, **flags: bool) -> Any:
        given = control(**flags)
        self.callback.on_step_end(None, self.state, given)
        return given

    def epoch(self) -> Any:
        # Evaluation and save at the end of each epoch: the Trainer's own callback has set both.
        given = control(should_evaluate=True, should_save=True)
        self.callback.on_epoch_end(None, self.state, given)
        return given

    def test_a_stop_saves_at_once_and_once(self) -> None:
        self.training_run.stop_requested = True
        leaves = control(should_save=True, should_training_stop=True)
        self.assertEqual((self.step(), self.step(should_evaluate=True)), (leaves, leaves))
        self.assertEqual(self.epoch(), control())

    def test_a_run_that_goes_on_evaluates_and_saves_as_it_is_set(self) -> None:
        for flags in ({}, {"should_evaluate": True}, {"should_save": True}):
            self.assertEqual(self.step(**flags), control(**flags))
        self.assertEqual(self.epoch(), control(should_evaluate=True, should_save=True))
        # So does a Trainer that trains again after a stop.
        self.training_run.stop_requested = True
        self.step()
        self.callback.on_train_begin(types.SimpleNamespace(), self.state, control())
        self.assertTrue(self.epoch().should_save)


if __name__ == "__main__":
    unittest.main()
