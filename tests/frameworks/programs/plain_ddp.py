"""PyTorch DistributedDataParallel as in its tutorial: knows nothing of who schedules it. It saves every SAVE_EVERY steps, and goes on from
there; whoever stops it loses what came after.

    torchrun -m andreas_progress --steps 200 plain_ddp.py     # the steps are reported all the same
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0"))
SNAPSHOT = os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "snapshot.pt")


def main() -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = DistributedDataParallel(nn.Linear(64, 10).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT, map_location=device, weights_only=True)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["step"]
    if dist.get_rank() == 0:
        print(f"from step {first} of {STEPS}", flush=True)
    for step in range(first, STEPS):
        pictures, labels = torch.randn(16, 64, device=device), torch.randint(10, (16,), device=device)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(SECONDS_PER_STEP)
        if (step + 1) % SAVE_EVERY == 0 and dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, SNAPSHOT + ".new")
            os.replace(SNAPSHOT + ".new", SNAPSHOT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
