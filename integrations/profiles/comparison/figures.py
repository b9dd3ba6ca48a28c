"""The totals of a step of a profile: time, kernels, memory, what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from neusight.integrations.profiles.reading.profile import Profile, ProfileStep
from neusight.predictors.errors import TraceError
from neusight.predictors.formatting import time_text
from neusight.timeline.steady import HOST_BOUND_IDLE_SHARE

#: Without launch calls, a gap longer than this is the host's fault (gaps between queued kernels
#: are 1 to 2 µs on V100, A100 and H100).
_QUEUED_GAP_NS = 5_000

#: Traces count in nanoseconds, people read microseconds.
NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One side of the comparison: a step's totals; times in microseconds.

    `gpu_idle_share` is the part of the step in which the GPU waits for the host, `loader_us` the
    host's time in its DataLoader.
    """

    gpu: str
    num_steps: int
    step_us: float
    kernel_us: float
    busy_us: float
    num_kernels: int
    loader_us: float
    gpu_idle_share: float
    bound: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None


def step_figures(profile: Profile) -> StepFigures:
    """A profile's step in figures; TraceError where it holds no kernels."""
    return figures_of(profile, step_of(profile))


def step_time_text(microseconds: float) -> str:
    """A time as the tables of a comparison show it."""
    return time_text(microseconds, decimals=3)


def figures_of(profile: Profile, step: ProfileStep) -> StepFigures:
    """The step in figures; its time is the median of all steps."""
    steps = [item for item in profile.steps if item.events]
    step_ns = median(item.latency_ns for item in steps)
    idle = median(_idle_share(profile, item) for item in steps)
    return StepFigures(
        gpu=profile.device_name,
        num_steps=len(steps),
        step_us=round(step_ns / NS_PER_US, 3),
        kernel_us=round(step.kernel_ns / NS_PER_US, 3),
        busy_us=round(step.busy_ns / NS_PER_US, 3),
        num_kernels=len(step.events),
        loader_us=round(median(item.loader_ns for item in steps) / NS_PER_US, 3),
        gpu_idle_share=round(idle, 6),
        bound="host" if idle > HOST_BOUND_IDLE_SHARE else "gpu",
        peak_allocated_bytes=profile.peak_allocated_bytes,
        peak_reserved_bytes=profile.peak_reserved_bytes,
    )


def microseconds(nanoseconds: int) -> float:
    """Nanoseconds as microseconds, to the nanosecond."""
    return round(nanoseconds / NS_PER_US, 3)


def _idle_share(profile: Profile, step: ProfileStep) -> float:
    """Share of the step in which the GPU idles, gaps between queued kernels not counted."""
    if not step.latency_ns:
        return 0.0
    queued_ns = 0
    reached_ns: int | None = None
    for event in sorted(step.events, key=lambda event: event.start_ns):
        if reached_ns is not None and event.start_ns > reached_ns:
            gap_ns = event.start_ns - reached_ns
            call = profile.launch_of(event)
            was_queued = call.end_ns <= reached_ns if call else gap_ns <= _QUEUED_GAP_NS
            queued_ns += gap_ns if was_queued else 0
        reached_ns = max(reached_ns or 0, event.end_ns)
    idle_ns = step.latency_ns - step.busy_ns - queued_ns
    return min(1.0, max(0.0, idle_ns / step.latency_ns))


def step_of(profile: Profile) -> ProfileStep:
    """The step of median kernel time; TraceError where the profile holds no kernels."""
    step = profile.median_step()
    if step is None:
        raise TraceError(
            f"{profile.source} holds no kernels: it was made without a GPU, or without "
            "ProfilerActivity.CUDA. There is nothing to compare."
        )
    return step
