"""A profile played again: with its own times it is the same, with others it waits as it must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.integrations.profiles.carrying.replay import Placed, replayed
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile, RuntimeCall

US = 1000


def profile_of(calls: list[RuntimeCall], events: list[DeviceEvent]) -> Profile:
    return Profile(
        "test", "NVIDIA H100 80GB HBM3", False, True, (), (), tuple(events), tuple(calls)
    )


def launch(start_us: float) -> RuntimeCall:
    return RuntimeCall("cudaLaunchKernel", round(start_us * US), 4 * US, "1/1")


def wait(start_us: float, end_us: float) -> RuntimeCall:
    start_ns = round(start_us * US)
    return RuntimeCall("cudaDeviceSynchronize", start_ns, round(end_us * US) - start_ns, "1/1")


def kernel(start_us: float, end_us: float, call: int, stream: int = 7) -> DeviceEvent:
    start_ns = round(start_us * US)
    duration_ns = round(end_us * US) - start_ns
    return DeviceEvent("kernel", "k", start_ns, duration_ns, 0, stream, launch=call)


def us(placed: Placed) -> tuple[float, float]:
    return placed.start_ns / US, placed.end_ns / US


#: Two kernels in a queue, and a host that waits for the second.
QUEUE = profile_of(
    [launch(0), launch(10), wait(20, 131)],
    [kernel(8, 60, 0), kernel(61, 130, 1)],
)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Kernels on two streams, as a GPU would run them, and waits among their launches."""
    now, ends = 0, {7: 0, 8: 0}
    calls: list[RuntimeCall] = []
    events: list[DeviceEvent] = []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.integers(1, 200)) * US
        stream = draw(st.sampled_from([7, 8]))
        start = max(now + draw(st.integers(2, 9)) * US, ends[stream])
        if draw(st.booleans()):  # it waits for the other stream
            start = max(start, ends[15 - stream] + US)
        duration = draw(st.integers(1, 300)) * US
        events.append(DeviceEvent("kernel", "k", start, duration, 0, stream, launch=len(calls)))
        calls.append(RuntimeCall("cudaLaunchKernel", now, 2 * US, "1/1"))
        ends[stream], now = start + duration, now + 2 * US
        if draw(st.booleans()):
            end = max(now + US, *ends.values())
            calls.append(RuntimeCall("cudaDeviceSynchronize", now, end - now, "1/1"))
            now = end
    events.sort(key=lambda event: event.start_ns)
    return profile_of(calls, events)


@given(profiles())
@settings(max_examples=150)
def test_with_its_own_times_everything_lies_where_it_lay(profile: Profile) -> None:
    now = replayed(profile, [event.duration_ns for event in profile.events])
    assert [tuple(placed) for placed in now.events] == [
        (event.start_ns, event.end_ns) for event in profile.events
    ]
    assert all(now.host_ns(call.end_ns) == call.end_ns for call in profile.calls)


@given(profiles(), st.integers(2, 5))
@settings(max_examples=100)
def test_longer_kernels_end_no_earlier_and_never_overlap_on_a_stream(
    profile: Profile, factor: int
) -> None:
    now = replayed(profile, [factor * event.duration_ns for event in profile.events])
    ends: dict[int, int] = {}
    for event, placed in zip(profile.events, now.events, strict=True):
        assert placed.end_ns >= event.end_ns
        assert placed.start_ns >= ends.get(event.stream, 0)
        ends[event.stream] = placed.end_ns


@given(profiles())
@settings(max_examples=100)
def test_kernels_of_no_duration_leave_the_host_its_own_time(profile: Profile) -> None:
    now = replayed(profile, [0] * len(profile.events))
    last = max(call.end_ns for call in profile.calls)
    assert 0 < now.host_ns(last) <= last


def test_a_queued_kernel_starts_when_the_one_before_it_ends() -> None:
    first, second = replayed(QUEUE, [100 * US, 69 * US]).events
    assert us(first) == (8, 108)
    assert us(second) == (109, 178)


def test_a_kernel_that_no_longer_queues_starts_after_its_launch() -> None:
    first, second = replayed(QUEUE, [1 * US, 69 * US]).events
    assert us(first) == (8, 9)
    # Eight microseconds from a launch to a start: the first kernel shows it.
    assert us(second) == (18, 87)


def test_a_host_that_waited_for_a_kernel_waits_for_it_again() -> None:
    now = replayed(QUEUE, [52 * US, 200 * US])
    assert now.host_ns(131 * US) == (61 + 200 + 1) * US
    assert now.waits == ((20 * US, (261 - 20) * US),)


def test_a_kernel_waits_for_the_one_on_another_stream_that_it_waited_for() -> None:
    profile = profile_of(
        [launch(0), launch(10)], [kernel(8, 500, 0, stream=7), kernel(502, 600, 1, stream=20)]
    )
    _, second = replayed(profile, [992 * US, 98 * US]).events
    assert us(second) == (1002, 1100)


def test_a_kernel_whose_launch_nobody_saw_is_played_too() -> None:
    profile = profile_of([], [kernel(5, 10, -1), kernel(11, 20, -1)])
    assert [us(item) for item in replayed(profile, [10 * US, 9 * US]).events] == [(5, 15), (16, 25)]


@pytest.mark.parametrize(
    ("first_us", "start_us", "now_us"),
    [
        (60, 60, 60),  # 50 µs after its launch: no sign of a wait
        (61, 61, 161),
        (100, 120, 220),  # 20 µs after the other one: it may have waited
        (100, 121, 121),
        (102, 100, 200),  # the clocks differ by 2 µs
        (103, 100, 100),
    ],
)
def test_a_late_kernel_waited_for_what_had_just_ended_on_another_stream(
    first_us: float, start_us: float, now_us: float
) -> None:
    profile = profile_of(
        [launch(0), launch(10)],
        [kernel(8, first_us, 0, stream=7), kernel(start_us, start_us + 5, 1, stream=20)],
    )

    _, second = replayed(profile, [(round(first_us) - 8 + 100) * US, 5 * US]).events

    assert us(second) == (now_us, now_us + 5)


def test_without_a_launch_that_shows_it_queued_kernels_are_a_microsecond_and_a_half_apart() -> None:
    profile = profile_of([], [kernel(5, 10, -1), kernel(21, 30, -1)])

    assert [us(item) for item in replayed(profile, [20 * US, 9 * US]).events] == [
        (5, 25), (26.5, 35.5),
    ]  # fmt: skip


def test_a_kernel_that_was_late_follows_the_one_before_it_as_the_others_do() -> None:
    spans = [(8, 60), (61, 130), (131, 200), (230, 240)]
    profile = profile_of(
        [launch(10 * index) for index in range(4)],
        [kernel(*span, index) for index, span in enumerate(spans)],
    )

    *_, last = replayed(profile, [52 * US, 69 * US, 169 * US, 10 * US]).events

    assert us(last) == (301, 311)
