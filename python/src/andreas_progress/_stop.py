"""SIGTERM as a flag: the operator asks a program to save and leave."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any, Callable, Optional

logger = logging.getLogger("andreas_progress")


class StopFlag:
    """Set once by SIGTERM or `request`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: Any = None
        self._handler: Optional[Callable[[int, Optional[FrameType]], None]] = None
        self._child = False

    def __bool__(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        """Sets the flag, as SIGTERM does."""
        self._event.set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the flag is set, at most `timeout` seconds. Whether it is."""
        return self._event.wait(timeout)

    def install(self) -> bool:
        """Lets SIGTERM set the flag; a handler that was there is called too. False outside of the main thread."""
        if self._handler is not None:
            return True

        def handle(number: int, frame: Optional[FrameType]) -> None:
            if self._child:
                # A forked data loader ends as it would without us.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._event.set()
            if callable(self._before):
                self._before(number, frame)

        try:
            self._before = signal.signal(signal.SIGTERM, handle)
        except ValueError:
            logger.warning("SIGTERM is not handled: the flag is set up outside of the main thread")
            return False
        self._handler = handle
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_child)
        return True

    def take(self) -> None:
        """Puts our handler back where another library has replaced it since; not outside of the main thread."""
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handler)

    def restore(self) -> None:
        """Puts the handler back that was there before, unless another one has taken the place meanwhile."""
        handler, self._handler = self._handler, None
        on_main = threading.current_thread() is threading.main_thread()
        if handler is not None and on_main and signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)

    def _in_child(self) -> None:
        self._child = True
