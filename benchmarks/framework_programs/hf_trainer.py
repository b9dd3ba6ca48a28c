"""transformers' Trainer, replicated or sharded (FSDP2)."""

from __future__ import annotations

import sys

import small_llama
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out", per_device_train_batch_size=small_llama.BATCH, max_steps=small_llama.STEPS, bf16=True,
    report_to=[], save_strategy="no", disable_tqdm=True,
    **(small_llama.FSDP2 if sys.argv[1] == "fsdp2" else {}),
)  # fmt: skip
Trainer(small_llama.model(), arguments, train_dataset=small_llama.Tokens()).train()
