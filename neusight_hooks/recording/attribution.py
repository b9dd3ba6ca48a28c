"""Who called an op: module path, phase of the step, autograd node and sequence number."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_pre_hook,
)

from neusight.recording.call_stack import CallStack
from neusight.recording.recording import Phase, stepped_optimizer

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

__all__ = ["Attribution", "OpOrigin"]

#: AccumulateGrad nodes carry the largest number there is; they belong to no forward op.
_NO_SEQUENCE = 2**63

#: How torch annotates an optimizer's step (Optimizer.profile_hook_step), and the steps of its own
#: profiler, which the trace numbers by itself.
_PROFILER_STEP = "ProfilerStep#"

_current_node = torch._C._current_autograd_node
_sequence_nr = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


class OpOrigin(NamedTuple):
    """Where an op came from."""

    phase: Phase
    module: str
    sequence_nr: int | None
    node: str


class Attribution:
    """Follows modules, optimizers and annotations by hooks, backward by autograd's numbers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stack: list[str] = []
        self._main = threading.get_ident()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._steps = False
        self._steps_in_backward = False
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._module_of_sequence: dict[int, str] = {}
        self._module_of_earlier: dict[int, str] = {}
        self._stack_of_sequence: dict[int, CallStack] = {}
        self._stack_of_earlier: dict[int, CallStack] = {}
        #: Where in the program each module was made, by its path; only with call stacks.
        self.made: dict[str, CallStack] = {}
        self._made: weakref.WeakKeyDictionary[torch.nn.Module, CallStack] = (
            weakref.WeakKeyDictionary()
        )
        self._last_sequence = 0

    @property
    def module(self) -> str:
        """Path of the module that is running, "" outside any; in backward, of the forward op."""
        if self._stack:
            return self._stack[-1]
        node: Any = _current_node()
        return "" if node is None else self._module_of_forward(node._sequence_nr())

    @property
    def phase(self) -> Phase:
        """Forward, backward (recomputation included) or optimizer."""
        node: Any = _current_node()
        if self._steps and (node is None or self._steps_in_backward):
            return "optimizer"
        return "forward" if node is None else "backward"

    def of_op(self) -> OpOrigin:
        """The origin of the op that is being dispatched now."""
        node: Any = _current_node()
        if node is None:
            current = _sequence_nr()
            module = self._stack[-1] if self._stack else ""
            if current == self._last_sequence:
                sequence = None
            else:
                self._last_sequence = current
                sequence = current - 1
                self._module_of_sequence[sequence] = module
                if not module and self._recorder.cutter.backward_seen:
                    self._recorder.cutter.round_ends()
            return OpOrigin("optimizer" if self._steps else "forward", module, sequence, "")
        self._recorder.cutter.backward_seen = True
        number = node._sequence_nr()
        module = self._stack[-1] if self._stack else self._module_of_forward(number)
        phase: Phase = "optimizer" if self._steps and self._steps_in_backward else "backward"
        return OpOrigin(phase, module, None if number >= _NO_SEQUENCE else number, node.name())

    def stack_of_op(self, phase: Phase, sequence: int | None, here: CallStack) -> CallStack:
        """The lines that led to an op that is dispatched `here`; in backward, to its forward op."""
        if phase != "backward":
            if sequence is not None:
                self._stack_of_sequence[sequence] = here
            return here
        if self._stack or sequence is None:  # a module is run again, as checkpointing does
            return here
        stack = self._stack_of_sequence.get(sequence)
        return self._stack_of_earlier.get(sequence, here) if stack is None else stack

    def forget_earlier(self) -> None:
        """A step has ended: graphs older than it are gone."""
        self._module_of_earlier = self._module_of_sequence
        self._module_of_sequence = {}
        self._stack_of_earlier = self._stack_of_sequence
        self._stack_of_sequence = {}

    def _module_of_forward(self, sequence: int) -> str:
        module = self._module_of_sequence.get(sequence)
        return self._module_of_earlier.get(sequence, "") if module is None else module

    def start(self, undo: ExitStack) -> None:
        """Registers the hooks; `undo` removes them."""
        self._last_sequence = _sequence_nr()
        undo.callback(register_module_forward_pre_hook(self._enter_module).remove)
        leaving = register_module_forward_hook(self._leave_module, always_call=True)
        undo.callback(leaving.remove)
        undo.callback(register_optimizer_step_pre_hook(self._enter_optimizer).remove)
        if self._recorder.stacks is not None:
            undo.callback(register_module_module_registration_hook(self._note_made).remove)

    # -- modules ----------------------------------------------------------------------------------

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is another thread than the program's main one, or neusight's own work."""
        return threading.get_ident() != self._main or self._recorder.is_inside

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if self._is_elsewhere:
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
        if self._is_elsewhere or not self._stack:
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
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._recorder.mark_storage(parameter, "parameter")
                for buffer in module._buffers.values():
                    if buffer is not None:
                        self._recorder.mark_storage(buffer, "buffer")
                if module in self._made:
                    self.made[self._paths[module]] = self._made[module]

    def _note_made(self, parent: torch.nn.Module, name: str, module: Any) -> None:
        """A module becomes part of another one, for the first time on the line that made it."""
        stacks = self._recorder.stacks
        if stacks is not None and module is not None and not self._is_elsewhere:
            self._made.setdefault(module, stacks.here())

    # -- annotations and optimizers, whose steps torch annotates ----------------------------------

    def enter_annotation(self, name: str) -> None:
        """A record_function begins."""
        if not self._is_elsewhere and not name.startswith(_PROFILER_STEP):
            self._recorder.mark("annotation_begin", name)

    def leave_annotation(self, name: str, *, failed: bool) -> None:
        """It ends, by an exception where `failed`."""
        if self._is_elsewhere or name.startswith(_PROFILER_STEP):
            return
        self._recorder.mark("annotation_end", name)
        if stepped_optimizer(name) and self._optimizers:
            optimizer = self._optimizers.pop()
            self._steps = bool(self._optimizers)
            if not failed:
                self._recorder.cutter.optimizer_ends(optimizer)

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._is_elsewhere:
            return None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._recorder.mark_storage(parameter, "parameter")
                if parameter.grad is not None:
                    self._recorder.mark_storage(parameter.grad, "gradient")
        self._recorder.cutter.optimizer_begins(optimizer)
        self._optimizers.append(optimizer)
        self._steps = True
        self._steps_in_backward = _current_node() is not None
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._outside(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._outside(kwargs["closure"])}
        return None

    def _outside(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer (LBFGS, Lightning): its ops are not the optimizer's."""

        @functools.wraps(closure)
        def run() -> Any:
            self._steps = False
            try:
                return closure()
            finally:
                self._steps = True

        return run
