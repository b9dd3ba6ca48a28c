"""Recordings of ranks that were stopped at their own moments, cut to where all of them are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from neusight.recording.recording import Recording, Step, StepKind

__all__ = ["cut_alike", "without_broken_step"]

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
    """The recordings up to the training step (inference step, where nobody trains) that each of the
    ranks came to that were `stopped` early. What a rank did not do though nobody stopped it stays
    missing."""
    kind = next(
        (kind for kind in _KINDS if any(_count(one, kind) for one in recordings)), _KINDS[-1]
    )
    totals = [_count(one, kind) for one in recordings if one.rank in stopped]
    least = min((total for total in totals if total), default=0)
    if not least:
        return list(recordings)
    return [_cut(one, kind, least) if _count(one, kind) >= least else one for one in recordings]


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
