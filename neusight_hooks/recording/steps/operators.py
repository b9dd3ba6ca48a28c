"""The operators of a step, from what began and ended between its entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import SupportsIndex, overload

from neusight.recording.call_stack import is_elsewhere
from neusight.recording.dispatch.operator_calls import OperatorCalls
from neusight.recording.recording import Alloc, Entry, Free, HostWork, Mark, OpCall, Operator, Step
from neusight.recording.tape import (
    CallEvent,
    CallToken,
    PythonCall,
    TapedCalls,
    TapedFunctions,
)


class _ReadLater(Sequence[Operator]):
    """Operators that are put together when they are read: most recordings are made for their
    figures alone."""

    @cached_property
    def _all(self) -> tuple[Operator, ...]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Operator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Operator, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Operator | tuple[Operator, ...]:
        return self._all[index]

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._all)


#: What operators did, or which functions ran, before the entry at a position.
Run = tuple[int, TapedCalls | TapedFunctions]


class StepOperators(_ReadLater):
    """The operators of one step with these `entries`. `runs` say before which of them, by their
    positions, operators began and ended, and which Python functions ran."""

    def __init__(self, runs: Sequence[Run], entries: Sequence[Entry]) -> None:
        self._runs = runs
        self._entries = entries

    def __bool__(self) -> bool:
        return any(
            isinstance(event, CallToken)
            for _, run in self._runs
            if isinstance(run, TapedCalls)
            for event in run.events
        )

    @cached_property
    def _all(self) -> tuple[Operator, ...]:
        found = _Opened(_numbers_in_nodes(self._entries))
        waiting: list[tuple[int, TapedFunctions]] = []  # one, for operators that end before it
        for position, run in self._runs:
            for event in run.events if isinstance(run, TapedCalls) else ():
                if waiting and (event is not None or waiting[0][0] != position):
                    found.run(*waiting.pop())
                found.add(event, position)
            while waiting:
                found.run(*waiting.pop())
            if isinstance(run, TapedFunctions):
                waiting.append((position, run))
        while waiting:
            found.run(*waiting.pop())
        return found.closed(len(self._entries))


class _Opened:
    """Operators in the order in which they begin, and those that have not ended."""

    def __init__(self, numbers: Sequence[int | None]) -> None:
        self._numbers = numbers
        self._begun: list[tuple[str, int, int, bool, bool]] = []
        self._lasts: list[int] = []
        self._sequences: list[int | None] = []
        self._open: list[int] = []  # places among them
        self._functions: list[tuple[int, PythonCall]] = []  # the functions among those, by places
        self._num_ended = 0  # operators that ended with the function around them

    def add(self, event: CallEvent, position: int) -> None:
        """An operator begins, has a number, or the innermost ends."""
        if isinstance(event, CallToken):
            self._begin(event.name, position, is_node=event.is_node)
        elif event is not None:
            base = self._numbers[position]
            self._sequences[-1] = None if base is None else base + event
        elif self._num_ended:
            self._num_ended -= 1
        else:
            place = len(self._open) - 1
            while place >= 0 and self._functions and self._is_function(self._open[place]):
                place -= 1
            if place >= 0:  # else it began in the step before
                self._end(self._open[place], position)

    def run(self, position: int, taped: TapedFunctions) -> None:
        """These Python functions run: others have ended, and what they called."""
        same = 0
        for (_, known), call in zip(self._functions, taped.functions, strict=False):
            if known != call:
                break
            same += 1
        if same < len(self._functions):
            self._num_ended += self._end(self._functions[same][0], position)
        for call in taped.functions[same:]:
            self._functions.append((len(self._begun), call))
            self._begin(call.name, position, is_function=True)

    def closed(self, num_entries: int) -> tuple[Operator, ...]:
        """All of them; what is still open ends with the step."""
        for place in self._open:
            self._lasts[place] = num_entries
        return tuple(
            Operator(name, first, last, depth, is_node, sequence, is_function)
            for (name, first, depth, is_node, is_function), last, sequence in zip(
                self._begun, self._lasts, self._sequences, strict=True
            )
        )

    def _is_function(self, place: int) -> bool:
        return self._begun[place][-1]

    def _begin(
        self, name: str, position: int, *, is_node: bool = False, is_function: bool = False
    ) -> None:
        self._begun.append((name, position, len(self._open), is_node, is_function))
        self._open.append(len(self._lasts))
        self._lasts.append(position)
        self._sequences.append(None)

    def _end(self, outermost: int, position: int) -> int:
        """What began at a place ends, with all in it; how many operators these are."""
        num_operators = 0
        while self._open and self._open[-1] >= outermost:
            place = self._open.pop()
            self._lasts[place] = position
            num_operators += not self._is_function(place)
        while self._functions and self._functions[-1][0] >= outermost:
            self._functions.pop()
        return num_operators


def _numbers_in_nodes(entries: Sequence[Entry]) -> list[int | None]:
    """Autograd's number of the node of each entry, or of the last one before it."""
    numbers: list[int | None] = []
    number = None
    for entry in entries:
        if isinstance(entry, OpCall) and entry.node and entry.sequence_nr is not None:
            number = entry.sequence_nr
        numbers.append(number)
    return [*numbers, number]


class _OperatorsOfOther(_ReadLater):
    """The operators of a step that was not followed, by those of steps that were: around what it
    does in the same order. What was found out is in `known`."""

    def __init__(self, step: Step, others: Sequence[_Followed], known: _Known) -> None:
        self._step = step
        self._others = others
        self._known = known

    @cached_property
    def _all(self) -> tuple[Operator, ...]:
        ops, places = ops_of(self._step), _places(self._step)
        if (ops, places) not in self._known:
            found = [(aligned(other.ops, ops), other) for other in self._others]
            positions, other = min(found, key=lambda alike: alike[0].count(None))
            self._known[ops, places] = _carried(other, positions, places)
        return self._known[ops, places]


_Known = dict[tuple[tuple[str, ...], tuple[int, ...]], tuple[Operator, ...]]


def with_operators(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; one whose operators were not followed has those of the nearest ones around what
    both do in the same order, of whatever sizes."""
    followed = [at for at, step in enumerate(steps) if step.operators]
    known: _Known = {}
    others = {at: _Followed.of(steps[max(0, at - 1) : at], steps[at]) for at in followed}
    shown = list(steps)
    for at, step in enumerate(steps):
        if not step.operators and step.entries and followed:
            near = sorted(followed, key=lambda other: abs(other - at))[:_NUM_NEAR]
            found = _OperatorsOfOther(step, [others[other] for other in near], known)
            shown[at] = replace(step, operators=found)
    return tuple(shown)


#: Followed steps of which one may have the operators of another step.
_NUM_NEAR = 4

#: Entries in a row by which two steps are found to go on alike.
_ALIKE = 6

#: Entries before a step that are compared with another one, too: what comes before the first call
#: of a model is setup, and before later ones a part of their steps.
_BEFORE = 64


def ops_of(step: Step) -> tuple[str, ...]:
    """What a step does, without sizes and memory."""
    found: list[str] = []
    for entry in step.entries:  # tens of thousands: in one pass, and without calls
        if isinstance(entry, OpCall):
            if not entry.thread or not is_elsewhere(entry):
                found.append(entry.signature.op)
        elif isinstance(entry, Mark):
            found.append(entry.kind)
        elif not isinstance(entry, (Alloc, Free)) and not is_elsewhere(entry):
            found.append(type(entry).__name__)
    return tuple(found)


#: Followed steps, the last ones, with which one is compared.
_MOST_COMPARED = 4


#: Steps in a row that are followed at most.
_MOST_IN_A_ROW = 3


class StepsToFollow:
    """Has the operators of a step followed unless it is going to do what another one did: of such
    steps one is enough where none are missing, the others have its operators (`with_operators`)."""

    def __init__(self, calls: OperatorCalls) -> None:
        self._calls = calls
        self._last: list[Step] = []
        self._followed: list[_Followed] = []
        self._num_followed = 0  # in a row
        self._missed: list[tuple[str, ...]] = []  # what steps did that no followed one did

    def step_ends(self, step: Step, is_repeated: bool) -> None:
        """A step has ended; the next one is taken to be like it."""
        calls = self._calls
        if not calls.is_possible or (is_repeated and not calls.is_on):
            return
        before, self._last = self._last, [step]
        has_gaps = calls.step_ends()
        if step.kind == "setup":
            return
        if step.operators:
            found = _Followed.of(before, step)
            self._followed = [found, *self._followed[: _MOST_COMPARED - 1]]
            self._num_followed += 1
            done = self._followed[0].ops
            self._missed = [ops for ops in self._missed if not has_operators_of(done, ops)]
            calls.follow(bool(has_gaps or self._missed) and self._num_followed < _MOST_IN_A_ROW)
            return
        self._num_followed = 0
        ops = ops_of(step)
        is_missed = not any(has_operators_of(other.ops, ops) for other in self._followed)
        if is_missed:  # such a step may come after another one like those that were followed
            self._missed = [ops, *self._missed[: _MOST_COMPARED - 1]]
        calls.follow(is_missed)


def ops_with_before(before: tuple[str, ...], ops: tuple[str, ...]) -> tuple[str, ...]:
    """What a step does, after what the step before it did last on the GPU."""
    return (*("" if op == _CPU_WORK else op for op in before[-_BEFORE:]), *ops)


class _Followed:
    """A step that was followed, and the end of the step before it, if that was followed, too."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    @staticmethod
    def of(before: Sequence[Step], step: Step) -> _Followed:
        """A step behind the one before it, if there is one."""
        return _Followed([*(one for one in before if one.operators), step])

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """What happens in them."""
        *before, step = map(ops_of, self._steps)
        return ops_with_before(before[0] if before else (), step)

    @cached_property
    def operators(self) -> Sequence[Operator]:
        """Their operators, around positions among `ops`."""
        found: list[Operator] = []
        first = len(self.ops)
        for step in reversed(self._steps):
            places = _places(step)
            first -= len(places)
            moved = (
                operator._replace(
                    first=first + bisect_left(places, operator.first),
                    last=first + bisect_left(places, operator.last),
                )
                for operator in step.operators
            )
            found[:0] = moved if first >= 0 else _whole_trees(moved)
        return found


def _whole_trees(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Those that begin where positions begin, with what is around them."""
    is_whole = False
    for operator in operators:
        is_whole = operator.first >= 0 and (is_whole or operator.depth == 0)
        if is_whole:
            yield operator


#: Work on the CPU, in which all its operators lie.
_CPU_WORK = HostWork.__name__
#: Begins the names of ops of optimizers, which have no operators around them.
_OF_OPTIMIZERS = ("aten::_foreach_", "aten::_fused_")


def has_operators_of(ops: Sequence[str], others: Sequence[str]) -> bool:
    """Whether all of `others` that may have operators around it is in `ops`, in the same order."""
    return ops == others or not any(
        position is None
        and (other == _CPU_WORK or ("::" in other and not other.startswith(_OF_OPTIMIZERS)))
        for other, position in zip(others, aligned(ops, others), strict=True)
    )


def aligned(ops: Sequence[str], others: Sequence[str]) -> list[int | None]:
    """For each of `others` its position among `ops`, in rising order; None for what comes between.
    After a difference at least `_ALIKE` in a row, or the rest, say where both go on alike."""
    places: dict[tuple[str, ...], list[int]] = {}
    for place in range(len(ops)):
        places.setdefault(tuple(ops[place : place + _ALIKE]), []).append(place)
    found: list[int | None] = []
    at, is_alike = 0, True
    for position, other in enumerate(others):
        if not (is_alike and at < len(ops) and ops[at] == other):
            here = places.get(tuple(others[position : position + _ALIKE]), [])
            after = bisect_left(here, at)
            is_alike = after < len(here)
            at = here[after] if is_alike else at
            if is_alike:  # what could go with what precedes, too, goes with what follows
                for back in range(1, min(at, position) + 1):
                    if others[position - back] != ops[at - back]:
                        break
                    found[position - back] = at - back
        found.append(at if is_alike else None)
        at += is_alike
    return found


def _carried(
    other: _Followed, positions: Sequence[int | None], places: Sequence[int]
) -> tuple[Operator, ...]:
    """The operators of what was followed around entries that a step has, too, at these `places`; by
    `positions` among the other's."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    between: dict[int, int] = {}
    last: int | None = -1
    for place, position in zip(places, positions, strict=True):
        if position is not None:
            # What begins or ends between two entries goes with the one that both steps have.
            begins.setdefault(position + 1, place + 1)
            begins[position] = place
            ends.setdefault(position, place)
            ends[position + 1] = place + 1
            if last == position - 1 or other.ops[position] == _CPU_WORK:
                between[position] = place
        last = position
    if last == len(other.ops) - 1:
        between[last + 1] = places[-1] + 1
    known = [position for position in positions if position is not None]
    found: list[Operator] = []
    around: list[int | None] = []  # where those end that enclose the next one, and are kept
    for operator in other.operators:
        if operator.first == operator.last:
            first = last = between.get(operator.first)
        elif operator.is_function:  # also around what one of the steps does and the other does not
            within = known[bisect_left(known, operator.first) : bisect_left(known, operator.last)]
            first = begins[within[0]] if within else None
            is_last = operator.last == len(other.ops)
            last = places[-1] + 1 if is_last else ends[within[-1] + 1] if within else None
        else:
            first, last = begins.get(operator.first), ends.get(operator.last)
        del around[operator.depth :]
        kept = [end for end in around if end is not None]
        if first is None or last is None:
            around.append(None)
            continue
        first, last = (min((place, *kept[-1:])) for place in (first, max(first, last)))
        around.append(last)
        found.append(operator._replace(first=first, last=last, depth=len(kept)))
    return tuple(found)


def _places(step: Step) -> tuple[int, ...]:
    """The positions of all entries but those of memory."""
    return tuple(
        place
        for place, entry in enumerate(step.entries)
        if not isinstance(entry, (Alloc, Free)) and not is_elsewhere(entry)
    )
