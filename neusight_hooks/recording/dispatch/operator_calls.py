"""Operators as torch's dispatcher calls them, composite ones included, written between the ops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from neusight.recording.dispatch.operator_history import Key, OperatorHistory, running_after
from neusight.recording.dispatch.python_functions import PythonFunctions
from neusight.recording.recording import COMPILED_CODE, UNSEEN, WHOLE
from neusight.recording.tape import (
    CPU_WORK,
    CallEvent,
    CallToken,
    CallWriter,
    Tape,
    TapedAlloc,
    TapedCalls,
    TapedFree,
    TapedFunctions,
    TapedOp,
    TapeEntry,
)
from neusight.recording.tensor import ForecastMode

#: Entries that are not as earlier ones were after which operators are followed no longer.
_MOST_SEEN = 200_000

#: Begins the names of records that are no operators: a mode is asked (torch 2.13); compiled code
#: runs, which the timeline has from its marks.
_NO_OPERATORS = (
    b"PythonDispatchMode", b"TorchDynamo ", b"AOTDispatcher ", b"Pregraph bytecode",
    *(name.encode() for name in COMPILED_CODE[:2]),
)  # fmt: skip
#: Begins the name of what autograd's engine records around each node.
_ENGINE = b"autograd::engine::"
_EVALUATE = b"autograd::engine::evaluate_function: "

#: Numbers of nodes are below this; those of AccumulateGrad are not, and mean nothing.
_NO_SEQUENCE = 2**63

_thread = threading.get_ident
_graph_task = torch._C._current_graph_task_id
_NO_GRAPH_TASK = -1
_current_node = torch._C._current_autograd_node
#: In this thread; a profiler of the program would miss what is not reported.
_report = torch._C._autograd._enable_record_function
_is_profiling = torch._C._autograd._profiler_enabled


#: The name of a node of autograd, and its number.
_Node = tuple[str, int | None]


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


# Over 300 lines: what is followed when, and what of it is the program's, is decided in one place.
class OperatorCalls:
    """Follows which operators run, and writes their begins and ends to the tape.

    `begins` is the callback of a source; ends are asked for when something else happens. What
    an op on the GPU calls while it is answered without a GPU is not the program's and is left out;
    the operator of the op itself is the recorded `OpCall`. `functions` shows the Python functions
    around operators, where they are wanted. While the program repeats what it did
    before, the source is switched off, and its operators are those from before.
    """

    def __init__(
        self, tape: Tape, mode: ForecastMode, functions: PythonFunctions | None = None
    ) -> None:
        #: Whether operators are followed now.
        self.is_on = False
        #: Whether the source is switched on: not where they are those from before.
        self.is_listening = False
        #: Whether an op is answered: what that calls is not the program's.
        self.is_answering = False
        #: Whether they are followed whatever the program repeats: its profiler shows them.
        self.is_profiled = False
        #: Whether neusight or torch does other work than the program's.
        self.is_paused = False
        self._functions = functions
        self._tape = tape
        self._mode = mode
        self._threads = tape.threads
        self._source: OperatorSource | None = None
        self._calls: list[CallEvent] = []  # since the last entry
        self._running: list[int] = []  # the numbers by which their ends are known
        self._history = OperatorHistory()
        self._num_seen = 0  # entries before which operators were followed
        self._sequence: int | None = None  # of the last op in a node
        self._num_unseen = 0  # of those that run, the outermost
        self._unseen_in: _Node | None = None
        self._operators: dict[bytes, CallToken | None] = {}
        self._nodes: dict[bytes, CallToken | None] = {}
        self._skips_next = False

    @property
    def is_possible(self) -> bool:
        """Whether operators come from anywhere."""
        return self._source is not None

    def step_ends(self) -> bool:
        """Whether operators are missing in the step that ends, which the next one would show."""
        found, self._history.has_new_gaps = self._history.has_new_gaps, False
        return found

    def start(self, source: OperatorSource) -> None:
        """From now on operators come from there."""
        self._source = source
        self._name_of, self._has_ended = source.name_of, source.has_ended
        self.follow(True)

    def stop(self) -> None:
        """Nothing is followed any more."""
        self.follow(False)
        self._source = None

    def follow(self, wanted: bool) -> None:
        """Follows operators from now on, if there is a source of them, or no longer."""
        wanted = (wanted or self.is_profiled) and self._num_seen < _MOST_SEEN
        if self._source is None or wanted == self.is_on:
            return
        self.is_on = wanted
        self._listen(wanted)
        self._calls.clear()
        self._running.clear()
        self._num_unseen = 0
        self._history.begin()
        self._tape.write_calls(self._writer() if wanted else None)

    def profile(self, functions: PythonFunctions | None) -> None:
        """Follows operators until `end_profile`, with these Python functions around them."""
        self.is_profiled = True
        self._functions = self._functions or functions
        self.follow(True)
        if self.is_on:
            self._tape.before_entry = self._writer()

    def end_profile(self, functions: PythonFunctions | None) -> None:
        """What was profiled ends, with the functions that were shown for it."""
        self.is_profiled = False
        if functions is not None and self._functions is functions:
            self._functions = None
        if self.is_on:
            self._tape.before_entry = self._writer()

    def _listen(self, wanted: bool) -> None:
        assert self._source is not None
        self._source.switch(wanted)
        self.is_listening = wanted

    # -- entries ----------------------------------------------------------------------------------

    def _writer(self) -> CallWriter:
        """Writes what operators did before an entry: called for all of them, so in few words."""
        history, write = self._history, self._tape.entries.append
        passed = history.path.append

        def entry_comes(key: Key, op: TapedOp | None) -> None:
            if self.is_listening:
                self._follow_entry(key, op)
                return
            calls = history.last.following.get(key)
            if calls is None:
                if key is not None:
                    self._follow_entry(key, op)
                return
            history.last = calls
            passed(calls)
            if not calls.is_empty:
                write(calls)
            if calls.gaps and history.may_begin_gap():
                self._num_unseen, self._unseen_in = len(self._unseen()), _node_of(op)
                self._listen(True)

        if self._functions is None:
            return entry_comes
        return self._functions.with_calls(entry_comes, self._tape.entries, self._threads)

    def _follow_entry(self, key: Key, op: TapedOp | None) -> None:
        """An entry comes that is new, or may be."""
        history, node = self._history, _node_of(op)
        if not self.is_listening:
            calls = history.add_gap(key, self._something_new(node))
        elif self.record_ends() or key is not None:
            calls = history.add(key, self._events(key, node))
        else:
            return
        self._tape.entries.append(calls)
        self._num_seen += 1
        if history.is_known and not self._calls and not self._num_unseen:
            self._listen(False)
            self._sequence = None
        elif self._num_seen >= _MOST_SEEN:
            self.follow(False)

    def _events(self, key: Key, node: _Node | None) -> tuple[CallEvent, ...]:
        """What operators did since the last entry."""
        calls = self._calls
        if not calls and not self._num_unseen:
            return ()
        ended = 0
        while ended < len(calls) and calls[ended] is None:
            ended += 1
        end = ended if key == CPU_WORK else len(calls)  # what begins belongs to what comes next
        if node is not None and node[1] is not None:
            self._sequence = node[1]
        base = self._sequence
        events = tuple(
            event - base if base is not None and isinstance(event, int) else event
            for event in calls[:end]
            if base is not None or not isinstance(event, int)
        )
        del calls[:end]
        return self._with_unseen_ends(key, node, events, ended) if self._num_unseen else events

    def _with_unseen_ends(
        self, key: Key, node: _Node | None, events: tuple[CallEvent, ...], ended: int
    ) -> tuple[CallEvent, ...]:
        """What operators did, with the ends of those that began unseen: where they were before, or
        where the node ends. `ended` say which ends were seen."""
        known = self._history.last.following.get(key)
        if known is not None and not known.is_gap:
            num_ends = known.events.count(None) - events.count(None)
            is_same = _begun(known.events) == _begun(events)
            if is_same and 0 <= num_ends <= self._num_unseen:
                self._num_unseen -= num_ends
                return known.events
        if node is not None and node == self._unseen_in:
            return events
        num_ends, self._num_unseen = self._num_unseen, 0
        return (*events[:ended], *(None,) * num_ends, *events[ended:])

    def _unseen(self) -> tuple[CallToken, ...]:
        """The operators that run but began while the source was switched off."""
        running, around = self._running, self._history.last.running
        while running and self._has_ended(running[-1]):
            del running[-1]
        del running[len(around) :]
        return around[len(running) :]

    def _something_new(self, node: _Node | None) -> tuple[CallEvent, ...]:
        """The program goes on in another way: the source is switched on. What has begun and ended
        for certain: the node that runs, and what ran before."""
        unseen = self._unseen()
        self._listen(True)
        num_nodes = sum(token.is_node for token in unseen)
        if node is not None and node == _node_of(_last_op(self._tape.entries)):
            self._num_unseen, self._unseen_in = num_nodes, node
            return (None,) * (len(unseen) - num_nodes)
        ended = (None,) * len(unseen)
        if node is None:
            return ended
        self._num_unseen, self._unseen_in = 2, node
        name = node[0].encode()
        begun = self._token(_EVALUATE + name, is_node=False), self._token(name, is_node=True)
        return (*ended, *begun) if node[1] is None else (*ended, *begun, 0)

    # -- callbacks --------------------------------------------------------------------------------

    def begins(self, record: int, number: int, is_node: bool) -> bool:
        """An operator, or a node of autograd, begins; whether its end is of interest."""
        if self.is_answering:
            return False
        token = (self._nodes if is_node else self._operators).get(self._name_of(record), _UNKNOWN)
        if token is None or (_thread() != self._threads.main and _graph_task() == _NO_GRAPH_TASK):
            return False
        tape = self._tape
        # What compiled code calls is torch's to say, and not the same on a GPU.
        if not tape.is_open or tape.num_compiled or self.is_paused or self._mode.is_inside:
            return False
        if token is _UNKNOWN:
            token = self._token(self._name_of(record), is_node=is_node)
            if token is None:
                return False
        if self._skips_next:  # the op on the CPU that is answered by itself
            self._skips_next = False
            return False
        calls, running, has_ended = self._calls, self._running, self._has_ended
        while running and has_ended(running[-1]):
            del running[-1]
            calls.append(None)
        running.append(number)
        calls.append(token)
        if is_node:
            node: Any = _current_node()
            sequence = _NO_SEQUENCE if node is None else node._sequence_nr()
            if sequence < _NO_SEQUENCE:
                calls.append(sequence)
        return True

    def _token(self, name: bytes, *, is_node: bool) -> CallToken | None:
        """What is written where an operator of a name begins; None for what is no operator."""
        known = self._nodes if is_node else self._operators
        if name not in known:
            is_none = not is_node and name.startswith(_NO_OPERATORS)
            token = CallToken(name.decode(), is_node or name.startswith(_ENGINE))
            known[name] = None if is_none else token
        return known[name]

    def record_ends(self) -> bool:
        """Writes that those operators ended which did; whether anything is to be written."""
        running, calls = self._running, self._calls
        if running:
            has_ended = self._has_ended
            while running and has_ended(running[-1]):
                del running[-1]
                calls.append(None)
        return bool(calls)

    def _is_in_lane(self) -> bool:
        """Whether this is the program's main thread, or one that runs its backward meanwhile."""
        return _thread() == self._threads.main or _graph_task() != _NO_GRAPH_TASK

    # -- what the recorder says -------------------------------------------------------------------

    def answer(self, run: Callable[..., Any], *args: Any) -> Any:
        """Answers an op by a function: what that calls is not the program's."""
        if not self.is_on or self.is_answering or not self._is_in_lane():
            return run(*args)
        self.is_answering = True
        if self.is_listening:
            _report(_is_profiling())
        try:
            return run(*args)
        finally:
            self.is_answering = False
            _report(True)

    def call(
        self, whole: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Calls what an op is made of, in its answer: that is the program's again."""
        if not self.is_answering or not self._is_in_lane():
            return whole(*args, **kwargs)
        self.is_answering = False
        _report(True)
        try:
            return whole(*args, **kwargs)
        finally:
            self.is_answering = True
            if self.is_listening:
                _report(_is_profiling())

    def run_on_cpu(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on tensors of the CPU, which the dispatcher calls a second time for it."""
        if not self.is_listening or not self._is_in_lane():
            return func(*args, **kwargs)
        self._skips_next = True
        try:
            return self.call(func, args, kwargs)
        finally:
            self._skips_next = False

    def is_recorded(self, op: str) -> None:
        """An op is about to be written to the tape. If it is the operator that began last, or one
        that began just before and called nothing but a variant of itself (`detach` in
        `aten::detach`), the op stands for it; else it is what these operators are made of. A detach
        that no operator stands for saves a tensor subclass for backward, which none on a GPU is."""
        self.record_ends()
        calls = self._calls
        for depth, call in enumerate(reversed(calls), start=1):
            if type(call) is not CallToken:
                break  # what ended, or a node
            if call.name == op:
                del self._running[-depth:], calls[-depth:]
                return
        running = running_after(tuple(calls), self._history.last.running)
        if running and running[-1].name == op:  # autograd saved or copied something before
            calls += (_WHOLE, None)
        elif op == _DETACH:
            calls += (_UNSEEN, None)


def _last_op(entries: Sequence[TapeEntry]) -> TapedOp | None:
    """The last entry that is not about memory, if it is an op."""
    for entry in reversed(entries):
        if not isinstance(entry, (TapedAlloc, TapedFree, TapedCalls, TapedFunctions)):
            return entry if isinstance(entry, TapedOp) else None
    return None


def _begun(events: Sequence[CallEvent]) -> list[CallEvent]:
    return [event for event in events if event is not None]


def _node_of(op: TapedOp | None) -> _Node | None:
    """The node in which an op runs, if it does."""
    return (op.node, op.sequence_nr) if op is not None and op.node else None


#: What precedes an op that the dispatcher of a program on a GPU does not call.
_UNSEEN = CallToken(UNSEEN)
#: What precedes one that is what the operator around it does itself.
_WHOLE = CallToken(WHOLE)
_DETACH = "aten::detach"
#: Stands for a name that did not come before.
_UNKNOWN = CallToken("")
