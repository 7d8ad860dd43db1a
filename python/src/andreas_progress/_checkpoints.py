"""Folders of checkpoints that are complete or do not exist."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional, Union

logger = logging.getLogger("andreas_progress")

NAME = re.compile(r"checkpoint-(\d{1,18})")
"""Hugging Face's names, so that both find each other's."""
COMPLETE = "complete.json"
"""Written last by `new`."""
HUGGING_FACE_STATE = "trainer_state.json"
"""Written last by Hugging Face's Trainer."""
HUGGING_FACE_INCOMPLETE = "checkpoint-is-incomplete.txt"


class Checkpoints:
    """The checkpoints `checkpoint-STEP` of a folder."""

    def __init__(self, folder: Union[str, Path], keep: int = 2, attempt: int = 0) -> None:
        """`keep`: how many complete ones `new` leaves. `attempt`: what an unfinished one is known by."""
        if keep < 1:
            raise ValueError(f"keep={keep}: wanted at least 1")
        self.folder = Path(folder)
        self.keep = keep
        self._part = f".{attempt}.part"

    def complete(self) -> list[tuple[int, Path]]:
        """Steps and folders of complete checkpoints, oldest first."""
        found = []
        try:
            entries = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        for entry in entries:
            match = NAME.fullmatch(entry.name)
            if match and _is_complete(entry):
                found.append((int(match[1]), entry))
        return sorted(found)

    def newest(self) -> Optional[Path]:
        """The folder of the newest complete checkpoint; `None` if there is none."""
        complete = self.complete()
        return complete[-1][1] if complete else None

    @contextmanager
    def new(self, step: int, publish: bool = True) -> Iterator[Path]:
        """A folder to save into. It becomes `checkpoint-STEP` at the end of the block, and older ones are removed.

        A program that dies in the block leaves no checkpoint behind. `publish`: false on all ranks but one; these
        write into the same folder, which must be done before the block ends on the rank that publishes.
        """
        if not NAME.fullmatch(f"checkpoint-{step}"):
            raise ValueError(f"step {step}: wanted a whole number from 0 to 10^18 - 1")
        final = self.folder / f"checkpoint-{step}"
        beside = self.folder / f".checkpoint-{step}{self._part}"
        beside.mkdir(parents=True, exist_ok=True)
        yield beside
        if not publish:
            return
        for file in beside.rglob("*"):
            _sync(file)
        saved = {"step": step, "savedAt": datetime.now(timezone.utc).isoformat()}
        (beside / COMPLETE).write_text(json.dumps(saved), encoding="ascii")
        _sync(beside / COMPLETE)
        if final.exists():
            shutil.rmtree(final)
        beside.replace(final)
        _sync(self.folder)
        self._remove_old()

    def _remove_old(self) -> None:
        for _, folder in self.complete()[: -self.keep]:
            shutil.rmtree(folder, ignore_errors=True)
        for part in self.folder.glob(".checkpoint-*.part"):
            # Earlier attempts died over them. Other ranks of this one may be in the next.
            if not part.name.endswith(self._part):
                shutil.rmtree(part, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    if (folder / HUGGING_FACE_INCOMPLETE).exists():
        return False
    return (folder / COMPLETE).is_file() or (folder / HUGGING_FACE_STATE).is_file()


def _sync(path: Path) -> None:
    """To disk, so that a node that loses power keeps what was renamed."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        logger.debug("not synced: %s", error)
        return
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems refuse it for folders.
        logger.debug("not synced: %s: %s", path, error)
    finally:
        os.close(handle)
