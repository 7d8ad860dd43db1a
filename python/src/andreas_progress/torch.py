"""What the processes of a distributed PyTorch run must agree on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._run import Run


def is_distributed() -> bool:
    """Whether a process group of more than one process exists."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def stop_agreed(run: Run, step: int = 0, every: int = 1) -> bool:
    """Whether any rank was asked to stop: the same answer on all ranks, so that all of them save the same step.

    All ranks must call it at the same point of their loops. SIGTERM reaches them at different steps; a rank that
    left alone would let the others wait in their next collective operation. The exchange costs a small all-reduce,
    which `every` limits to each so many steps.
    """
    if not is_distributed():
        return run.stop_requested
    if step % max(every, 1) != 0:
        return False
    on = "cuda" if dist.get_backend() == "nccl" else "cpu"
    asked = torch.tensor([int(run.stop_requested)], dtype=torch.int32, device=on)
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked.item())
