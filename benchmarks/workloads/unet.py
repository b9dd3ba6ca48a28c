"""A diffusion UNet on random latents: convolutions, group norms, attention, upsampling."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from loop import Step, options, run, step_of
from torch import Tensor, nn
from transformer import attend

CHANNELS = 4
NUM_GROUPS = 32


class Residual(nn.Module):
    """Two convolutions with group norms, shifted by the time's embedding."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = (
            nn.GroupNorm(NUM_GROUPS, width) for width in (inputs, outputs)
        )
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(F.silu(self.second_norm(y)))


class SpatialAttention(nn.Module):
    """Attention among all places of the image."""

    def __init__(self, width: int, *, eager: bool) -> None:
        super().__init__()
        self.heads, self.eager = width // 64, eager
        self.norm = nn.GroupNorm(NUM_GROUPS, width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, length = x.shape
        flat = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (
            part.view(batch, height * length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(flat).chunk(3, dim=-1)
        )
        mixed = attend(query, key, value, eager=self.eager).transpose(1, 2).flatten(2)
        return x + self.project(mixed).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Down through the levels, and up again with what was kept on the way."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        width = settings.width
        eager = settings.attention == "eager"
        widths = [width, 2 * width, 4 * width]
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        inputs = width
        for outputs in widths:
            self.down.append(Residual(inputs, outputs, width))
            self.shrink.append(nn.Conv2d(outputs, outputs, 3, 2, 1))
            inputs = outputs
        self.middle = Residual(inputs, inputs, width)
        self.attention = SpatialAttention(inputs, eager=eager)
        self.up = nn.ModuleList(
            Residual(2 * outputs, outputs // 2 if outputs > width else width, width)
            for outputs in reversed(widths)
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(NUM_GROUPS, width), nn.SiLU(), nn.Conv2d(width, CHANNELS, 3, padding=1)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = self.time(time)
        x = self.enter(x)
        kept = []
        for residual, shrink in zip(self.down, self.shrink, strict=True):
            x = residual(x, embedded)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, embedded))
        for residual in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = residual(torch.cat((x, kept.pop()), dim=1), embedded)
        return self.leave(x)


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=8)
    made.add_argument("--width", type=int, default=128)
    made.add_argument("--image", type=int, default=64)
    return made


def build(settings: argparse.Namespace) -> Step:
    noisy = torch.randn(settings.batch, CHANNELS, settings.image, settings.image)
    time, noise = torch.rand(settings.batch, 1), torch.randn_like(noisy)
    with torch.device("cuda"):
        model = UNet(settings)
    return step_of(settings, model, (noisy, time, noise), F.mse_loss)


if __name__ == "__main__":
    run(build, parser())
