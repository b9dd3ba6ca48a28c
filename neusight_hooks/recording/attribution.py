"""Who called an op: module path, phase of the step, autograd node and sequence number."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from neusight.recording.call_stack import CallStack
from neusight.recording.recording import MathMode, OpSignature, Phase
from neusight.recording.tape import TapedOp

#: AccumulateGrad nodes carry the largest number there is; they belong to no forward op.
_NO_SEQUENCE = 2**63

_graph_task = torch._C._current_graph_task_id
_NO_GRAPH_TASK = -1
_current_node = torch._C._current_autograd_node
_sequence_nr = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


class _Numbers(threading.local):
    """The last of autograd's numbers in a thread, which count for each thread from 0."""

    last = 0


class Attribution:
    """Where the program is: in which modules, and whether an optimizer steps, as its hooks say; in
    backward, where the op's forward was, by autograd's numbers."""

    def __init__(self) -> None:
        #: The program's lines that led to the last op, where they are wanted.
        self.stack: CallStack = ()
        self._modules: list[str] = []
        self._compiled = ""
        self._steps = False
        self._steps_in_backward = False
        self._module_of_sequence: dict[int, str] = {}
        self._module_of_earlier: dict[int, str] = {}
        self._stack_of_sequence: dict[int, CallStack] = {}
        self._stack_of_earlier: dict[int, CallStack] = {}
        self._last_sequence = 0
        self._numbers = _Numbers()  # in threads other than the main one

    def start(self) -> None:
        """The program begins: what autograd numbered before is none of it."""
        self._last_sequence = _sequence_nr()

    @property
    def module(self) -> str:
        """Path of the module that is running, "" outside any; in backward, of the forward op."""
        if self._modules:
            return self._within(self._modules[-1])
        node: Any = _current_node()
        return self._within("" if node is None else self._module_of_forward(node._sequence_nr()))

    @property
    def phase(self) -> Phase:
        """Forward, backward (recomputation included) or optimizer."""
        node: Any = _current_node()
        if self._steps and (node is None or self._steps_in_backward):
            return "optimizer"
        return "forward" if node is None else "backward"

    def op(
        self, signature: OpSignature, math: MathMode, stream: int, thread: int = 0
    ) -> TapedOp:  # fmt: skip
        """The op that is being dispatched now, with who called it."""
        node: Any = _current_node()
        if thread:
            return self._op_of_thread(signature, math, stream, node, thread)
        name, sequence = "", None
        if node is None:
            module = self._modules[-1] if self._modules else ""
            current = _sequence_nr()
            if current != self._last_sequence:
                self._last_sequence, sequence = current, current - 1
                self._module_of_sequence[sequence] = module
            phase: Phase = "optimizer" if self._steps else "forward"
            if phase == "forward" and _graph_task() != _NO_GRAPH_TASK:
                phase = "backward"  # the engine's last callbacks, as sharded gradients use them
        else:
            name, number = node.name(), node._sequence_nr()
            module = self._modules[-1] if self._modules else self._module_of_forward(number)
            phase = "optimizer" if self._steps and self._steps_in_backward else "backward"
            sequence = None if number >= _NO_SEQUENCE else number
        if self._compiled:
            module = self._within(module)
        return TapedOp(signature, math, module, phase, stream, sequence, name)

    def _op_of_thread(
        self, signature: OpSignature, math: MathMode, stream: int, node: Any, thread: int
    ) -> TapedOp:  # fmt: skip
        """One of another thread than the main one: hooks do not follow its modules."""
        name, sequence = "", None
        if node is not None:
            name, number = node.name(), node._sequence_nr()
            sequence = None if number >= _NO_SEQUENCE else number
        elif (current := _sequence_nr()) != self._numbers.last:
            self._numbers.last, sequence = current, current - 1
        phase: Phase = "backward" if _graph_task() != _NO_GRAPH_TASK else "forward"
        return TapedOp(signature, math, "", phase, stream, sequence, name, thread=thread)

    def record_stack(self, op: TapedOp, here: CallStack) -> None:
        """The op was dispatched `here`; in backward, what led to it led to its forward op."""
        if op.thread:
            op.stack = here
            return
        sequence = op.sequence_nr
        if op.phase != "backward":
            if sequence is not None:
                self._stack_of_sequence[sequence] = here
        elif not self._modules and sequence is not None:  # not run again, as checkpointing does
            stack = self._stack_of_sequence.get(sequence)
            here = self._stack_of_earlier.get(sequence, here) if stack is None else stack
        self.stack = op.stack = here

    def forget_earlier(self) -> None:
        """A step has ended: graphs older than it are gone."""
        self._module_of_earlier = self._module_of_sequence
        self._module_of_sequence = {}
        self._stack_of_earlier = self._stack_of_sequence
        self._stack_of_sequence = {}

    def _module_of_forward(self, sequence: int) -> str:
        module = self._module_of_sequence.get(sequence)
        return self._module_of_earlier.get(sequence, "") if module is None else module

    # -- what the program's hooks say -------------------------------------------------------------

    def enter_compiled(self, path: str) -> None:
        """Compiled code comes to what the module at this path, relative to what was compiled, did
        before; "" where it comes to its end."""
        self._compiled = path

    def _within(self, module: str) -> str:
        compiled = self._compiled
        return f"{module}.{compiled}".lstrip(".") if compiled else module

    def is_outside(self) -> bool:
        """Whether no module runs."""
        return not self._modules

    def enter_module(self, path: str) -> None:
        """A module is called."""
        self._modules.append(path)

    def leave_module(self) -> str:
        """It returned; its path."""
        return self._modules.pop()

    def enter_optimizer(self) -> None:
        """An optimizer steps from now on."""
        self._steps = True
        self._steps_in_backward = _current_node() is not None

    def leave_optimizer(self, *, is_within_other: bool) -> None:
        """It has stepped."""
        self._steps = is_within_other

    def outside_optimizer(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer (LBFGS, Lightning): its ops are not the optimizer's."""

        @functools.wraps(closure)
        def run() -> Any:
            self._steps = False
            try:
                return closure()
            finally:
                self._steps = True

        return run
