"""A vision transformer on random images."""

from __future__ import annotations

import argparse

import torch
from loop import IMAGE, NUM_CLASSES, Step, classifying_step, options, run
from torch import Tensor, nn
from transformer import Block, layers

PATCH = 16
#: Layers, heads, width.
SIZES = {"small": (12, 6, 384), "base": (12, 12, 768), "large": (24, 16, 1024)}


class ViT(nn.Module):
    """Patches, a class token, blocks, a linear classifier."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        num_layers, num_heads, width = SIZES[settings.size]
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, width))
        eager = settings.attention == "eager"
        self.blocks = layers(
            [Block(width, num_heads, eager=eager) for _ in range(num_layers)],
            recompute=settings.checkpoint,
        )
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1)
        x = self.blocks.through(x + self.positions)
        return self.classify(self.norm(x)[:, 0])


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=64)
    made.add_argument("--size", choices=sorted(SIZES), default="base")
    return made


def build(settings: argparse.Namespace) -> Step:
    return classifying_step(settings, lambda: ViT(settings))


if __name__ == "__main__":
    run(build, parser())
