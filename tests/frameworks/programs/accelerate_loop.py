"""A training loop on Hugging Face's accelerate that knows nothing of who schedules it. Its state is saved every SAVE_EVERY steps.

    torchrun -m andreas_progress --steps 200 accelerate_loop.py     # the steps are reported all the same
"""

import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0"))
FOLDER = os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "state")


class Count:
    """Steps taken, kept in accelerate's checkpoints."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main() -> None:
    torch.set_num_threads(1)
    # On processors it would take MPI.
    cpu = not torch.cuda.is_available()
    backend = [InitProcessGroupKwargs(backend="gloo")] if cpu else []
    accelerator = Accelerator(cpu=cpu, kwargs_handlers=backend)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(1024, 64, generator=generator), torch.randint(10, (1024,), generator=generator))
    model = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
    count = Count()
    accelerator.register_for_checkpointing(count)
    if os.path.exists(os.path.join(FOLDER, "done")):
        accelerator.load_state(FOLDER)
    accelerator.print(f"{accelerator.num_processes} processes, from step {count.step} of {STEPS}", flush=True)
    while count.step < STEPS:
        for pictures, labels in batches:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            time.sleep(SECONDS_PER_STEP)
            count.step += 1
            if count.step % SAVE_EVERY == 0:
                accelerator.save_state(FOLDER)
                if accelerator.is_main_process:
                    open(os.path.join(FOLDER, "done"), "w").close()
            if count.step == STEPS:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
