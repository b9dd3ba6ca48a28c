"""Recordings of ranks that were stopped at their own moments, cut to where all of them are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from neusight.recording.recording import Recording, Step
from neusight.timeline.ranks.alignment import MeetingSteps

__all__ = ["cut_alike", "without_broken_step"]


def without_broken_step(recording: Recording) -> Recording:
    """The recording of a rank that was stopped in the midst of a step, without that one: a last
    step that was there once and is like none before it."""
    steps = recording.steps
    if len(steps) < 2 or steps[-1].count > 1:
        return recording
    return replace(recording, steps=steps[:-1])


def cut_alike(recordings: Sequence[Recording], *, stopped: Collection[int]) -> list[Recording]:
    """The recordings as far as each of the ranks that were `stopped` early came, counted in steps
    in which ranks meet. What a rank did not do though nobody stopped it stays missing."""
    ranks = frozenset(recording.rank for recording in recordings)
    meetings = [MeetingSteps.of(recording, ranks) for recording in recordings]
    totals = [
        steps.total
        for recording, steps in zip(recordings, meetings, strict=True)
        if recording.rank in stopped
    ]
    least = min((total for total in totals if total), default=0)
    if not least:
        return list(recordings)
    return [
        recording if steps.total <= least else _cut(recording, steps.number(least - 1) + 1)
        for recording, steps in zip(recordings, meetings, strict=True)
    ]


def _cut(recording: Recording, num_steps: int) -> Recording:
    """Its first steps."""
    kept: list[Step] = []
    for step in recording.steps:
        count = min(step.count, num_steps)
        num_steps -= count
        if count:
            kept.append(replace(step, count=count))
    return replace(recording, steps=tuple(kept))
