"""Small nets and loops that many habits need, by the names that they are called there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def net(width: int = 256) -> nn.Sequential:
    """Two layers, on the CPU."""
    return nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Linear(512, 10))


def batch(rows: int = 32, width: int = 256, **options: Any) -> torch.Tensor:
    """A batch on the GPU."""
    return torch.randn(rows, width, device="cuda", **options)


def train(model: Any, x: Any = None, steps: int = 3, optimizer: Any = None) -> float:
    """A few steps; the last loss."""
    x = batch() if x is None else x
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.item())


def spawned(rank: int) -> None:
    """What a process trains that a habit starts: it finds this function by its name."""
    train(net().cuda())


def refuses(kind: type[BaseException], words: str, run: Callable[[], object]) -> None:
    """Asserts that it raises what a GPU raises."""
    try:
        run()
    except kind as error:
        assert words in str(error), f"says {error!s:.200} and not {words!r}"
    else:
        raise AssertionError(f"does not raise {kind.__name__}: {words}")
