"""A profile: where things end, how long a step is busy, and which step stands for all."""

from __future__ import annotations

import pytest

from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    HostOp,
    Profile,
    ProfileStep,
    RuntimeCall,
)


def kernel(start: int, duration: int, *, op: int = -1, launch: int = -1) -> DeviceEvent:
    return DeviceEvent("kernel", "k", start, duration, 0, 7, op=op, launch=launch)


def step(start: int, *durations: int) -> ProfileStep:
    events = tuple(kernel(start, duration) for duration in durations)
    return ProfileStep(f"at {start}", start, 1, 1, events)


def profile(*steps: ProfileStep) -> Profile:
    ops, calls = (HostOp("mm", 3, 4, "1/1"),), (RuntimeCall("launch", 5, 6, "1/1"),)
    return Profile("a.json", "H100", False, True, steps, ops, (), calls)


def test_each_ends_after_its_duration() -> None:
    made = profile()

    assert (made.ops[0].end_ns, made.calls[0].end_ns, kernel(10, 20).end_ns) == (7, 11, 30)


@pytest.mark.parametrize(
    ("spans", "busy_ns", "kernel_ns"),
    [
        ([], 0, 0),
        ([(5, 10)], 10, 10),
        ([(0, 10), (10, 5)], 15, 15),
        ([(0, 10), (12, 5)], 15, 15),
        ([(3, 10), (4, 20), (6, 2)], 21, 32),
        ([(20, 5), (0, 10), (9, 3)], 17, 18),
    ],
)
def test_a_step_is_busy_where_any_kernel_runs(
    spans: list[tuple[int, int]], busy_ns: int, kernel_ns: int
) -> None:
    found = ProfileStep("s", 0, 1, 1, tuple(kernel(*span) for span in spans))

    assert (found.busy_ns, found.kernel_ns) == (busy_ns, kernel_ns)


@pytest.mark.parametrize(
    ("durations", "chosen"),
    [
        ([[]], None),
        ([[], [7]], 1),
        ([[9], [1], [5], [6, 1]], 2),  # of five and seven, as near to six, the earlier
        ([[9], [1], [5]], 2),
        ([[1], [2, 2], [100]], 1),
    ],
)
def test_the_step_nearest_to_the_median_stands_for_all(
    durations: list[list[int]], chosen: int | None
) -> None:
    steps = [step(number, *each) for number, each in enumerate(durations)]

    assert profile(*steps).median_step() == (None if chosen is None else steps[chosen])


def test_a_kernel_knows_its_operator_and_its_launch_where_the_trace_does() -> None:
    made = profile()
    known, unknown = kernel(0, 1, op=0, launch=0), kernel(0, 1)

    assert (made.op_of(known), made.launch_of(known)) == (made.ops[0], made.calls[0])
    assert (made.op_of(unknown), made.launch_of(unknown)) == (None, None)
    assert (unknown.num_bytes, ProfileStep("s", 0, 1, 1, ()).loader_ns) == (0, 0)
