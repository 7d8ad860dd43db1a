"""PyTorch DistributedDataParallel over all processes that torchrun starts: saves, stops, resumes on another number.

The global batch is BATCH for any number of processes, so that a run resumed on other GPUs takes the same steps: its
loss is that of a run without a stop. Data is made here.

    exec torchrun ddp.py        # PET_NNODES, PET_NPROC_PER_NODE, PET_MASTER_ADDR, ... come from the operator
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import andreas_progress
from andreas_progress.torch import stop_agreed

STEPS = int(os.environ.get("STEPS", "400"))
BATCH = int(os.environ.get("BATCH", "64"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0"))
CURVE = os.environ.get("CURVE")


def dataset() -> tuple[torch.Tensor, torch.Tensor]:
    """4,096 noisy pictures of ten patterns; the same in every process."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (4096,), generator=generator)
    return patterns[labels] + 1.5 * torch.randn(4096, 64, generator=generator), labels


def main() -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pictures, labels = (tensor.to(device) for tensor in dataset())
    with andreas_progress.start() as run:
        first = 0
        if folder := run.resume_folder():
            state = torch.load(folder / "state.pt", map_location=device, weights_only=True)
            model.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first = state["step"]
        if rank == 0:
            print(f"attempt {run.environment.attempt}: {world} processes on {device.type}, from step {first}", flush=True)
        for step in range(first, STEPS):
            # All processes draw the step's batch alike; each takes its part.
            drawn = torch.randint(len(labels), (BATCH,), generator=torch.Generator().manual_seed(step))
            mine = drawn[rank::world]
            loss = nn.functional.cross_entropy(model(pictures[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(SECONDS_PER_STEP)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean = float(mean / world)
            if rank == 0 and CURVE:
                with open(CURVE, "a", encoding="ascii") as curve:
                    curve.write(json.dumps({"step": step + 1, "loss": mean, "processes": world}) + "\n")
            run.report(step + 1, STEPS, {"loss": mean})
            stop = stop_agreed(run, step)
            if stop or (step + 1) % 100 == 0 or step + 1 == STEPS:
                if rank == 0:
                    with run.new_checkpoint(step + 1) as folder:
                        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state | {"step": step + 1}, folder / "state.pt")
                dist.barrier()
            if stop:
                if rank == 0:
                    print(f"stopped at step {step + 1}", flush=True)
                break
        else:
            if rank == 0:
                full = nn.functional.cross_entropy(model.module(pictures), labels)
                print(f"finished: {STEPS} steps, loss {float(full.detach()):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
