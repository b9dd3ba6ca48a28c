"""Steps of a timeline that are the same as an earlier one but for when they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from neusight.timeline.spans import HostSpan, KernelSpan, StepSpan, Timeline

#: Spans are made by the ten thousand: without the function that a NamedTuple makes them by.
_new = tuple.__new__


class Offset(NamedTuple):
    """How far a step is behind an equal one: in time, in the positions of its spans, and in the
    correlation ids of its launches."""

    time_ns: int
    position: int
    correlation: int


class Repeat(NamedTuple):
    """Which of some steps is the first that one equals, by number, and how far it is behind that:
    itself, and not at all, where it equals none before it."""

    first: int
    offset: Offset


def repeats_of(timeline: Timeline, steps: Sequence[StepSpan]) -> list[Repeat]:
    """How each of these steps repeats another of them."""
    repeats: list[Repeat] = []
    firsts: dict[int, int] = {}  # by the identity of what was recorded
    for number, step in enumerate(steps):
        first = firsts.get(id(step.replay.step))
        offset = None if first is None else offset_between(timeline, steps[first], step)
        if first is None or offset is None:
            first, offset = number, Offset(0, 0, 0)
            firsts[id(step.replay.step)] = number
        repeats.append(Repeat(first, offset))
    return repeats


def offset_between(timeline: Timeline, earlier: StepSpan, later: StepSpan) -> Offset | None:
    """How far a step is behind an earlier one; None where anything else of them differs."""
    if earlier.replay.step is not later.replay.step:
        return None
    if later.end_ns - later.start_ns != earlier.end_ns - earlier.start_ns:
        return None
    host = timeline.host[earlier.first_host : earlier.last_host]
    kernels = timeline.kernels[earlier.first_kernel : earlier.last_kernel]
    found_host = timeline.host[later.first_host : later.last_host]
    found_kernels = timeline.kernels[later.first_kernel : later.last_kernel]
    offset = Offset(
        later.start_ns - earlier.start_ns,
        later.first_host - earlier.first_host,
        found_kernels[0].correlation - kernels[0].correlation if kernels and found_kernels else 0,
    )
    if tuple(later_spans(host, offset)) != found_host:
        return None
    return offset if tuple(later_kernels(kernels, offset)) == found_kernels else None


def later_spans(spans: Iterable[HostSpan], offset: Offset) -> Iterator[HostSpan]:
    """Spans of a step as they are in one behind it."""
    time_ns, position, correlation = offset
    for kind, name, start_ns, lasts_ns, thread, parent, call, launch, detail, entry, nr in spans:
        parent = parent + position if parent >= 0 else parent
        launch = launch + correlation if launch else launch
        start_ns += time_ns
        fields = kind, name, start_ns, lasts_ns, thread, parent, call, launch, detail, entry, nr
        yield _new(HostSpan, fields)


def later_kernels(kernels: Iterable[KernelSpan], offset: Offset) -> Iterator[KernelSpan]:
    """Kernels of a step as they are in one behind it."""
    time_ns, position, correlation = offset
    for kernel, estimate, stream, start_ns, duration_ns, launch, op, *rest in kernels:
        op = op + position if op >= 0 else op
        fields = (
            *(kernel, estimate, stream, start_ns + time_ns, duration_ns),
            *(launch + correlation, op, *rest),
        )
        yield _new(KernelSpan, fields)
