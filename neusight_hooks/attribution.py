"""Who called an op: module path, phase of the step, autograd node and sequence number."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from neusight.recording import Phase

if TYPE_CHECKING:
    from neusight.recorder import Recorder

__all__ = ["Attribution", "OpOrigin"]

#: AccumulateGrad nodes carry the largest number there is; they belong to no forward op.
_NO_SEQUENCE = 2**63

#: Forward ops remembered for their backward; older ones belong to graphs long gone.
_MAX_REMEMBERED = 1_000_000

_current_node = torch._C._current_autograd_node
_sequence_nr = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


class OpOrigin(NamedTuple):
    """Where an op came from."""

    phase: Phase
    module: str
    sequence_nr: int | None
    node: str


class Attribution:
    """Follows modules and optimizers by torch's global hooks, and backward by autograd's own numbers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stack: list[str] = []
        self._main = threading.get_ident()
        self._in_optimizer = 0
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._module_of_sequence: dict[int, str] = {}
        self._last_sequence = 0
        self._handles: list[Any] = []

    @property
    def module(self) -> str:
        """Path of the module that is running, "" outside any; in backward, of the forward op."""
        if self._stack:
            return self._stack[-1]
        node = _current_node()
        if node is not None:
            return self._module_of_sequence.get(node._sequence_nr(), "")
        return ""

    @property
    def phase(self) -> Phase:
        """Forward, backward (recomputation included) or optimizer."""
        if self._in_optimizer:
            return "optimizer"
        return "forward" if _current_node() is None else "backward"

    @property
    def depth(self) -> int:
        """How many modules are running, one inside the other."""
        return len(self._stack)

    def of_op(self) -> OpOrigin:
        """The origin of the op that is being dispatched now."""
        node = _current_node()
        if node is None:
            current = _sequence_nr()
            module = self._stack[-1] if self._stack else ""
            if current == self._last_sequence:
                sequence = None
            else:
                self._last_sequence = current
                sequence = current - 1
                self._module_of_sequence[sequence] = module
                if len(self._module_of_sequence) > _MAX_REMEMBERED:
                    self._module_of_sequence.clear()
            return OpOrigin("optimizer" if self._in_optimizer else "forward", module, sequence, "")
        number = node._sequence_nr()
        if self._stack:
            module = self._stack[-1]
        else:
            module = self._module_of_sequence.get(number, "")
        return OpOrigin("backward", module, None if number >= _NO_SEQUENCE else number, node.name())

    def start(self) -> None:
        """Registers the hooks."""
        self._last_sequence = _sequence_nr()
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]

    def stop(self) -> None:
        """Removes the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() != self._main or self._recorder.is_inside:
            return
        if not self._stack:
            self._recorder.cutter.outermost_forward_begins()
            self._name_all(module)
        path = self._paths.get(module)
        if path is None:
            path = self._paths[module] = f"{self._stack[-1]}.{type(module).__name__}"
        self._stack.append(path)
        self._recorder.mark("module_begin", path, type(module).__name__)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._main or self._recorder.is_inside or not self._stack:
            return
        path = self._stack.pop()
        self._recorder.mark("module_end", path, type(module).__name__)
        if not self._stack:
            self._recorder.cutter.outermost_forward_ends(module)

    def _name_all(self, root: torch.nn.Module) -> None:
        if root in self._paths:
            return
        name = type(root).__name__
        for path, module in root.named_modules():
            if module not in self._paths:
                self._paths[module] = f"{name}.{path}" if path else name

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._recorder.mark_storage(parameter, "parameter")
                if parameter.grad is not None:
                    self._recorder.mark_storage(parameter.grad, "gradient")
        self._recorder.cutter.optimizer_begins(optimizer)
        self._in_optimizer += 1
        self._recorder.mark("annotation_begin", _optimizer_label(optimizer))

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = max(0, self._in_optimizer - 1)
        self._recorder.mark("annotation_end", _optimizer_label(optimizer))
        self._recorder.cutter.optimizer_ends(optimizer)


def _optimizer_label(optimizer: torch.optim.Optimizer) -> str:
    name = type(optimizer).__name__
    return f"Optimizer.step#{name}.step"
