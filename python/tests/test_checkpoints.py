"""Checkpoints are complete, or they do not exist."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from andreas_progress import Checkpoints


class Folders(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name) / "run"

    def save(self, checkpoints: Checkpoints, step: int) -> None:
        with checkpoints.new(step) as folder:
            (folder / "state").write_text(str(step))

    def test_the_newest_by_number_is_resumed_from(self) -> None:
        checkpoints = Checkpoints(self.folder, keep=3)
        self.assertIsNone(checkpoints.newest())
        for step in (9, 10, 100):
            self.save(checkpoints, step)
        self.assertEqual(checkpoints.newest(), self.folder / "checkpoint-100")

    def test_a_step_that_is_none_is_refused_before_it_is_saved(self) -> None:
        checkpoints = Checkpoints(self.folder)
        for step in (-1, 10**18, float("nan"), 1.5):
            with self.assertRaises(ValueError), checkpoints.new(step):  # type: ignore[arg-type]
                self.fail("saved")
        self.assertFalse(self.folder.exists())

    def test_a_save_that_fails_leaves_the_one_before(self) -> None:
        checkpoints = Checkpoints(self.folder)
        self.save(checkpoints, 1)
        with self.assertRaises(OSError), checkpoints.new(2) as folder:
            (folder / "state").write_text("half")
            raise OSError("no space left")
        self.assertEqual(checkpoints.newest(), self.folder / "checkpoint-1")

    def test_what_a_dead_attempt_left_is_removed_with_the_next_checkpoint(self) -> None:
        dead = self.folder / ".checkpoint-7.1.part"
        dead.mkdir(parents=True)
        (dead / "state").write_text("half")
        self.save(Checkpoints(self.folder, attempt=2), 7)
        self.assertFalse(dead.exists())
        self.assertEqual((self.folder / "checkpoint-7/state").read_text(), "7")

    def test_old_ones_are_removed_and_other_files_are_not(self) -> None:
        checkpoints = Checkpoints(self.folder, keep=2)
        self.folder.mkdir()
        (self.folder / "checkpoint-notes").mkdir()
        (self.folder / "checkpoint-0").mkdir()
        for step in (1, 2, 3):
            self.save(checkpoints, step)
        names = sorted(entry.name for entry in self.folder.iterdir())
        # checkpoint-0 holds no mark of being complete: it is somebody else's.
        self.assertEqual(names, ["checkpoint-0", "checkpoint-2", "checkpoint-3", "checkpoint-notes"])

    def test_a_step_saved_again_replaces_the_first(self) -> None:
        checkpoints = Checkpoints(self.folder)
        self.save(checkpoints, 5)
        with checkpoints.new(5) as folder:
            (folder / "other").write_text("x")
        self.assertFalse((self.folder / "checkpoint-5/state").exists())

    def test_other_ranks_write_into_the_same_folder_and_publish_nothing(self) -> None:
        first, second = Checkpoints(self.folder, attempt=3), Checkpoints(self.folder, attempt=3)
        with first.new(4) as whole:
            (whole / "rank0").write_text("0")
            with second.new(4, publish=False) as part:
                (part / "rank1").write_text("1")
            self.assertIsNone(second.newest())
        newest = first.newest()
        assert newest is not None
        self.assertTrue((newest / "rank0").exists() and (newest / "rank1").exists())

    def test_hugging_faces_checkpoints_are_recognized(self) -> None:
        half, whole = self.folder / "checkpoint-20", self.folder / "checkpoint-10"
        for folder in (half, whole):
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text("{}")
        (half / "checkpoint-is-incomplete.txt").write_text("")
        (self.folder / "checkpoint-30").mkdir()
        self.assertEqual(Checkpoints(self.folder).newest(), whole)


if __name__ == "__main__":
    unittest.main()
