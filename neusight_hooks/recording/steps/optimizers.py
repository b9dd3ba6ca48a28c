"""Which optimizers a program has, and what they train."""

from __future__ import annotations

import weakref

import torch

__all__ = ["Optimizers"]


class Optimizers:
    """All that were made inside the block or stepped in it; none is kept alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trained: set[int] = set()

    def created(self, optimizer: torch.optim.Optimizer) -> None:
        """One was made inside the block."""
        self._known.add(optimizer)
        self.note_trained(optimizer)

    def note_trained(self, optimizer: torch.optim.Optimizer) -> None:
        """What it trains now; parameter groups may be added."""
        for group in optimizer.param_groups:
            self._trained.update(map(id, group["params"]))

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._stepped.add(optimizer)

    @property
    def any_alive(self) -> bool:
        """Whether one that was made inside the block still is there."""
        return len(self._known) > 0

    @property
    def any_waits(self) -> bool:
        """Whether one of those never stepped."""
        return any(optimizer not in self._stepped for optimizer in self._known)

    @property
    def any_train(self) -> bool:
        """Whether any ever had parameters."""
        return bool(self._trained)

    def train(self, module: torch.nn.Module) -> bool:
        """Whether one of them trains parameters of this module."""
        return any(id(parameter) in self._trained for parameter in module.parameters())
