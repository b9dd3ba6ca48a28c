"""GPT-2: next-token training or inference on random tokens."""

from __future__ import annotations

import argparse

import torch
from loop import Step, loss_of_tokens, options, run, step_of
from torch import Tensor, nn
from transformer import Block, layers

VOCABULARY = 50257
#: Layers, heads, width.
SIZES = {"small": (12, 12, 768), "medium": (24, 16, 1024), "large": (36, 20, 1280)}


class GPT2(nn.Module):
    """Decoder with learned positions and a tied output layer."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        num_layers, num_heads, width = SIZES[settings.size]
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(settings.seq, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = layers(
            [
                Block(width, num_heads, causal=True, dropout=0.1, approximate="tanh",
                      eager=settings.attention == "eager")
                for _ in range(num_layers)
            ],
            recompute=settings.checkpoint,
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        return self.output(self.norm(self.blocks.through(x)))


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=8)
    made.add_argument("--size", choices=sorted(SIZES), default="small")
    made.add_argument("--seq", type=int, default=1024)
    return made


def build(settings: argparse.Namespace) -> Step:
    tokens = torch.randint(VOCABULARY, (settings.batch, settings.seq))
    with torch.device("cuda"):
        model = GPT2(settings)
    return step_of(settings, model, (tokens, tokens.roll(-1, 1)), loss_of_tokens)


if __name__ == "__main__":
    run(build, parser())
