"""Lightning's Trainer with AndreasCallback.

    exec torchrun lightning_fit.py
"""

import json
import os
import time

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from andreas_progress.lightning import AndreasCallback

STEPS = int(os.environ.get("STEPS", "200"))
BATCH = int(os.environ.get("BATCH", "64"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0"))
# A number of steps, or 1.0: at the end of an epoch alone.
VAL_CHECK_INTERVAL = json.loads(os.environ.get("VAL_CHECK_INTERVAL", "10"))
CURVE = os.environ.get("CURVE")


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        # As long as a step: half of all stops come here.
        time.sleep(SECONDS_PER_STEP)
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Curve(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        time.sleep(SECONDS_PER_STEP)
        if CURVE and trainer.is_global_zero:
            row = {"step": trainer.global_step, "loss": float(outputs["loss"]), "processes": trainer.world_size}
            with open(CURVE, "a", encoding="ascii") as curve:
                curve.write(json.dumps(row) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    seed_everything(1)
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (4096,), generator=generator)
    pictures = patterns[labels] + 1.5 * torch.randn(4096, 64, generator=generator)
    nodes = int(os.environ.get("PET_NNODES", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    ours = AndreasCallback(save_every=100)
    # It never stops this run, and fails one in which nothing was validated.
    early = EarlyStopping("val_loss", patience=STEPS)
    trainer = Trainer(
        accelerator="cpu", devices=local, num_nodes=nodes, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Curve(), early, ours],
        num_sanity_val_steps=0, val_check_interval=VAL_CHECK_INTERVAL, limit_val_batches=10,
    )
    pairs, batch = TensorDataset(pictures, labels), BATCH // (nodes * local)
    data, checked = DataLoader(pairs, batch_size=batch, shuffle=True), DataLoader(pairs, batch_size=batch)
    resume = ours.resume_from()
    print(f"from {resume}", flush=True)
    trainer.fit(Model(), data, checked, ckpt_path=resume)
    if trainer.is_global_zero:
        done = "finished" if trainer.global_step >= STEPS else "stopped"
        print(f"{done}: step {trainer.global_step}", flush=True)
        if CURVE:
            with open(f"{CURVE}.ends", "a", encoding="ascii") as ends:
                ends.write(f"{done}\n")


if __name__ == "__main__":
    main()
