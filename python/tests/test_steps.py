"""Programs that run as they are: their optimizer steps are counted. A small module takes PyTorch's place here, the real one
is that of `make long WHAT=frameworks`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, Optional

from endpoint import PYTHON, Endpoint, make_ca, make_server, metrics

from andreas_progress._steps import StepCounter, own_steps

SOURCES = Path(__file__).resolve().parent.parent / "src"

TORCH = {
    "torch/__init__.py": "from torch import optim",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Adam, SGD",
    "torch/optim/optimizer.py": """
        hooks = []
        def register_optimizer_step_post_hook(hook):
            hooks.append(hook)
        class SGD:
            def __init__(self):
                self.state = {}
            def step(self):
                for hook in hooks:
                    hook(self, (), {})
        class Adam(SGD):
            def step(self):
                state = self.state.setdefault("weight", {"step": 0})
                state["step"] += 1
                super().step()
    """,
}
PROGRAM = """
    import json, os, sys
    import helper                      # beside the program
    assert "torch" not in sys.modules, "imported before the program did so"
    import torch
    generator, judge = torch.optim.Adam(), torch.optim.SGD()
    if os.environ.get("RESUMED"):
        generator.state["weight"] = {"step": int(os.environ["RESUMED"])}
    for _ in range(int(sys.argv[1])):
        generator.step()
        judge.step()
    print(json.dumps([sys.argv, __name__, os.path.basename(__file__), helper.WORD]))
    sys.exit(int(os.environ.get("CODE", "0")))
"""


class Optimizer:
    def __init__(self, state: Any) -> None:
        self.state = state


class Counts(unittest.TestCase):
    def test_the_first_optimizer_counts_from_its_own_count_on(self) -> None:
        reported: list[int] = []
        counter = StepCounter(reported.append)
        first, second = Optimizer({"weight": {"step": 41.0}}), Optimizer({})
        for optimizer in (first, second, first, first, second):
            counter.stepped(optimizer)
        self.assertEqual(reported, [41, 42, 43])

    def test_an_optimizer_without_a_count_counts_from_one(self) -> None:
        for state in ({}, {"weight": {"momentum": 1}}, {"weight": {"step": "x"}}, {"weight": 3}, None,
                      {"weight": {"step": float("inf")}}, {"weight": {"step": -5}}):
            self.assertIsNone(own_steps(Optimizer(state)), state)
        reported: list[int] = []
        counter = StepCounter(reported.append)
        plain = Optimizer({})
        counter.stepped(plain)
        counter.stepped(plain)
        self.assertEqual(reported, [1, 2])


class Arguments(unittest.TestCase):
    def test_what_makes_no_sense_is_refused_without_a_traceback(self) -> None:
        for arguments, says in (
            (["--steps", "NaN", "train.py"], "'NaN': wanted a whole number"),
            (["--steps", "3", "/none.py"], "no program /none.py"),
        ):
            ran = subprocess.run(
                [PYTHON, "-m", "andreas_progress", *arguments],
                capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCES)}, check=False,
            )
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertIn(says, ran.stderr)
            self.assertNotIn("Traceback", ran.stderr)


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.write(TORCH, self.folder / "packages")
        self.write({"train.py": PROGRAM, "helper.py": "WORD = 'helped'"}, self.folder / "code")
        make_ca(self.folder, "ca")
        self.endpoint = Endpoint(make_server(self.folder, "ca", "first"), "first-token")
        self.addCleanup(self.endpoint.close)
        (self.folder / "token").write_text("first-token")

    def write(self, files: dict[str, str], below: Path) -> None:
        for name, text in files.items():
            path = below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def run_it(self, *arguments: str, job: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK")}
        env["PYTHONPATH"] = os.pathsep.join([str(SOURCES), str(self.folder / "packages")])
        if job:
            env["KUBEFLOW_TRAINER_SERVER_URL"] = self.endpoint.url
            env["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = str(self.folder / "ca.crt")
            env["KUBEFLOW_TRAINER_SERVER_TOKEN"] = str(self.folder / "token")
        command = [PYTHON, "-m", "andreas_progress", *arguments]
        return subprocess.run(
            command, env={**env, **environment}, cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def last(self) -> Optional[tuple[int, dict[str, str]]]:
        report = self.endpoint.last()
        return None if report is None else (report["progressPercentage"], metrics(report))

    def test_a_program_runs_as_it_is_and_its_steps_are_reported(self) -> None:
        done = self.run_it("--steps", "40", "code/train.py", "30", "--steps", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            json.loads(done.stdout), [["code/train.py", "30", "--steps", "7"], "__main__", "train.py", "helped"]
        )
        self.assertEqual(self.last(), (75, {"current_step": "30", "total_steps": "40"}))

    def test_a_resumed_program_counts_on_and_never_above_the_whole(self) -> None:
        self.run_it("--steps", "40", "code/train.py", "5", RESUMED="10")
        self.assertEqual(self.last(), (37, {"current_step": "15", "total_steps": "40"}))
        self.run_it("--steps", "40", "code/train.py", "5", RESUMED="38")
        self.assertEqual(self.last(), (100, {"current_step": "40", "total_steps": "40"}))

    def test_a_module_runs_too(self) -> None:
        (self.folder / "helper.py").write_text("WORD = 'here'")
        (self.folder / "lesson.py").write_bytes((self.folder / "code/train.py").read_bytes())
        done = self.run_it("--steps", "4", "-m", "lesson", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.last(), (25, {"current_step": "1", "total_steps": "4"}))

    def test_its_exit_code_and_its_errors_are_its_own(self) -> None:
        done = self.run_it("--steps", "40", "code/train.py", "20", CODE="3")
        self.assertEqual((done.returncode, self.last()), (3, (50, {"current_step": "20", "total_steps": "40"})))
        done = self.run_it("--steps", "40", "code/train.py", "many")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ValueError", done.stderr)

    def test_outside_of_a_job_and_on_other_ranks_it_just_runs(self) -> None:
        for job, rank in ((False, "0"), (True, "1")):
            done = self.run_it("--steps", "40", "code/train.py", "30", job=job, RANK=rank)
            self.assertEqual((done.returncode, self.last()), (0, None), done.stderr)

    def test_an_old_pytorch_is_named_and_the_program_runs(self) -> None:
        optimizer = self.folder / "packages/torch/optim/optimizer.py"
        optimizer.write_text(optimizer.read_text().replace("def register_optimizer_step_post_hook", "def former"))
        done = self.run_it("--steps", "40", "code/train.py", "30")
        self.assertEqual((done.returncode, self.last()), (0, None), done.stderr)
        self.assertIn("PyTorch 2.0", done.stderr)

    def test_arguments_that_make_no_sense_are_named(self) -> None:
        for arguments, named in (
            (["code/train.py"], "--steps"),
            (["--steps", "0", "code/train.py"], "--steps"),
            (["--steps", "many", "code/train.py"], "--steps"),
            (["--steps", "9"], "program"),
        ):
            done = self.run_it(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(named, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
