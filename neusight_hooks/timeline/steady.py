"""The step that stands for a program: which of a timeline it is, and what limits it."""

from __future__ import annotations

from typing import Literal

from neusight.predictors.kernel import KernelClass
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline

__all__ = [
    "HOST_BOUND_IDLE_SHARE",
    "StepBound",
    "bound_of",
    "kernels_of",
    "steady_step_of",
    "steady_steps_of",
]

#: A step is host-bound when its GPU idles for more than this share because the host is late.
HOST_BOUND_IDLE_SHARE = 0.25

StepBound = Literal["host", "compute", "memory", "communication"]


def steady_steps_of(timeline: Timeline) -> list[StepSpan]:
    """Training steps after the first, else inference steps after the first, else what there is."""
    for kind in ("train", "eval"):
        found = [step for step in timeline.steps if step.replay.step.kind == kind]
        if found:
            return found[1:] or found
    return list(timeline.steps)


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
    kernels; else the largest of the kernel time bound by arithmetic, the kernel time bound by
    memory (kernels at their shortest possible time count here) and the time that only collectives
    run.
    """
    idle_ns = step.latency_ns - step.gpu_busy_ns - step.stream_gaps_ns
    if step.gpu_busy_ns == 0 or idle_ns > HOST_BOUND_IDLE_SHARE * step.latency_ns:
        return "host"
    shares: dict[StepBound, int] = {
        "compute": 0,
        "memory": 0,
        "communication": step.exposed_communication_ns,
    }
    for span in kernels_of(step, timeline):
        if span.kernel.kernel_class is not KernelClass.COLLECTIVE:
            shares["compute" if span.estimate.bound == "compute" else "memory"] += span.duration_ns
    return max(shares, key=lambda bound: shares[bound])
