"""Progress, checkpoints and orderly stops of training programs that ANDREAS schedules.

    import andreas_progress

    with andreas_progress.start() as run:
        folder = run.resume_folder()              # newest complete checkpoint, or None
        for step in range(first, total):
            ...
            run.report(step + 1, total, {"loss": loss})
            if run.stop_requested:                # SIGTERM: save, then leave
                with run.new_checkpoint(step + 1) as folder:
                    torch.save(state, folder / "state.pt")
                break

Outside of a TrainingJob nothing is posted, and the same program runs unchanged. No call raises because of the
network or the endpoint, and only `flush` and `close` wait for it, for a bounded time.
"""

from ._checkpoints import Checkpoints
from ._environment import Environment
from ._run import Run, start
from ._stop import StopFlag

__all__ = ["Checkpoints", "Environment", "Run", "StopFlag", "start"]
__version__ = "0.1.0"
