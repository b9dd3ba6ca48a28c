"""Which optimizers a program has, and what they train."""

from __future__ import annotations

import weakref

import torch

__all__ = ["Optimizers"]

#: An optimizer that updates modules of more classes is named by its own class alone.
_MODULES_NAMED = 3


class Optimizers:
    """All that were made inside the block or stepped in it; none is kept alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trained: set[int] = set()
        self._updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = (
            weakref.WeakKeyDictionary()
        )
        self._called: weakref.WeakKeyDictionary[torch.nn.Module, None] = weakref.WeakKeyDictionary()

    def created(self, optimizer: torch.optim.Optimizer) -> None:
        """One was made inside the block."""
        self._known.add(optimizer)
        self.record_trained(optimizer)

    def record_trained(self, optimizer: torch.optim.Optimizer) -> None:
        """What it trains now; parameter groups may be added."""
        for group in optimizer.param_groups:
            self._trained.update(map(id, group["params"]))

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._stepped.add(optimizer)

    def called(self, module: torch.nn.Module) -> None:
        """A module was called from outside any other."""
        self._called[module] = None

    def updated_by(self, optimizer: torch.optim.Optimizer) -> str:
        """The classes of the called modules whose parameters it updates, all of them; empty where
        it updates none as a whole."""
        if optimizer in self._updates:
            return self._updates[optimizer]
        updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
        names: dict[str, None] = {}
        for module in self._called:
            parameters = [each for each in module.parameters() if each.requires_grad]
            if parameters and all(id(each) in updated for each in parameters):
                names[type(module).__name__] = None
        words = " and ".join(names) if len(names) <= _MODULES_NAMED else ""
        self._updates[optimizer] = words
        return words

    @property
    def any_alive(self) -> bool:
        """Whether one that was made inside the block still is there."""
        return len(self._known) > 0

    @property
    def any_waits(self) -> bool:
        """Whether one of those never stepped."""
        return any(optimizer not in self._stepped for optimizer in self._known)

    @property
    def num_known(self) -> int:
        """How many are there that were made inside the block or stepped in it."""
        return len(self._known | self._stepped)

    @property
    def num_stepped(self) -> int:
        """How many of those that still are there have stepped."""
        return len(self._stepped)

    @property
    def any_train(self) -> bool:
        """Whether any ever had parameters."""
        return bool(self._trained)

    def train(self, module: torch.nn.Module) -> bool:
        """Whether one of them trains parameters of this module."""
        return any(id(parameter) in self._trained for parameter in module.parameters())
