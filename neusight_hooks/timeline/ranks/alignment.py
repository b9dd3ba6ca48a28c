"""Which steps of several ranks are run through: those that belong together, of each the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neusight.recording.recording import OpCall, Recording, Replay, replays
from neusight.timeline.ranks.groups import parts_of

#: Steps of all ranks together that are looked at one by one where ranks do not meet: a pipeline of
#: 64 stages over 60 steps.
_MOST_UNFOLDED = 4096

Runs = list[tuple[Replay, ...]]


def aligned(recordings: Sequence[Recording]) -> Runs:
    """The runs through each recording's steps. A step in which ranks meet is run through on all of
    them or on none.

    Such steps are counted on each rank, so that one that evaluates or writes in between stays in
    step with the others. Where ranks have unequal numbers of them, all steps are run through.
    """
    ranks = frozenset(recording.rank for recording in recordings)
    meetings = [_MeetingSteps.of(recording, ranks) for recording in recordings]
    if len({steps.total for steps in meetings}) != 1:
        return unfolded(recordings)
    wanted = {
        place
        for recording, steps in zip(recordings, meetings, strict=True)
        for run in replays(recording)
        for place in steps.places(run.index)
    }
    return [
        tuple(replays(recording, also={steps.number(place) for place in wanted}))
        for recording, steps in zip(recordings, meetings, strict=True)
    ]


def unfolded(recordings: Sequence[Recording]) -> Runs:
    """Runs through all steps, unless there are too many."""
    totals = [sum(step.count for step in recording.steps) for recording in recordings]
    if sum(totals) > _MOST_UNFOLDED:
        return [tuple(replays(recording)) for recording in recordings]
    return [
        tuple(replays(recording, also=range(total)))
        for recording, total in zip(recordings, totals, strict=True)
    ]


class _MeetingSteps(NamedTuple):
    """The steps in which a rank meets others that are run, as ranges of their numbers; they are
    counted by their places among them."""

    ranges: tuple[range, ...]

    @classmethod
    def of(cls, recording: Recording, ranks: frozenset[int]) -> _MeetingSteps:
        """Those of a recording."""
        found: list[range] = []
        first = 0
        for step in recording.steps:
            calls = (entry for entry in step.entries if isinstance(entry, OpCall))
            parts = (part for call in calls for part in parts_of(call, recording.rank))
            if any(len(ranks.intersection(part.ranks)) > 1 for part in parts):
                found.append(range(first, first + step.count))
            first += step.count
        return cls(tuple(found))

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(map(len, self.ranges))

    def places(self, number: int) -> Iterator[int]:
        """The place of the step of that number, if it is one of them."""
        before = 0
        for numbers in self.ranges:
            if number in numbers:
                yield before + number - numbers.start
            before += len(numbers)

    def number(self, place: int) -> int:
        """The number of the step at a place."""
        for numbers in self.ranges:
            if place < len(numbers):
                break
            place -= len(numbers)
        return numbers[place]
