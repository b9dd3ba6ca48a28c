"""Which optimizers a program has, and what they train."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from neusight.recording.call_stack import program_variable

#: An optimizer that updates more different modules is named by its own class alone.
_MODULES_NAMED = 3


class Optimizers:
    """All that were made inside the block or stepped in it; none is kept alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trained: set[int] = set()
        self._updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[str, str]] = (
            weakref.WeakKeyDictionary()
        )
        #: Modules that were called, with the variable that the program had for each.
        self._called: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()

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
        if module not in self._called:
            self._called[module] = program_variable(module)

    def updated_by(self, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
        """The called modules whose parameters it updates, all of them: by their classes, and by the
        program's variables. Each is empty where it updates none as a whole, or many."""
        if optimizer in self._updates:
            return self._updates[optimizer]
        updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
        modules = [module for module in self._called if _is_updated(module, updated)]
        names = self._updates[optimizer] = (
            _listed(type(module).__name__ for module in modules),
            _listed(self._called[module] for module in modules),
        )
        return names

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


def _is_updated(module: torch.nn.Module, updated: set[int]) -> bool:
    """Whether all that is trained of a module is among the parameters with these ids."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    return bool(parameters) and all(id(each) in updated for each in parameters)


def _listed(names: Iterable[str]) -> str:
    """Different names joined; empty where there are many, or where one is not known."""
    different = list(dict.fromkeys(names))
    is_known = len(different) <= _MODULES_NAMED and all(different)
    return " and ".join(different) if is_known else ""
