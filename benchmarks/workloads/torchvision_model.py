"""A network of torchvision on random images or clips; needs torchvision."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from loop import Step, options, run, step_of
from torch import Tensor, nn

#: Frames of a clip.
FRAMES = 16


class FirstOutput(nn.Module):
    """The network's main output alone, where it gives several."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        found: Any = self.network(images)
        if isinstance(found, dict):
            return found["out"]
        return found[0] if isinstance(found, tuple) else found


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=64)
    made.set_defaults(optimizer="sgd", dtype="fp32")
    made.add_argument("--network", default="resnet50")
    made.add_argument("--image", type=int, default=224)
    made.add_argument("--kind", choices=("images", "clips", "maps"), default="images")
    return made


def build(settings: argparse.Namespace) -> Step:
    import torchvision

    made = torchvision.models.get_model(settings.network, weights=None)
    lead = (settings.batch, 3, *((FRAMES,) if settings.kind == "clips" else ()))
    images = torch.randn(*lead, settings.image, settings.image)
    size = (settings.image, settings.image) if settings.kind == "maps" else ()
    labels = torch.randint(2 if size else 10, (settings.batch, *size))
    return step_of(settings, FirstOutput(made), (images, labels), F.cross_entropy)


if __name__ == "__main__":
    run(build, parser())
