"""Entries of unknown time are held, and run in order once it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meeting_ranks import price, reduce, work

from neusight.recording.recording import OpCall
from neusight.timeline.host import PLAIN
from neusight.timeline.launches import Launch
from neusight.timeline.ranks.held_streams import HeldKernel, HeldStreams
from neusight.timeline.ranks.meetings import Appointment, Meetings
from neusight.timeline.streams import LAUNCH_QUEUE_DEPTH


def launch_of(call: OpCall) -> Launch:
    ((kernel, estimate),) = price(call)
    return Launch(kernel, estimate, round(estimate.latency_us * 1000), 0, "launch", False)


class Rank:
    """The streams of rank 0 of two, and what they report."""

    def __init__(self) -> None:
        self.meetings = Meetings([0, 1])
        self.placed: list[tuple[int, int, int, int]] = []
        host = replace(PLAIN, launch_latency_us=0.0, kernel_gap_us=0.0)
        self.streams = HeldStreams(
            host, self.meetings, lambda *figures: self.placed.append(figures)
        )

    def hold(self, call: OpCall, *, stream: int = 0, launched_ns: int = 0) -> None:
        number = len(self.placed) + 100
        appointments = self.meetings.appointments(call, 0)
        kernel = HeldKernel(launch_of(call), launched_ns, number, 0, appointments, True)
        self.streams.hold(stream, kernel)

    def other_comes(self, now_ns: int) -> Appointment:
        (appointment,) = self.meetings.appointments(reduce(), 1)
        self.meetings.come(appointment, now_ns)
        return appointment


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_a_collective_lasts_from_its_start_until_after_the_last_rank_came(rank: Rank) -> None:
    rank.hold(reduce(), launched_ns=5_000)
    assert rank.streams.holds(0)
    rank.other_comes(30_000)

    assert rank.streams.advance_all()
    assert rank.placed == [(100, 5_000, 35_000, 25_000)]  # number, start, duration, waiting
    assert rank.streams.free_ns(0) == 40_000
    assert not rank.streams.holds_any


def test_one_that_comes_last_does_not_wait(rank: Rank) -> None:
    rank.other_comes(1_000)
    rank.hold(reduce(), launched_ns=5_000)

    assert rank.placed == [(100, 5_000, 10_000, 0)]


def test_what_lies_behind_is_held_as_are_events_and_who_waits_for_them(rank: Rank) -> None:
    streams = rank.streams
    rank.hold(reduce())
    streams.record_event(1, stream=0, host_ns=0)
    streams.wait_for_event(1, stream=7)
    rank.hold(work(3.0), stream=7)

    assert streams.is_unknown(1)
    assert streams.holds(7)
    assert not streams.advance_all()
    rank.other_comes(20_000)
    while streams.advance_all():
        continue

    assert not streams.is_unknown(1)
    assert rank.placed[-1] == (100, 30_000, 3_000, 0)


def test_an_event_of_an_earlier_step_is_waited_for(rank: Rank) -> None:
    streams = rank.streams
    rank.hold(reduce())
    streams.record_event(1, stream=0, host_ns=0)
    streams.end_step()
    streams.wait_for_event(0, stream=7)  # the last event of the step before
    assert streams.holds(7)
    rank.other_comes(20_000)
    while streams.advance_all():
        continue

    assert streams.free_ns(7) == 30_000
    assert streams.done_of_step[0] == 30_000


def test_a_queue_is_full_of_what_is_held(rank: Rank) -> None:
    rank.hold(reduce())
    for _ in range(LAUNCH_QUEUE_DEPTH - 2):
        rank.hold(work(1.0))

    assert not rank.streams.is_full(0, 1)
    assert rank.streams.is_full(0, 2)
    assert rank.streams.accepts_ns(0) == 0


def test_the_rank_that_is_waited_for_is_named(rank: Rank) -> None:
    rank.hold(reduce(line=7))

    (appointment,) = rank.streams.waiting()
    assert str(appointment) == "all_reduce of 8 float32 at train.py:7"
