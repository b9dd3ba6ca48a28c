"""DeepSpeed's engine, ZeRO 1 to 3, behind its own launcher."""

from __future__ import annotations

import argparse

import deepspeed
import small_llama

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--stage", type=int)
options = parser.parse_args()
settings = {
    "train_micro_batch_size_per_gpu": small_llama.BATCH,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": options.stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
model = small_llama.model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for step, batch in enumerate(small_llama.loader()):
    batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
    engine.backward(engine(**batch).loss)
    engine.step()
    if step == small_llama.STEPS:
        break
