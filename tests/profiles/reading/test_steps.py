"""A profile cut into steps: what belongs to each, and how long each took."""

from __future__ import annotations

import pytest

from neusight.integrations.profiles.reading.builder import Builder
from neusight.integrations.profiles.reading.notes import Notes
from neusight.integrations.profiles.reading.profile import ProfileStep
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.integrations.profiles.reading.steps import steps_of
from profile_events import device_event, host_event, trace_of_events

#: When a kernel is launched, starts and ends, µs; one that begins before the trace has no launch.
Kernel = tuple[float | None, float, float]


def trace(kernels: list[Kernel]) -> dict[str, object]:
    """Two steps, from 0 to 100 µs and from 110 to 210 µs, and these kernels."""
    events = [
        host_event("user_annotation", "ProfilerStep#1", 0, 100),
        host_event("user_annotation", "ProfilerStep#2", 110, 100),
    ]
    for number, (launched, start, end) in enumerate(kernels, 1):
        events.append(device_event("k", start, end - start, number))
        if launched is not None:
            events.append(
                host_event("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=number)
            )
    return trace_of_events(events)


@pytest.mark.parametrize(
    ("kernels", "latencies_us", "counts"),
    [
        ([], (100, 100), (0, 0)),
        ([(15, 30, 70), (125, 140, 250)], (100, 140), (1, 1)),
        # The GPU is at work on the first step when the second begins, and when it ends.
        ([(15, 30, 150)], (150, 60), (1, 0)),
        ([(15, 30, 300)], (300, 0), (1, 0)),
        # Launched between the two, whenever it starts.
        ([(105, 115, 120)], (120, 90), (1, 0)),
        ([(105, 106, 108), (125, 140, 150)], (108, 100), (1, 1)),
        # Left over from before the trace.
        ([(None, 10, 40), (50, 60, 70)], (60, 100), (1, 0)),
        ([(None, 10, 105), (50, 106, 108)], (3, 100), (1, 0)),
    ],
)
def test_a_step_lasts_from_the_end_of_the_one_before(
    kernels: list[Kernel], latencies_us: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    steps = read_profile_events(trace(kernels)).steps

    assert tuple(step.latency_ns for step in steps) == tuple(us * 1000 for us in latencies_us)
    assert tuple(len(step.events) for step in steps) == counts


def test_what_is_launched_before_the_first_or_after_the_last_is_in_none() -> None:
    content = trace([(-10, 5, 6), (0, 7, 8), (210, 215, 216), (211, 217, 218)])

    profile = read_profile_events(content)

    assert [len(step.events) for step in profile.steps] == [1, 1]
    assert "2 of 4 kernels and copies lie outside all steps" in profile.notes


def test_nothing_is_one_step_of_no_time() -> None:
    assert steps_of(Builder(0.0, False), Notes()) == (ProfileStep("whole trace", 0, 0, 0, ()),)
