"""A habit, and the small nets and loops that many of them need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Habit:
    """A program, and the packages that it needs beside torch."""

    name: str
    run: Callable[[], object]
    needs: tuple[str, ...] = ()
    is_sampled: bool = False


#: By name.
HABITS: dict[str, Habit] = {}


def habit(
    *needs: str, is_sampled: bool = False
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Makes a function a habit of its name."""

    def register(run: Callable[[], object]) -> Callable[[], object]:
        name = run.__name__
        assert name not in HABITS, f"two habits are called {name}"
        HABITS[name] = Habit(name, run, needs, is_sampled)
        return run

    return register


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


def refuses(kind: type[BaseException], words: str, run: Callable[[], object]) -> None:
    """Asserts that it raises what a GPU raises."""
    try:
        run()
    except kind as error:
        assert words in str(error), f"says {error!s:.200} and not {words!r}"
    else:
        raise AssertionError(f"does not raise {kind.__name__}: {words}")
