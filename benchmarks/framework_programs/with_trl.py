"""TRL's trainer of supervised fine-tuning, replicated or sharded (FSDP2)."""

from __future__ import annotations

import sys

import small_llama
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {f"w{number}": number for number in range(small_llama.VOCABULARY)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
    pad_token="w0",
    eos_token="w1",
)
tokens = torch.randint(2, small_llama.VOCABULARY, (64, small_llama.SEQUENCE)).tolist()
arguments = SFTConfig(
    "out", per_device_train_batch_size=small_llama.BATCH, max_steps=small_llama.STEPS, bf16=True,
    gradient_checkpointing=False, max_length=small_llama.SEQUENCE, report_to=[],
    save_strategy="no", disable_tqdm=True,
    **(small_llama.FSDP2 if sys.argv[1] == "fsdp2" else {}),
)  # fmt: skip
SFTTrainer(
    small_llama.model(), arguments, train_dataset=Dataset.from_dict({"input_ids": tokens}),
    processing_class=tokenizer,
).train()  # fmt: skip
