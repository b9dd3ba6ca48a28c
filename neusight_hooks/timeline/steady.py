"""The step that stands for a program: which of a timeline it is, and what limits it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import Mark, StepKind
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline

#: A step is host-bound when its GPU idles for more than this share because the host is late.
HOST_BOUND_IDLE_SHARE = 0.25

StepBound = Literal["host", "compute", "memory", "communication"]


def steady_steps_of(timeline: Timeline) -> list[StepSpan]:
    """Training steps after the first, else inference steps after the first, else what there is.

    Of calls that run eagerly and replays of CUDA graphs, those that the program ends with.
    """
    for kind in ("train", "eval"):
        found = [step for step in timeline.steps if step.replay.step.kind == kind]
        if found:
            is_replay = _is_replay(found[-1])
            found = [step for step in found if _is_replay(step) is is_replay]
            return found[1:] or found
    return list(timeline.steps)


def shown_steps_of(timeline: Timeline) -> list[StepSpan]:
    """All but the setup; all where there is nothing else."""
    steps = [step for step in timeline.steps if step.replay.step.kind != "setup"]
    return steps or list(timeline.steps)


def _is_replay(step: StepSpan) -> bool:
    """Whether the step launches a captured CUDA graph."""
    entries = step.replay.step.entries
    return any(isinstance(entry, Mark) and entry.kind == "graph_begin" for entry in entries)


class OtherSteps(NamedTuple):
    """Steps of one kind that are none of the steady ones: how many, how long together."""

    kind: StepKind
    is_replay: bool
    num_steps: int
    total_ns: int


def other_steps_of(timeline: Timeline) -> tuple[list[OtherSteps], float]:
    """Training and inference steps beside the steady ones, but for the first of each kind, and
    their share of the time of all of these."""
    steady = steady_steps_of(timeline)
    steady_ns = sum(step.latency_ns * step.represents for step in steady)
    groups: dict[tuple[StepKind, bool], list[StepSpan]] = {}
    for step in timeline.steps:
        kind = step.replay.step.kind
        if kind != "setup":
            groups.setdefault((kind, _is_replay(step)), []).append(step)
    found = [
        OtherSteps(
            kind, is_replay,
            sum(step.represents for step in steps) - 1,
            sum(step.latency_ns * step.represents for step in steps) - steps[0].latency_ns,
        )
        for (kind, is_replay), steps in groups.items()
        if not any(step in steady for step in steps)
    ]  # fmt: skip
    found = [item for item in found if item.num_steps]
    others_ns = sum(item.total_ns for item in found)
    return found, others_ns / (others_ns + steady_ns) if others_ns else 0.0


def steady_step_of(timeline: Timeline) -> StepSpan | None:
    """The step that the figures speak of: the median of the steady ones, each counted as often as
    it stands for; None without steps."""
    ordered = sorted(
        steady_steps_of(timeline), key=lambda step: (step.latency_ns, step.replay.index)
    )
    half = sum(step.represents for step in ordered) / 2
    passed = 0
    for step in ordered:
        passed += step.represents
        if passed >= half:
            return step
    return None


def kernels_of(step: StepSpan, timeline: Timeline) -> tuple[KernelSpan, ...]:
    """The kernels that the step launches."""
    return timeline.kernels[step.first_kernel : step.last_kernel]


def bound_of(step: StepSpan, timeline: Timeline) -> StepBound:
    """What to change to make the step faster.

    "host" when the GPU idles for more than a quarter of the step beyond the gaps between queued
    kernels; else what most of the critical path is: kernels bound by arithmetic, kernels bound by
    memory (kernels at their shortest possible time count here) or collectives.
    """
    idle_ns = step.latency_ns - step.gpu_busy_ns - step.stream_gaps_ns
    if step.gpu_busy_ns == 0 or idle_ns > HOST_BOUND_IDLE_SHARE * step.latency_ns:
        return "host"
    shares: dict[StepBound, int] = {"compute": 0, "memory": 0, "communication": 0}
    for span in critical_path_of(kernels_of(step, timeline)):
        if span.kernel.kernel_class is KernelClass.COLLECTIVE:
            shares["communication"] += span.duration_ns
        else:
            shares["compute" if span.estimate.bound == "compute" else "memory"] += span.duration_ns
    return max(shares, key=lambda bound: shares[bound])


#: A kernel that starts within this time after the one before it on its stream was queued behind it
#: (`HostProfile.kernel_gap_us` is 1 to 2 us).
_QUEUED_NS = 3000


def critical_path_of(kernels: Sequence[KernelSpan]) -> list[KernelSpan]:
    """The kernels that the end of the last one waits for, the last first: before each comes the one
    that it was queued behind on its stream, else the one that ended last before it started. None
    overlaps another, so their times add up to no more than the time of all.

    >>> critical_path_of([])
    []
    """
    ordered = sorted(kernels, key=lambda span: (span.end_ns, span.start_ns))
    ends = [span.end_ns for span in ordered]
    before_on_stream: list[int] = []
    last_on_stream: dict[int, int] = {}
    for position, span in enumerate(ordered):
        before_on_stream.append(last_on_stream.get(span.stream, -1))
        last_on_stream[span.stream] = position
    path: list[KernelSpan] = []
    position = len(ordered) - 1
    while position >= 0:
        span = ordered[position]
        path.append(span)
        queued = before_on_stream[position]
        gap_ns = span.start_ns - ordered[queued].end_ns if queued >= 0 else -1
        if 0 <= gap_ns <= _QUEUED_NS:
            position = queued
        else:
            position = min(bisect_right(ends, span.start_ns), position) - 1
    return path
