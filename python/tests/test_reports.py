"""Reports against an endpoint over TLS that keeps the operator's rules."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Callable
from unittest import mock

from endpoint import PATH, Endpoint, make_ca, make_server, metrics

import andreas_progress
from andreas_progress import Environment
from andreas_progress._client import Failure, post


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.holder = tempfile.TemporaryDirectory()
        cls.files = Path(cls.holder.name)
        make_ca(cls.files, "ca")
        make_ca(cls.files, "other")
        cls.pem = make_server(cls.files, "ca", "first")
        cls.other_pem = make_server(cls.files, "other", "second")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.holder.cleanup()

    def setUp(self) -> None:
        self.endpoint = Endpoint(self.pem, "first-token")
        self.addCleanup(self.endpoint.close)
        self.folder = Path(tempfile.mkdtemp(dir=self.files))
        self.token, self.ca = self.folder / "token", self.folder / "ca.crt"
        self.token.write_text("first-token\n")
        self.ca.write_bytes((self.files / "ca.crt").read_bytes())

    def environment(self, **changed: str) -> Environment:
        values = {
            "KUBEFLOW_TRAINER_SERVER_URL": self.endpoint.url,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.ca),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
            "CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "ANDREAS_JOB": "bert",
            "ANDREAS_ATTEMPT": "2",
            **changed,
        }
        return Environment.read(values)

    def start(self, interval: float = 0.05, **changed: str) -> andreas_progress.Run:
        run = andreas_progress.start(self.environment(**changed), interval=interval, handle_sigterm=False)
        self.addCleanup(run.close, 0.0)
        return run

    def test_counted_steps_arrive(self) -> None:
        run = self.start()
        run.report(25, 100, {"loss": 0.5, "lr": float("nan")}, epoch=1.25)
        self.assertTrue(run.flush(5))
        report = self.endpoint.last()
        assert report is not None
        self.assertEqual(report["progressPercentage"], 25)
        expected = {
            "current_step": "25",
            "total_steps": "100",
            "current_epoch": "1.25",
            "loss": "0.5",
            "lr": "nan",
        }
        self.assertEqual(metrics(report), expected)

    def test_the_answer_tells_the_energy_so_far(self) -> None:
        run = self.start()
        self.assertIsNone(run.energy_joules)
        self.endpoint.headers = {"Andreas-Energy-Joules": "4500"}
        run.report(1, 100)
        self.assertTrue(run.flush(5))
        self.assertEqual(run.energy_joules, 4500)
        # What is no number changes nothing.
        for wrong in ("", "-1", "1e3", "9" * 40):
            self.endpoint.headers = {"Andreas-Energy-Joules": wrong}
            run.report(2, 100)
            self.assertTrue(run.flush(5))
            self.assertEqual(run.energy_joules, 4500)

    def test_the_last_report_is_posted_whatever_the_interval(self) -> None:
        run = self.start(interval=3600)
        run.report(1, 100)
        self.assertTrue(until(lambda: len(self.endpoint.reports) == 1), "the first one at once")
        for step in range(2, 101):
            run.report(step, 100)
        began = time.monotonic()
        self.assertTrue(run.close(5))
        self.assertLess(time.monotonic() - began, 3)
        self.assertEqual(len(self.endpoint.reports), 2, "those between were replaced")
        last = self.endpoint.last()
        assert last is not None
        self.assertEqual((last["progressPercentage"], metrics(last)["current_step"]), (100, "100"))
        self.assertLess(last["estimatedRemainingSeconds"], 1)

    def test_the_interval_is_kept(self) -> None:
        run = self.start(interval=0.3)
        began = time.monotonic()
        step = 0
        while time.monotonic() < began + 1.4:
            step += 1
            run.report(step, 10**6)
            time.sleep(0.002)
        self.assertIn(len(self.endpoint.reports), range(3, 7))

    def test_a_renewed_token_is_used(self) -> None:
        run = self.start()
        run.report(1, 10)
        self.assertTrue(run.flush(5))
        self.endpoint.token = "second-token"
        self.token.write_text("second-token")
        run.report(2, 10)
        self.assertTrue(until(lambda: len(self.endpoint.reports) == 2))
        self.assertEqual(self.endpoint.refused, [])

    def test_a_report_refused_for_its_token_arrives_with_the_next_one(self) -> None:
        self.token.write_text("stale")
        run = self.start()
        run.report(7, 10)
        self.assertTrue(until(lambda: 403 in self.endpoint.refused))
        self.token.write_text("first-token")
        self.assertTrue(until(lambda: len(self.endpoint.reports) == 1), "it is tried again by itself")

    def test_renewed_certificates_are_trusted_and_others_are_not(self) -> None:
        self.endpoint.serve(self.other_pem)
        with self.assertRaises(Failure) as caught:
            post(self.environment(), b"{}")
        self.assertIn("CERTIFICATE_VERIFY_FAILED", caught.exception.reason)
        self.assertTrue(caught.exception.again)
        run = self.start()
        run.report(3, 10)
        time.sleep(0.2)
        self.assertEqual(self.endpoint.reports, [])
        # The bundle of an operator that renews its authority holds both.
        self.ca.write_bytes(self.ca.read_bytes() + (self.files / "other.crt").read_bytes())
        self.assertTrue(until(lambda: len(self.endpoint.reports) == 1))

    def test_another_host_name_is_not_trusted(self) -> None:
        self.endpoint.serve(make_server(self.files, "ca", "elsewhere", "elsewhere.example"))
        with self.assertRaises(Failure) as caught:
            post(self.environment(), b"{}")
        self.assertIn("CERTIFICATE_VERIFY_FAILED", caught.exception.reason)

    def test_refusals_are_tried_again_after_what_the_endpoint_asks(self) -> None:
        self.endpoint.answers = [(503, {}), (429, {"Retry-After": "1"})]
        run = self.start()
        began = time.monotonic()
        run.report(4, 10)
        self.assertTrue(until(lambda: len(self.endpoint.reports) == 1))
        self.assertGreater(time.monotonic() - began, 1.0)
        self.assertEqual(self.endpoint.refused, [503, 429])

    def test_a_report_that_is_wrong_is_not_repeated(self) -> None:
        self.endpoint.answers = [(400, {})]
        run = self.start()
        run.report(4, 10)
        self.assertTrue(until(lambda: self.endpoint.refused == [400]))
        self.assertTrue(run.flush(5), "nothing is left")
        self.assertEqual(self.endpoint.reports, [])
        run.report(5, 10)
        self.assertTrue(run.flush(5))
        self.assertEqual(len(self.endpoint.reports), 1)

    def test_no_endpoint_costs_training_nothing(self) -> None:
        self.endpoint.close()
        run = self.start()
        began = time.monotonic()
        for step in range(1000):
            run.report(step, 1000)
        self.assertLess(time.monotonic() - began, 2)
        began = time.monotonic()
        self.assertFalse(run.close(1.0))
        self.assertLess(time.monotonic() - began, 2, "the wait at the end is bounded")

    def test_an_endpoint_that_never_answers_does_not_hold_the_end_up(self) -> None:
        import socket

        with socket.create_server(("localhost", 0)) as listener:
            run = self.start(KUBEFLOW_TRAINER_SERVER_URL=f"https://localhost:{listener.getsockname()[1]}{PATH}")
            run.report(1, 2)
            began = time.monotonic()
            self.assertFalse(run.close(0.5))
            self.assertLess(time.monotonic() - began, 2)

    def test_missing_files_are_no_errors(self) -> None:
        for name in ("KUBEFLOW_TRAINER_SERVER_TOKEN", "KUBEFLOW_TRAINER_SERVER_CA_CERT"):
            run = self.start(**{name: str(self.folder / "missing")})
            run.report(1, 2)
            self.assertFalse(run.close(0.3))

    def test_the_token_never_leaves_over_plain_http(self) -> None:
        env = self.environment(KUBEFLOW_TRAINER_SERVER_URL=self.endpoint.url.replace("https", "http"))
        with self.assertRaises(Failure) as caught:
            post(env, b"{}")
        self.assertFalse(caught.exception.again)

    def test_what_cannot_be_used_is_named_and_no_secret_is_shown(self) -> None:
        self.token.write_text("SECRET\nTOKEN")
        missing = str(self.folder / "missing")
        for changed, says in (
            ({}, "KUBEFLOW_TRAINER_SERVER_TOKEN="),
            ({"KUBEFLOW_TRAINER_SERVER_URL": "http://joe:SECRET@host"}, "KUBEFLOW_TRAINER_SERVER_URL=host: wanted"),
            ({"KUBEFLOW_TRAINER_SERVER_URL": "https://host:port"}, "KUBEFLOW_TRAINER_SERVER_URL: "),
            ({"KUBEFLOW_TRAINER_SERVER_TOKEN": missing}, f"KUBEFLOW_TRAINER_SERVER_TOKEN={missing}: No such file"),
        ):
            with self.assertRaises(Failure) as caught:
                post(self.environment(**changed), b"{}")
            self.assertIn(says, str(caught.exception))
            self.assertNotIn("SECRET", str(caught.exception))
        self.token.write_text("first-token")
        with self.assertRaises(Failure) as caught:
            post(self.environment(KUBEFLOW_TRAINER_SERVER_CA_CERT=missing), b"{}")
        self.assertIn(f"KUBEFLOW_TRAINER_SERVER_CA_CERT={missing}", str(caught.exception))

    def test_proxies_of_the_environment_are_not_used(self) -> None:
        with mock.patch.dict(os.environ, {"HTTPS_PROXY": "http://localhost:1", "https_proxy": "http://localhost:1"}):
            run = self.start()
            run.report(1, 2)
            self.assertTrue(run.flush(5))
        self.assertEqual(len(self.endpoint.reports), 1)

    def test_only_the_first_rank_reports(self) -> None:
        for env in ({"RANK": "1", "WORLD_SIZE": "2"}, {"PET_NODE_RANK": "1", "PET_NNODES": "2"}):
            run = self.start(**env)
            self.assertFalse(run.reports)
            run.report(1, 2)
            self.assertTrue(run.close(1))
        self.assertEqual(self.endpoint.reports, [])

    def test_a_checkpoint_is_reported(self) -> None:
        run = self.start()
        run.report(5, 10)
        with run.new_checkpoint(5) as folder:
            (folder / "state").write_text("5")
        self.assertTrue(
            until(lambda: bool(self.endpoint.reports) and "checkpoint_step" in metrics(self.endpoint.reports[-1]))
        )
        self.assertEqual(metrics(self.endpoint.reports[-1])["checkpoint_step"], "5")
        resumed = run.resume_folder()
        assert resumed is not None
        self.assertEqual((resumed / "state").read_text(), "5")

    def test_many_long_metrics_fit(self) -> None:
        run = self.start()
        run.report(
            1,
            2,
            {f"{'n' * 500}{i}": "v" * 5000 for i in range(400)} | {f"m{i}": "v" * 5000 for i in range(400)},
        )
        self.assertTrue(run.flush(5))
        self.assertEqual(self.endpoint.refused, [])
        sent = self.endpoint.reports[-1]["metrics"]
        self.assertEqual(len(sent), 256)
        self.assertEqual(sent[0]["name"], "current_step")

    def test_counts_that_make_no_sense_are_the_programs_error(self) -> None:
        run = self.start()
        for step, total in ((-1, 10), (1, 0), (float("nan"), 5), (1, float("nan")), (10**400, 10**401)):
            with self.assertRaises(ValueError):
                run.report(step, total)

    def test_a_forked_child_neither_reports_nor_waits(self) -> None:
        run = self.start()
        run.report(1, 10)
        self.assertTrue(run.flush(5))
        child = os.fork()
        if child == 0:
            run.report(9, 10)
            os._exit(0 if run.flush(5) and run.close(5) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(self.endpoint.reports), 1)

    def test_reports_from_many_threads(self) -> None:
        run = self.start(interval=0.001)

        def report() -> None:
            for step in range(200):
                run.report(step, 200)

        threads = [threading.Thread(target=report) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(run.close(10))


class Outside(unittest.TestCase):
    def test_without_an_operator_the_same_program_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = andreas_progress.start(Environment.read({}), handle_sigterm=False, checkpoint_dir=folder)
            run.report(1, 2)
            self.assertIsNone(run.resume_folder())
            with run.new_checkpoint(1) as part:
                (part / "state").write_text("1")
            self.assertEqual(run.resume_folder(), Path(folder) / "checkpoint-1")
            self.assertFalse(run.stop_requested or run.reports)
            self.assertTrue(run.close())

    def test_numbers_that_are_none_are_ignored(self) -> None:
        env = Environment.read({"ANDREAS_ATTEMPT": "x", "RANK": "", "PET_NODE_RANK": "3", "PET_NNODES": "4"})
        self.assertEqual((env.attempt, env.rank, env.world_size), (None, 3, 4))


if __name__ == "__main__":
    unittest.main()
