"""SIGTERM as a flag, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import threading
import unittest
from pathlib import Path

from endpoint import PYTHON

import andreas_progress
from andreas_progress import Environment, StopFlag

SOURCES = Path(andreas_progress.__file__).parent.parent


def run(program: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.run(
        [PYTHON, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, timeout=60
    )


class Stop(unittest.TestCase):
    def test_sigterm_sets_the_flag_and_the_program_leaves_by_itself(self) -> None:
        ended = run(
            """
            import os, signal, andreas_progress
            with andreas_progress.start() as r:
                assert not r.stop_requested
                os.kill(os.getpid(), signal.SIGTERM)
                assert r.stop_requested and r.stop.wait(5)
            print("saved")
            """
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "saved\n"), ended.stderr)

    def test_a_handler_that_was_there_is_called_too_and_comes_back(self) -> None:
        ended = run(
            """
            import os, signal, andreas_progress
            seen = []
            def before(number, frame): seen.append(number)
            signal.signal(signal.SIGTERM, before)
            r = andreas_progress.start()
            os.kill(os.getpid(), signal.SIGTERM)
            assert r.stop_requested and seen == [signal.SIGTERM], seen
            r.close()
            assert signal.getsignal(signal.SIGTERM) is before
            """
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_handler_that_another_library_has_set_since_gives_way(self) -> None:
        ended = run(
            """
            import os, signal, andreas_progress
            r = andreas_progress.start()
            seen = []
            def other(number, frame): seen.append(number)
            signal.signal(signal.SIGTERM, other)
            r.stop.take()
            os.kill(os.getpid(), signal.SIGTERM)
            assert r.stop_requested and not seen, seen
            r.close()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            """
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_after_close_sigterm_ends_the_program(self) -> None:
        ended = run(
            """
            import os, signal, time, andreas_progress
            andreas_progress.start().close()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
            """
        )
        self.assertEqual(ended.returncode, -signal.SIGTERM)

    def test_a_forked_child_ends_by_sigterm(self) -> None:
        ended = run(
            """
            import os, signal, time, andreas_progress
            r = andreas_progress.start()
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            time.sleep(0.3)
            os.kill(child, signal.SIGTERM)
            status = os.waitpid(child, 0)[1]
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status
            assert not r.stop_requested
            """
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_outside_of_the_main_thread_the_flag_can_still_be_set(self) -> None:
        flags: list[StopFlag] = []

        def begin() -> None:
            made = andreas_progress.start(Environment.read({}))
            flags.append(made.stop)
            made.close()

        with self.assertLogs("andreas_progress", "WARNING"):
            thread = threading.Thread(target=begin)
            thread.start()
            thread.join()
        flags[0].request()
        self.assertTrue(flags[0])


if __name__ == "__main__":
    unittest.main()
