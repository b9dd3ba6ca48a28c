"""BERT: masked-word training or inference on random tokens."""

from __future__ import annotations

import argparse

import torch
from loop import Step, loss_of_tokens, options, run, step_of
from torch import Tensor, nn
from transformer import Block, layers

VOCABULARY = 30522
#: Layers, heads, width.
SIZES = {"base": (12, 12, 768), "large": (24, 16, 1024)}


class BERT(nn.Module):
    """Encoder with norms after each half, and the head that guesses words."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        num_layers, num_heads, width = SIZES[settings.size]
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = layers(
            [
                Block(width, num_heads, norm_first=False, dropout=0.1,
                      eager=settings.attention == "eager")
                for _ in range(num_layers)
            ],
            recompute=settings.checkpoint,
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        segments = torch.zeros_like(tokens)
        x = self.tokens(tokens) + self.positions(places) + self.segments(segments)
        x = self.blocks.through(self.dropout(self.norm(x)))
        return self.output(self.head(x))


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=16)
    made.add_argument("--size", choices=sorted(SIZES), default="base")
    made.add_argument("--seq", type=int, default=512)
    return made


def build(settings: argparse.Namespace) -> Step:
    tokens = torch.randint(VOCABULARY, (settings.batch, settings.seq))
    targets = tokens.masked_fill(torch.rand(tokens.shape) > 0.15, -100)
    with torch.device("cuda"):
        model = BERT(settings)
    return step_of(settings, model, (tokens, targets), loss_of_tokens)


if __name__ == "__main__":
    run(build, parser())
