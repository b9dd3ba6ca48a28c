"""Operators as torch's dispatcher calls them, composite ones included, written between the ops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from neusight.recording.recording import COMPILED_CODE, UNSEEN
from neusight.recording.tape import CallToken, Tape
from neusight.recording.tensor import ForecastMode

#: Operators of one recording after which no more are written: a program whose steps never repeat.
_MOST_OPERATORS = 300_000

#: Begins the names of records that are no operators: a mode is asked (torch 2.13); compiled code
#: runs, which the timeline has from its marks.
_NO_OPERATORS = (
    b"PythonDispatchMode", b"TorchDynamo ", b"AOTDispatcher ", b"Pregraph bytecode",
    *(name.encode() for name in COMPILED_CODE[:2]),
)  # fmt: skip
#: Begins the name of what autograd's engine records around each node.
_ENGINE = b"autograd::engine::"

#: Numbers of nodes are below this; those of AccumulateGrad are not, and mean nothing.
_NO_SEQUENCE = 2**63

_graph_task = torch._C._current_graph_task_id
_NO_GRAPH_TASK = -1
_current_node = torch._C._current_autograd_node


class _Running(NamedTuple):
    """An operator that is running: what begins it, and the number by which its end is known."""

    begin: CallToken
    number: int


class OperatorSource(Protocol):
    """Calls `OperatorCalls.begins` while it is switched on."""

    def switch(self, wanted: bool) -> None:
        """Switches it on or off."""
        ...

    def name_of(self, record: int) -> bytes:
        """The name of the operator that begins."""
        ...

    def has_ended(self, number: int) -> bool:
        """Whether the operator has ended that got this number when it began."""
        ...


class OperatorCalls:
    """Follows which operators run, and writes their begins and ends to the tape.

    `begins` is the callback of a source; ends are asked for when something else happens. What
    an op on the GPU calls while it is answered without a GPU is not the program's and is left out;
    the operator of the op itself is the recorded `OpCall`. `is_elsewhere` says whether neusight or
    torch does other work than the program's.
    """

    def __init__(self, tape: Tape, mode: ForecastMode, is_elsewhere: Callable[[], bool]) -> None:
        #: Whether operators are followed now.
        self.is_on = False
        self._is_elsewhere = is_elsewhere
        self._tape = tape
        self._stop_noting: Callable[[], None] = lambda: None
        self._mode = mode
        self._main = threading.get_ident()
        self._source: OperatorSource | None = None
        self._frames: list[_Running] = []
        self._operators: dict[bytes, CallToken] = {}
        self._is_answering = False
        self._skips_next = False
        self._num_operators = 0

    def start(self, source: OperatorSource) -> None:
        """From now on operators come from there."""
        self._source = source
        self.follow(True)

    def stop(self) -> None:
        """Nothing is followed any more."""
        self.follow(False)
        self._source = None

    def follow(self, wanted: bool) -> None:
        """Switches the source on or off, if there is one."""
        wanted = wanted and self._num_operators < _MOST_OPERATORS
        if self._source is None or wanted == self.is_on:
            return
        self._source.switch(wanted)
        self.is_on = wanted
        self._frames.clear()
        self._tape.calls.clear()
        self._stop_noting()
        if wanted:
            self._stop_noting = self._tape.before_entry.subscribe(self.note_ends)

    # -- callbacks --------------------------------------------------------------------------------

    def begins(self, record: int, number: int, is_node: bool) -> bool:
        """An operator, or a node of autograd, begins; whether its end is of interest."""
        if self._is_answering or self._source is None or not self._is_of_program():
            return False
        name = self._source.name_of(record)
        token = _node_token(name) if is_node else self._operators.get(name)
        if token is None:
            if name.startswith(_NO_OPERATORS):
                return False
            token = CallToken(name.decode(), is_node=name.startswith(_ENGINE))
            self._operators[name] = token
        if self._skips_next:  # the op on the CPU that is answered by itself
            self._skips_next = False
            return False
        self.note_ends()
        self._frames.append(_Running(token, number))
        self._tape.calls.append(token)
        self._num_operators += 1
        return True

    def note_ends(self) -> None:
        """Writes that those operators ended which did."""
        frames = self._frames
        while frames and self._source is not None and self._source.has_ended(frames[-1].number):
            frames.pop()
            self._tape.calls.append(None)

    def _is_of_program(self) -> bool:
        """Whether the program itself runs, in its main thread or one that runs its backward."""
        tape = self._tape  # what compiled code calls is torch's to say, and not the same on a GPU
        is_listened_to = tape.is_open and not tape.num_compiled and not self._mode.is_inside
        return is_listened_to and not self._is_elsewhere() and self._is_in_lane()

    def _is_in_lane(self) -> bool:
        """Whether this is the program's main thread, or one that runs its backward meanwhile."""
        return threading.get_ident() == self._main or _graph_task() != _NO_GRAPH_TASK

    # -- what the recorder says -------------------------------------------------------------------

    def answer(self, run: Callable[..., Any], *args: Any) -> Any:
        """Answers an op by a function: what that calls is not the program's."""
        return self._with(True, run, args, {})

    def call(
        self, whole: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Calls what an op is made of, in its answer: that is the program's again."""
        return self._with(False, whole, args, kwargs) if self.is_on else whole(*args, **kwargs)

    def run_on_cpu(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on tensors of the CPU, which the dispatcher calls a second time for it."""
        if not self.is_on or not self._is_in_lane():
            return func(*args, **kwargs)
        self._skips_next = True
        try:
            return self._with(False, func, args, kwargs)
        finally:
            self._skips_next = False

    def _with(
        self, is_answering: bool, run: Callable[..., Any], args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        if not self._is_in_lane():
            return run(*args, **kwargs)
        before, self._is_answering = self._is_answering, is_answering
        try:
            return run(*args, **kwargs)
        finally:
            self._is_answering = before

    def is_recorded(self, op: str) -> None:
        """An op is about to be written to the tape. If it is the operator that began last, or one
        that began just before and called nothing but a variant of itself (`detach` in
        `aten::detach`), the op stands for it; else it is what these operators are made of. A detach
        that no operator stands for is torch's way to save a tensor subclass for backward, which a
        tensor on a GPU is not."""
        self.note_ends()
        frames, calls = self._frames, self._tape.calls
        for depth in range(1, min(len(frames), len(calls)) + 1):
            if calls[-depth] is not frames[-depth].begin:
                break
            if frames[-depth].begin.name == op:
                del frames[-depth:], calls[-depth:]
                return
        if op == _DETACH:
            calls += (_UNSEEN, None)


#: What precedes an op that the dispatcher of a program on a GPU does not call.
_UNSEEN = CallToken(UNSEEN)
_DETACH = "aten::detach"


def _node_token(name: bytes) -> CallToken:
    """The node of autograd that begins now."""
    node: Any = _current_node()
    number = None if node is None else node._sequence_nr()
    known = None if number is None or number >= _NO_SEQUENCE else number
    return CallToken(name.decode(), is_node=True, sequence_nr=known)
