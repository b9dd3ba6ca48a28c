"""ConvNeXt on random images: depthwise convolutions, layer norms over channels."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from loop import NUM_CLASSES, Step, classifying_step, options, run
from torch import Tensor, nn

#: Blocks and widths of the stages.
SIZES = {
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
}


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A 7x7 depthwise convolution, then a pointwise MLP, scaled and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(size: str) -> nn.Sequential:
    """The published network."""
    counts, widths = SIZES[size]
    parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
        if stage:
            parts += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
        parts += [Block(width) for _ in range(count)]
    return nn.Sequential(
        *parts,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(widths[-1]),
        nn.Linear(widths[-1], NUM_CLASSES),
    )


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=64)
    made.add_argument("--size", choices=sorted(SIZES), default="tiny")
    return made


def build(settings: argparse.Namespace) -> Step:
    return classifying_step(settings, lambda: convnext(settings.size))


if __name__ == "__main__":
    run(build, parser())
