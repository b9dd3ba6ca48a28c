"""Programs of one rank, and what was recorded of their communication."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import neusight
from neusight.ops import map_op
from neusight.predictors.kernel import CollectiveSize
from neusight.recording.recording import OpCall, Step

WIDTH = 64


class Block(nn.Module):
    """Up, down, with a residual."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.relu(self.up(x)))
        return x + hidden


def join() -> None:
    """What a script does that torchrun starts."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())


def train(model: nn.Module, steps: int = 3, width: int = WIDTH) -> None:
    """Steps on a batch of four."""
    x = torch.randn(4, 16, width, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def training_step(forecast: neusight.Forecast) -> Step:
    """The last one."""
    return [step for step in forecast.recording.steps if step.kind == "train"][-1]


def communication(step: Step) -> list[OpCall]:
    """The collectives and transfers of a step."""
    return [
        entry
        for entry in step.entries
        if isinstance(entry, OpCall) and "c10d" in entry.signature.op
    ]


def moved_bytes(step: Step) -> Counter[tuple[str, str]]:
    """Bytes of a rank's full buffers, by kind and phase."""
    found: Counter[tuple[str, str]] = Counter()
    for call in communication(step):
        for kernel in map_op(call.signature, call.math).kernels:
            size: Any = kernel.size
            if isinstance(size, CollectiveSize):
                found[kernel.name, call.phase] += size.num_bytes
    return found
