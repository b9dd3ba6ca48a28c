"""The operators of a step, from what began and ended between its entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import SupportsIndex, overload

from neusight.recording.recording import Entry, Mark, OpCall, Operator, Step
from neusight.recording.tape import CallEvent, CallToken


class StepOperators(Sequence[Operator]):
    """The operators of one step of `num_entries`, put together when somebody reads them: most
    recordings are made for their figures alone.

    `runs` are pairs of an entry's position, and where in `log` is written what began and ended
    before it. Autograd's numbers count from `base`.
    """

    def __init__(
        self, log: Sequence[CallEvent], runs: Sequence[int], num_entries: int, base: int | None
    ) -> None:
        self._log = log
        self._runs = runs
        self._num_entries = num_entries
        self._base = base

    def __bool__(self) -> bool:
        return any(isinstance(event, CallToken) for _, events in self._read() for event in events)

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

    def _read(self) -> Iterator[tuple[int, Sequence[CallEvent]]]:
        runs, log = iter(self._runs), self._log
        for position, start in zip(runs, runs, strict=True):
            count = log[start]
            assert isinstance(count, int)
            yield position, log[start + 1 : start + 1 + count]

    @cached_property
    def _all(self) -> tuple[Operator, ...]:
        begun: list[tuple[str, int]] = []
        others: list[tuple[int, bool]] = []
        lasts: list[int] = []
        numbers: list[int | None] = []
        open_: list[int] = []  # positions of those that have not ended
        for position, events in self._read():
            for event in events:
                if isinstance(event, CallToken):
                    begun.append((event.name, position))
                    others.append((len(open_), event.is_node))
                    open_.append(len(lasts))
                    lasts.append(self._num_entries)  # what is still open ends with the step
                    numbers.append(None)
                elif event is not None:
                    numbers[-1] = None if self._base is None else event - self._base
                elif open_:  # else it began in the step before
                    lasts[open_.pop()] = position
        return tuple(
            Operator(name, first, last, depth, is_node, number)
            for (name, first), last, (depth, is_node), number in zip(
                begun, lasts, others, numbers, strict=True
            )
        )


def with_operators(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; one whose operators were not followed has those of one with the same ops in the
    same order, of whatever sizes, else those around what it begins and ends with as the step before
    or after it."""
    followed = [(at, _ops_of(step)) for at, step in enumerate(steps) if step.operators]
    known = {ops: steps[at].operators for at, ops in followed}
    shown = list(steps)
    for at, step in enumerate(steps):
        if not step.operators and step.entries and followed:
            ops = _ops_of(step)
            near = sorted(followed, key=lambda other: abs(other[0] - at))[:2]
            found = known.get(ops) or _most([_carried(steps[n].operators, o, ops) for n, o in near])
            shown[at] = replace(step, operators=found)
    return tuple(shown)


def _most(found: Sequence[tuple[Operator, ...]]) -> tuple[Operator, ...]:
    return max(found, key=len)


#: Share of a step's entries at its start and end that are those of another one, from which on it
#: has the operators around them.
_ENOUGH_ALIKE = 0.5


def _carried(
    operators: Sequence[Operator], ops: Sequence[str], others: Sequence[str]
) -> tuple[Operator, ...]:
    """Operators around entries of these kinds, as they are around other ones: those that begin and
    end among the entries at the start and the end that both have."""
    shorter, longer = sorted((len(ops), len(others)))
    start = _num_same(ops, others, shorter)
    end = _num_same(ops[::-1], others[::-1], shorter - start)
    if start + end < _ENOUGH_ALIKE * longer:
        return ()

    def moved(position: int, most_before: int) -> int | None:
        if position <= most_before:
            return position
        return position + len(others) - len(ops) if position >= len(ops) - end else None

    # What begins where both are alike again goes with what follows.
    most_before = start - 1 if start + end == len(ops) else start

    found: list[Operator] = []
    around: list[bool] = []  # of those that enclose the next one, which are kept
    for operator in operators:
        first, last = moved(operator.first, most_before), moved(operator.last, start)
        del around[operator.depth :]
        if first is not None and last is not None:
            last = max(first, last)
            found.append(operator._replace(first=first, last=last, depth=sum(around)))
        around.append(first is not None and last is not None)
    return tuple(found)


def _num_same(ops: Sequence[str], others: Sequence[str], most: int) -> int:
    for position in range(most):
        if ops[position] != others[position]:
            return position
    return most


def _ops_of(step: Step) -> tuple[str, ...]:
    return tuple(map(_kind_of, step.entries))


def _kind_of(entry: Entry) -> str:
    if isinstance(entry, OpCall):
        return entry.signature.op
    return entry.kind if isinstance(entry, Mark) else type(entry).__name__
