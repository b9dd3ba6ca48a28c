"""Cuts the recordings of ranks that were stopped at different moments to what all of them did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from neusight.recording.recording import OpCall, Recording, Step, StepKind
from neusight.timeline.ranks.groups import parts_of

_UNLIKE_STEPS = (
    "ranks do not agree on what a step is, so figures of their steps are not of the same work; "
    "call step() of the forecast, or of a profiler, where one ends"
)

#: What ends a program after so many of them, in this order.
_KINDS: tuple[StepKind, ...] = ("train", "eval")


def without_broken_step(recording: Recording) -> Recording:
    """The recording of a rank that was stopped in the midst of a step, without that one: a last
    step that was there once and is like none before it."""
    steps = recording.steps
    if len(steps) < 2 or steps[-1].count > 1:
        return recording
    return replace(recording, steps=steps[:-1])


def cut_alike(recordings: Sequence[Recording], *, stopped: Collection[int]) -> list[Recording]:
    """The recordings up to the training step (inference step, without training) that each of the
    ranks came to that were `stopped` early. What a rank did not do though it was not stopped stays
    missing.

    Where the first such steps of two ranks do not hold the same calls, their steps are not the
    same, and each is cut before its first call that another one did not come to; a warning says so.
    """
    if not stopped:
        return list(recordings)
    kind = next(
        (kind for kind in _KINDS if any(_count(one, kind) for one in recordings)), _KINDS[-1]
    )
    calls = [_calls(one, frozenset(each.rank for each in recordings)) for one in recordings]
    firsts = [_up_to_first(one, found, kind) for one, found in zip(recordings, calls, strict=True)]
    if _least(firsts) != _most(firsts):
        return _cut_by_calls(recordings, calls)
    totals = [_count(one, kind) for one in recordings if one.rank in stopped]
    least = min((total for total in totals if total), default=0)
    if not least:
        return list(recordings)
    return [_cut(one, kind, least) if _count(one, kind) >= least else one for one in recordings]


#: Calls that a rank shares with others that are run, by what they meet for.
_Calls = Counter[tuple[str, ...]]


def _calls(recording: Recording, ranks: frozenset[int]) -> list[_Calls]:
    """The calls of each step."""
    return [
        Counter(
            part.key
            for entry in step.entries
            if isinstance(entry, OpCall)
            for part in parts_of(entry, recording.rank)
            if len(ranks.intersection(part.ranks)) > 1
        )
        for step in recording.steps
    ]


def _up_to_first(recording: Recording, calls: Sequence[_Calls], kind: StepKind) -> _Calls:
    """All up to the end of the first step of that kind."""
    total: _Calls = Counter()
    for step, found in zip(recording.steps, calls, strict=True):
        if step.kind == kind:
            return total + found
        total += _times(found, step.count)
    return total


def _times(calls: _Calls, count: int) -> _Calls:
    return Counter({key: number * count for key, number in calls.items()})


def _least(each: Sequence[_Calls]) -> _Calls:
    """For each call, the fewest that any rank makes which makes it at all."""
    keys = {key for found in each for key in found}
    return Counter({key: min(found[key] for found in each if found[key]) for key in keys})


def _most(each: Sequence[_Calls]) -> _Calls:
    keys = {key for found in each for key in found}
    return Counter({key: max(found[key] for found in each) for key in keys})


def _cut_by_calls(
    recordings: Sequence[Recording], calls: Sequence[list[_Calls]]
) -> list[Recording]:
    """Cut until each call was reached by all ranks that take part in it."""
    counts = [[step.count for step in one.steps] for one in recordings]
    while True:
        totals = [
            sum(map(_times, found, kept), Counter())
            for found, kept in zip(calls, counts, strict=True)
        ]
        least = _least(totals)
        if least == _most(totals):
            break
        counts = [_within(found, kept, least) for found, kept in zip(calls, counts, strict=True)]
    found = [_kept(one, kept) for one, kept in zip(recordings, counts, strict=True)]
    return [replace(found[0], warnings=(*found[0].warnings, _UNLIKE_STEPS)), *found[1:]]


def _within(calls: Sequence[_Calls], counts: Sequence[int], least: _Calls) -> list[int]:
    """How often each step may be there so that no call is there more often than that."""
    left = Counter(least)
    kept: list[int] = []
    for found, count in zip(calls, counts, strict=True):
        fits = min((left[key] // number for key, number in found.items()), default=count)
        kept.append(min(fits, count))
        if fits < count:
            break
        left -= _times(found, count)
    return kept + [0] * (len(counts) - len(kept))


def _kept(recording: Recording, counts: Sequence[int]) -> Recording:
    steps = zip(recording.steps, counts, strict=True)
    kept = tuple(replace(step, count=count) for step, count in steps if count)
    return replace(recording, steps=kept)


def _count(recording: Recording, kind: StepKind) -> int:
    return sum(step.count for step in recording.steps if step.kind == kind)


def _cut(recording: Recording, kind: StepKind, num_steps: int) -> Recording:
    """Up to the last of so many steps of that kind."""
    kept: list[Step] = []
    for step in recording.steps:
        if not num_steps:
            break
        count = min(step.count, num_steps) if step.kind == kind else step.count
        num_steps -= count if step.kind == kind else 0
        kept.append(replace(step, count=count))
    return replace(recording, steps=tuple(kept))
