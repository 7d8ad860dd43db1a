"""Posts the latest report from a thread of its own: training never waits for the network."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Callable, Optional

from ._client import Failure

logger = logging.getLogger("andreas_progress")

MAX_BACKOFF = 60.0
"""Longest wait between two tries, seconds."""


class Reporter:
    """Keeps the latest report and posts it, no more often than `interval` seconds; tries again after failures."""

    def __init__(self, post: Callable[[bytes], Optional[int]], interval: float) -> None:
        self._post = post
        self._interval = interval
        self._changed = threading.Condition()
        self._latest: Optional[bytes] = None
        self._posting = False
        self._hurry = 0
        """How many callers wait for the last report: the interval and waits after failures do not hold it up."""
        self._closed = False
        self._failure = ""
        self._failures = 0
        self.energy_joules: Optional[int] = None
        """Energy of the job so far, by the last answer that told it."""
        self._thread = threading.Thread(target=self._run, name="andreas-progress", daemon=True)
        self._thread.start()

    def put(self, body: bytes) -> None:
        """Replaces a report that waits."""
        with self._changed:
            if not self._closed:
                self._latest = body
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Waits until nothing is left to post, at most `timeout` seconds. Whether that is so."""
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._latest is None and not self._posting, timeout)
            finally:
                self._hurry -= 1

    def close(self, timeout: float) -> bool:
        """As `flush`; nothing is posted afterwards."""
        done = self.flush(timeout)
        with self._changed:
            self._closed = True
            self._latest = None
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest is not None or self._closed)
                while not self._closed and not self._hurry and (left := due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._closed:
                    return
                body, self._latest, self._posting = self._latest, None, True
            assert body is not None
            failure = self._try(body)
            now = time.monotonic()
            due = now + (self._interval if failure is None else self._wait_after(failure))
            with self._changed:
                self._posting = False
                if failure is not None and failure.again and self._latest is None:
                    self._latest = body
                self._changed.notify_all()
                # Someone who waits for the last report still gives the endpoint some time.
                while failure is not None and not self._closed:
                    pause = min(due, now + 0.5) - time.monotonic()
                    if pause <= 0:
                        break
                    self._changed.wait(pause)

    def _try(self, body: bytes) -> Optional[Failure]:
        try:
            energy = self._post(body)
            self.energy_joules = self.energy_joules if energy is None else energy
        except Failure as failure:
            self._failures += 1
            if failure.reason != self._failure:
                logger.warning("progress not reported: %s", failure.reason)
            self._failure = failure.reason
            return failure
        except Exception as error:  # Neither a training run nor this thread ends by it.
            logger.exception("progress not reported")
            return Failure(str(error), again=False)
        if self._failure:
            logger.warning("progress is reported again")
        self._failures, self._failure = 0, ""
        return None

    def _wait_after(self, failure: Failure) -> float:
        # Doubling with jitter, so that the workers of many jobs do not come back at once.
        backoff = min(MAX_BACKOFF, 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        return max(backoff, failure.after or 0.0, min(self._interval, 1.0))
