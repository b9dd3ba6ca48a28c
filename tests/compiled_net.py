"""A small network for torch.compile, and what was recorded of it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.recording.recording import OpCall, Step


class Net(nn.Module):
    """Two products with a norm, a GELU and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.second = nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.gelu(self.norm(self.first(x))), 0.1, self.training)
        out: torch.Tensor = self.second(x)
        return out


def infer(model: Callable[..., Any], sizes: tuple[int, ...] = (128,) * 5) -> None:
    """Calls the model with batches of these sizes."""
    with torch.no_grad():
        for size in sizes:
            model(torch.randn(size, 256, device="cuda"))
            torch.cuda.synchronize()


def train(wrap: Callable[[Net], Any]) -> neusight.Forecast:
    with quiet(), neusight.forecast_on("H100") as forecast:
        net = Net().cuda()
        model = wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
            return F.cross_entropy(model(x), y)

        for _ in range(4):
            x = torch.randn(128, 256, device="cuda")
            loss(x, torch.randint(0, 64, (128,), device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
    return forecast


class quiet(warnings.catch_warnings):
    """Torch's own hints while it compiles ("TensorFloat32 is available", deprecations)."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered


def steady(forecast: neusight.Forecast) -> list[OpCall]:
    """The op calls of the last step that has any."""
    calls = [
        [e for e in step.entries if isinstance(e, OpCall)] for step in forecast.recording.steps
    ]
    return [found for found in calls if found][-1]


def ops(*steps: Step) -> Counter[str]:
    """The names of the ops of these steps, in order, with how often each was called."""
    return Counter(
        entry.signature.op for step in steps for entry in step.entries if isinstance(entry, OpCall)
    )


def torch_compile(function: Callable[..., Any], **options: Any) -> Any:
    """torch.compile of now, for functions without types."""
    return torch.compile(function, **options)
