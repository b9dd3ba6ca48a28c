"""DeepSpeed's engine, ZeRO 1 to 3, behind its own launcher; the optimizer on the host, torch's own,
for its Adam on a CPU has to be compiled."""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import small_llama
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--stage", type=int)
parser.add_argument("--offload", action="store_true")
options = parser.parse_args()
optimizer = None
settings: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": small_llama.BATCH,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": options.stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
model = small_llama.model()
if options.offload:
    settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    settings["zero_force_ds_cpu_optimizer"] = False
    del settings["optimizer"]
    optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, model_parameters=model.parameters(), config=settings
)
for step, batch in enumerate(small_llama.loader()):
    batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
    engine.backward(engine(**batch).loss)
    engine.step()
    if step == small_llama.STEPS:
        break
