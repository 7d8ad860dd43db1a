"""Hugging Face's Trainer on a small language model with random weights. CALLBACK says what reports and what stops it:

    own       transformers' own callback (it turns itself on by the operator's environment) and enable_jit_checkpoint
    andreas   AndreasCallback of andreas-progress

    exec torchrun huggingface.py
"""

import json
import os
import time

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

CALLBACK = os.environ.get("CALLBACK", "andreas")
STEPS = int(os.environ.get("STEPS", "150"))
BATCH = int(os.environ.get("BATCH", "16"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0"))
CURVE = os.environ.get("CURVE")
FOLDER = os.environ.get("CHECKPOINT_DIR", "checkpoints")


class Counting(Dataset):
    """Sequences that count up from a number, modulo 64: easy to learn, nothing to download."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(32) + index * 7) % 64
        return {"input_ids": ids, "labels": ids.clone()}


class Curve(TrainerCallback):
    """Writes the logged losses down, and makes steps as long as those of a real model."""

    def on_step_begin(self, args, state, control, **kwargs):
        time.sleep(SECONDS_PER_STEP)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if CURVE and state.is_world_process_zero and "loss" in (logs or {}):
            row = {"step": state.global_step, "loss": float(logs["loss"]), "processes": args.world_size}
            with open(CURVE, "a", encoding="ascii") as curve:
                curve.write(json.dumps(row) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    set_seed(1)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, max_position_embeddings=64, **shape)
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = TrainingArguments(
        output_dir=FOLDER,
        max_steps=STEPS,
        # The same global batch on any number of processes.
        per_device_train_batch_size=BATCH // world,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=50,
        save_total_limit=2,
        logging_steps=5,
        report_to="kubeflow" if CALLBACK == "own" and "KUBEFLOW_TRAINER_SERVER_URL" in os.environ else "none",
        enable_jit_checkpoint=CALLBACK == "own",
        use_cpu=not torch.cuda.is_available(),
        # Without it accelerate takes MPI where PyTorch has it, as Debian's does: each process would train alone.
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ and not torch.cuda.is_available() else None,
        disable_tqdm=True,
    )
    callbacks = [Curve()]
    if CALLBACK == "andreas":
        from andreas_progress.huggingface import AndreasCallback

        ours = AndreasCallback()
        callbacks.append(ours)
        resume = ours.resume_from()
    else:
        # None in an empty folder; resume_from_checkpoint=True raises there.
        resume = get_last_checkpoint(FOLDER) if os.path.isdir(FOLDER) else None
    trainer = Trainer(model, args, train_dataset=Counting(), callbacks=callbacks)
    print(f"from {resume}", flush=True)
    trainer.train(resume_from_checkpoint=resume)
    if trainer.state.global_step < STEPS:
        print(f"stopped at step {trainer.state.global_step}", flush=True)
    elif trainer.is_world_process_zero():
        print(f"finished: {STEPS} steps, loss {trainer.state.log_history[-2].get('loss')}", flush=True)


if __name__ == "__main__":
    main()
