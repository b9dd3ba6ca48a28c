"""A small Llama and its tokens, for a program of each framework."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY = 4, 512, 1024, 8, 2048
SEQUENCE, BATCH, STEPS = 256, 2, 6

#: FSDP2 as transformers' TrainingArguments state it.
FSDP2: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "cpu_ram_efficient_loading": True,
    },
}


def model() -> LlamaForCausalLM:
    """12.6 million parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            vocab_size=VOCABULARY,
            max_position_embeddings=SEQUENCE,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(VOCABULARY, (SEQUENCE,))
        return {"input_ids": tokens, "labels": tokens.clone()}


def loader() -> DataLoader[dict[str, Tensor]]:
    return DataLoader(Tokens(), batch_size=BATCH)
