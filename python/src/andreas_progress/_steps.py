"""Counts the optimizer steps of a PyTorch program that does not report by itself."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable, Optional

logger = logging.getLogger("andreas_progress")

MODULE = "torch.optim.optimizer"
"""Has `register_optimizer_step_post_hook` from PyTorch 2.0 on."""


class StepCounter:
    """Calls `report` with the number of steps after each step of the first optimizer that takes one. Others do not count.

    An optimizer that keeps its own count, as Adam's family does, counts on after a checkpoint was loaded into it. Others count
    from 0 in each attempt.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._first: Optional[Callable[[], Any]] = None
        self._steps = 0

    def stepped(self, optimizer: Any) -> None:
        """One step of this optimizer was taken."""
        if self._first is None:
            self._first = weakref.ref(optimizer)
            self._steps = own_steps(optimizer) or 1
        elif self._first() is optimizer:
            self._steps += 1
        else:
            return
        self._report(self._steps)


def own_steps(optimizer: Any) -> Optional[int]:
    """Steps that an optimizer has counted itself, those of earlier attempts included; `None` if it counts none."""
    try:
        counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    except Exception:  # Whatever its state holds: training must go on.
        return None
    return max((count for count in counts if count >= 0), default=None)


def count_steps(counter: StepCounter) -> None:
    """Counts from the moment on at which the program imports PyTorch; one that never does is left alone."""
    if MODULE in sys.modules:
        _hook(sys.modules[MODULE], counter)
    else:
        sys.meta_path.insert(0, _Finder(counter))


def _hook(module: ModuleType, counter: StepCounter) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        logger.warning("progress not reported: steps are counted with PyTorch 2.0 or newer")
        return
    counts = True

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal counts
        if not counts:
            return
        try:
            counter.stepped(optimizer)
        except Exception as error:  # The program is not ours to end.
            counts = False
            logger.warning("progress not reported: steps cannot be counted (%s)", type(error).__name__)

    register(stepped)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as everybody else does, and hooks it once it has been executed."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._counter)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, counter: StepCounter) -> None:
        self._loader = loader
        self._counter = counter

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _hook(module, self._counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
