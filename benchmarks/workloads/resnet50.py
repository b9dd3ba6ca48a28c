"""ResNet-50 on random images."""

from __future__ import annotations

import argparse

import torch.nn.functional as F
from loop import NUM_CLASSES, Step, classifying_step, options, run
from torch import Tensor, nn

#: Width and number of blocks of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x), inplace=True)


def resnet50() -> nn.Sequential:
    """The published network."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, (width, count) in enumerate(STAGES):
        for index in range(count):
            parts.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
            inputs = EXPANSION * width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES)
    )


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=64)
    made.set_defaults(optimizer="sgd")
    return made


def build(settings: argparse.Namespace) -> Step:
    return classifying_step(settings, resnet50)


if __name__ == "__main__":
    run(build, parser())
