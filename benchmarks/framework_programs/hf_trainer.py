"""transformers' Trainer, replicated or sharded (FSDP2)."""

from __future__ import annotations

import sys
from typing import Any

import small_llama
from transformers import Trainer, TrainingArguments

SHARDED: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "cpu_ram_efficient_loading": True,
    },
}
arguments = TrainingArguments(
    "out", per_device_train_batch_size=small_llama.BATCH, max_steps=small_llama.STEPS, bf16=True,
    report_to=[], save_strategy="no", disable_tqdm=True,
    **(SHARDED if sys.argv[1] == "fsdp2" else {}),
)  # fmt: skip
Trainer(small_llama.model(), arguments, train_dataset=small_llama.Tokens()).train()
