"""A recording with each of its steps, or each of its entries, changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from neusight.recording.recording import Entry, Recording, Step


def with_steps(recording: Recording, change: Callable[[Step], Step]) -> Recording:
    """The recording with every step changed."""
    return replace(recording, steps=tuple(map(change, recording.steps)))


def with_entries(recording: Recording, change: Callable[[Entry], Entry]) -> Recording:
    """The recording with every entry changed."""
    return with_steps(
        recording, lambda step: replace(step, entries=tuple(map(change, step.entries)))
    )
