"""A step of a profile in figures: medians of its steps, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.profiles.comparison.figures import StepFigures, step_figures
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    Profile,
    ProfileStep,
    RuntimeCall,
)
from neusight.predictors.errors import TraceError


def event(start_us: float, duration_us: float, *, launch: int = -1) -> DeviceEvent:
    times = (round(start_us * 1000), round(duration_us * 1000))
    return DeviceEvent("kernel", "gemm", *times, 0, 7, launch=launch)


def step(latency_us: float, *events: DeviceEvent, loader_us: float = 0.0) -> ProfileStep:
    latency_ns, loader_ns = round(latency_us * 1000), round(loader_us * 1000)
    return ProfileStep("s", 0, latency_ns, latency_ns, events, loader_ns)


def profile(*steps: ProfileStep, calls: tuple[RuntimeCall, ...] = ()) -> Profile:
    return Profile("a.json", "H100", False, True, steps, (), (), calls, 5, 7)


def call(start_us: float, end_us: float) -> RuntimeCall:
    return RuntimeCall("launch", round(start_us * 1000), round((end_us - start_us) * 1000), "1/1")


def test_figures_are_of_the_median_step_in_microseconds() -> None:
    found = step_figures(
        profile(
            step(90.0, event(0, 90), loader_us=1.0),
            step(100.1234, event(0, 50.0004), event(40, 20), event(70, 10), loader_us=2.5),
            step(110.0, event(0, 5), loader_us=8.0),
            step(999.0),
        )
    )

    assert found == StepFigures(
        gpu="H100", num_steps=3, step_us=100.123, kernel_us=80.0, busy_us=70.0, num_kernels=3,
        loader_us=2.5, gpu_idle_share=0.30086, bound="host", peak_allocated_bytes=5,
        peak_reserved_bytes=7,
    )  # fmt: skip
    halves = (step(9.0, event(0, 5), loader_us=loader_us) for loader_us in (1.0, 2.001))
    assert step_figures(profile(*halves)).loader_us == 1.5


@pytest.mark.parametrize(
    ("gap_us", "calls", "idle_us"),
    [
        (5.0, (), 0.0),
        (5.001, (), 5.001),
        (40.0, (call(0, 50), call(1, 50)), 0.0),  # launched while the kernel before still ran
        (40.0, (call(0, 50), call(1, 50.001)), 40.0),
    ],
)
def test_gaps_between_queued_kernels_are_the_streams_own(
    gap_us: float, calls: tuple[RuntimeCall, ...], idle_us: float
) -> None:
    """Kernels of 50 and 10 us; the first overlaps another one that ends before it."""
    launches = (0, 1) if calls else (-1, -1)
    kernels = (
        event(0, 50, launch=launches[0]), event(1, 9, launch=launches[0]),
        event(50 + gap_us, 10, launch=launches[1]),
    )  # fmt: skip
    latency_us = 60 + gap_us

    found = step_figures(profile(step(latency_us, *kernels), calls=calls))

    assert found.gpu_idle_share == pytest.approx(idle_us / latency_us, abs=1e-6)


@pytest.mark.parametrize(("busy_us", "bound"), [(75, "gpu"), (74, "host"), (120, "gpu")])
def test_a_step_whose_gpu_idles_for_a_quarter_is_bound_by_the_host(
    busy_us: float, bound: str
) -> None:
    found = step_figures(profile(step(100, event(0, busy_us))))

    assert (found.bound, found.gpu_idle_share) == (bound, max(0.0, 1 - busy_us / 100))


def test_a_step_that_takes_no_time_is_not_idle() -> None:
    assert step_figures(profile(step(0, event(0, 0)))).gpu_idle_share == 0.0
    with pytest.raises(TraceError, match="holds no kernels"):
        step_figures(replace(profile(), steps=(step(10),)))
