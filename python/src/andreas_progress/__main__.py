"""Runs a PyTorch program as it is, and reports its optimizer steps.

    python -m andreas_progress --steps 1000 train.py --lr 1e-3
    torchrun -m andreas_progress --steps 1000 -m my.training --lr 1e-3
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import Optional

from ._run import start
from ._steps import StepCounter, count_steps


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a whole number of at least 1")
    return number


def main(arguments: Optional[list[str]] = None) -> None:
    """Runs the program that the arguments name, by default those of this process, in this process.

    Raises what the program raises; `SystemExit` for arguments that make no sense.
    """
    parser = argparse.ArgumentParser(
        prog="python -m andreas_progress",
        description="Runs a PyTorch program as it is, and reports its optimizer steps. "
        "Outside of a TrainingJob it just runs.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        required=True,
        metavar="N",
        help="optimizer steps of the whole run, earlier attempts included",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", help="path of the program, or name of its module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    given = parser.parse_args(arguments)

    if not given.module and not os.path.exists(given.program):
        parser.error(f"no program {given.program}")
    # SIGTERM is the program's own business.
    with start(handle_sigterm=False) as run:
        if run.reports:
            count_steps(StepCounter(lambda step: run.report(min(step, given.steps), given.steps)))
        sys.argv = [given.program, *given.arguments]
        if given.module:
            runpy.run_module(given.program, run_name="__main__", alter_sys=True)
        else:
            # As `python PROGRAM` does.
            sys.path[0] = os.path.dirname(os.path.abspath(given.program))
            runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
