"""The operators of a step, from what began and ended between its entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neusight.recording.recording import Entry, Mark, OpCall, Operator, Step
from neusight.recording.tape import CallToken


class OperatorTree:
    """Operators of one step, from what began and ended between its entries. Autograd's numbers
    count from `base`."""

    def __init__(self, base: int | None) -> None:
        #: How many entries of the step were written before those that positions count from.
        self.start = 0
        self._base = base
        self._found: list[Operator] = []
        self._open: list[int] = []  # positions of those that have not ended

    def read(self, tokens: Sequence[CallToken | None], position: int) -> None:
        """These begin and end before the entry at `position`, counted from `start`."""
        position += self.start
        for token in tokens:
            if token is not None:
                number = token.sequence_nr
                relative = None if number is None or self._base is None else number - self._base
                begun = Operator(token.name, position, -1, len(self._open), token.is_node, relative)
                self._open.append(len(self._found))
                self._found.append(begun)
            elif self._open:  # else it began in the step before
                self._end(position)

    def close(self, position: int) -> tuple[Operator, ...]:
        """All of them; what is still open ends with the step."""
        while self._open:
            self._end(position)
        return tuple(self._found)

    def _end(self, position: int) -> None:
        index = self._open.pop()
        self._found[index] = self._found[index]._replace(last=position)


def with_operators(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; one whose operators were not followed has those of one with the same ops in the
    same order, of whatever sizes."""
    known = {_ops_of(step): step.operators for step in steps if step.operators}
    return tuple(
        step if step.operators else replace(step, operators=known.get(_ops_of(step), ()))
        for step in steps
    )


def _ops_of(step: Step) -> tuple[str, ...]:
    return tuple(map(_kind_of, step.entries))


def _kind_of(entry: Entry) -> str:
    if isinstance(entry, OpCall):
        return entry.signature.op
    return entry.kind if isinstance(entry, Mark) else type(entry).__name__
