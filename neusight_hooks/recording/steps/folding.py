"""The steps of a program, in which equal ones in a row are kept once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neusight.recording.recording import Alloc, Entry, HostWork, Step, StorageKind

#: Estimates of CPU work that differ by less than this ratio are the same work: augmentations that
#: draw numbers run some ops more or less each step.
_SAME_CPU_WORK = 1.5


class FoldedSteps:
    """Takes steps as they end; what the CPU does in between need not be equal to the last bit."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        #: How many were of training and of inference.
        self.num_train = 0
        self.num_eval = 0

    @property
    def last(self) -> Step | None:
        """The last of them, with its count."""
        return self.steps[-1] if self.steps else None

    def add(self, step: Step) -> bool:
        """One more step; whether it is the same as the last."""
        last = self.last
        is_repeated = last is not None and _are_equal(last, step)
        if last is not None and is_repeated:
            operators = last.operators or step.operators
            self.steps[-1] = replace(last, count=last.count + 1, operators=operators)
        else:
            self.steps.append(step)
        self.num_train += step.kind == "train"
        self.num_eval += step.kind == "eval"
        return is_repeated

    def take_back(self) -> None:
        """Removes the last step."""
        last = self.steps.pop()
        if last.count > 1:
            self.steps.append(replace(last, count=last.count - 1))
        self.num_train -= last.kind == "train"
        self.num_eval -= last.kind == "eval"

    def count_as_setup(self) -> None:
        """Counts all steps so far as setup."""
        self.steps = [replace(step, kind="setup") for step in self.steps]
        self.num_train = self.num_eval = 0

    def correct_kinds(self, kinds: Mapping[tuple[int, int], StorageKind]) -> None:
        """Storages, by the number of their step and their ordinal, turned out to be for this."""
        first = 0
        for position, step in enumerate(self.steps):
            last = first + step.count
            found = {
                ordinal: kind for (index, ordinal), kind in kinds.items() if first <= index < last
            }
            if found:
                self.steps[position] = replace(
                    step, entries=tuple(_corrected(entry, found) for entry in step.entries)
                )
            first = last


def _corrected(entry: Entry, kinds: Mapping[int, StorageKind]) -> Entry:
    if isinstance(entry, Alloc) and entry.kind == "activation" and entry.ordinal in kinds:
        return replace(entry, kind=kinds[entry.ordinal])
    return entry


def _are_equal(first: Step, second: Step) -> bool:
    """The same work; what the CPU does in between is an estimate and need not be the same."""
    if first.kind != second.kind or first.batch != second.batch:
        return False
    if len(first.entries) != len(second.entries):
        return False
    return first.entries == second.entries or all(
        one is other
        or one == other
        or (isinstance(one, HostWork) and isinstance(other, HostWork) and _is_same_work(one, other))
        for one, other in zip(first.entries, second.entries, strict=True)
    )


def _is_same_work(first: HostWork, second: HostWork) -> bool:
    low, high = sorted([first.duration_us, second.duration_us])
    return first.name == second.name == "cpu ops" and high <= low * _SAME_CPU_WORK
