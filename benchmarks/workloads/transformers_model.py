"""A model of transformers, built from a configuration, on random tokens; needs transformers."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from loop import WEIGHTS, Step, options, run, step_of
from torch import Tensor, nn

#: Configurations: the class, the name of its model, and what differs from the class's defaults
#: (GPT-2 small, BERT base, TinyLlama 1.1B, Qwen2 0.5B, a Mixtral of 1.3 billion parameters).
CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000},
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
         "tie_word_embeddings": True},
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 12,
         "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000},
    ),
}  # fmt: skip


class Logits(nn.Module):
    """The model with its logits as the output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=8)
    made.add_argument("--model", choices=sorted(CONFIGURATIONS), default="gpt2")
    made.add_argument("--seq", type=int, default=512)
    made.add_argument("--new-tokens", type=int, default=0, help="generate so many after --seq")
    return made


def build(settings: argparse.Namespace) -> Step:
    import transformers

    config_class, model_class, changed = CONFIGURATIONS[settings.model]
    config = getattr(transformers, config_class)(**changed)
    config.use_cache = bool(settings.new_tokens)
    with torch.device("cuda"):
        model = getattr(transformers, model_class)(config)
    tokens = torch.randint(1, 30000, (settings.batch, settings.seq))
    if not settings.new_tokens:
        return step_of(settings, Logits(model), (tokens, tokens.roll(-1, 1)), loss)
    model.to(WEIGHTS[settings.dtype]).eval()
    prompt = tokens.cuda()

    def step() -> None:
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=settings.new_tokens,
            min_new_tokens=settings.new_tokens,
            do_sample=False,
            pad_token_id=0,
        )

    return step


if __name__ == "__main__":
    run(build, parser())
