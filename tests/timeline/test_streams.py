"""Streams of the GPU: kernels in order, events between streams, queues that fill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.physical_time import Bound
from neusight.predictors.predictor import Estimate
from neusight.timeline.host import PLAIN
from neusight.timeline.launches import Launch
from neusight.timeline.streams import Streams


def launch(duration_ns: int) -> Launch:
    kernel = Kernel.elementwise("relu", 1024, dtype="float32")
    us = duration_ns / 1000
    estimate = Estimate(us, us, us, "memory", "physics", "test")
    return Launch(kernel, estimate, duration_ns, 1, "cudaLaunchKernel", False)


def streams_of(*, latency_ns: int = 0, gap_ns: int = 0) -> Streams:
    host = replace(PLAIN, launch_latency_us=latency_ns / 1000, kernel_gap_us=gap_ns / 1000)
    return Streams(host)


def run(streams: Streams, duration_ns: int, *, at_ns: int = 0, stream: int = 0) -> int:
    return streams.run(launch(duration_ns), stream=stream, launched_ns=at_ns)


def test_a_kernel_starts_one_latency_after_its_launch() -> None:
    streams = streams_of(latency_ns=7, gap_ns=3)

    assert run(streams, 100, at_ns=1000) == 1007
    assert streams.done_ns() == streams.free_ns(0) == 1107
    assert streams.gaps_ns == 0


def test_the_last_event_has_the_highest_number() -> None:
    streams = streams_of()
    assert streams.last_event == 0

    for event in (7, 3):
        streams.record_event(event, stream=0, host_ns=5)

    assert (streams.last_event, streams.event_ns(3)) == (7, 5)


def test_queued_kernels_follow_each_other_after_a_gap() -> None:
    streams = streams_of(latency_ns=7, gap_ns=3)

    assert run(streams, 100) == 7
    assert run(streams, 100) == 110
    assert streams.gaps_ns == 3


def test_a_kernel_that_comes_within_the_gap_waits_for_what_is_left_of_it() -> None:
    streams = streams_of(gap_ns=10)
    run(streams, 100)

    assert run(streams, 5, at_ns=106) == 110
    assert streams.gaps_ns == 4


def test_streams_run_beside_each_other() -> None:
    streams = streams_of()

    assert run(streams, 100, stream=1) == 0
    assert run(streams, 30, stream=2) == 0
    assert (streams.free_ns(1), streams.free_ns(2), streams.done_ns()) == (100, 30, 100)


def branched(
    duration_ns: int, *branches: int, waves: float = 0.1, bound: Bound = "compute"
) -> Launch:
    plain = launch(duration_ns)
    return plain._replace(
        kernel=replace(plain.kernel, branches=branches),
        estimate=replace(plain.estimate, num_waves=waves, bound=bound),
    )


def run_branched(streams: Streams, item: Launch) -> int:
    return streams.run(item, stream=streams.branch(0, item), launched_ns=0)


def test_a_librarys_streams_begin_behind_the_programs_and_it_goes_on_behind_them() -> None:
    streams = streams_of()
    run(streams, 50)
    streams.fork(0, host_ns=0)

    starts = [run_branched(streams, branched(ns, number)) for number, ns in ((1, 30), (2, 80))]
    behind = run_branched(streams, branched(10, 1, 2))
    streams.join(0, 2)

    assert starts == [50, 50]
    assert behind == 130
    assert run(streams, 5) == 140


def test_kernels_of_a_librarys_streams_share_the_gpu() -> None:
    """Each fills 60 % of the SMs: three of 100 ns take 180 ns at least."""
    streams = streams_of()
    streams.fork(0, host_ns=0)

    starts = [run_branched(streams, branched(100, number, waves=0.6)) for number in (1, 2, 3)]

    assert starts == [0, 20, 80]


def test_kernels_that_wait_for_themselves_leave_the_sms_to_others() -> None:
    """Three with twice as many CTAs as there are SMs, which idle between the steps of a product."""
    streams = streams_of()
    streams.fork(0, host_ns=0)
    waiting = [branched(100, number, waves=2.0, bound="launch") for number in (1, 2, 3)]

    assert [run_branched(streams, item) for item in waiting] == [0, 0, 0]


def test_a_stream_holds_1024_launches() -> None:
    streams = streams_of()

    for number in range(1023):
        streams.enqueue(0, 1000 + number)
    assert streams.accepts_ns(0) == 0
    streams.enqueue(0, 5000)

    assert streams.accepts_ns(0) == 1000
    streams.enqueue(0, 6000)
    assert streams.accepts_ns(0) == 1001
    assert streams.accepts_ns(1) == 0


def test_an_event_happens_when_its_stream_has_run_what_it_holds() -> None:
    streams = streams_of(latency_ns=5)
    run(streams, 100)

    streams.record_event(1, stream=0, host_ns=0)
    streams.record_event(2, stream=1, host_ns=40)
    streams.wait_for_event(1, stream=2)

    assert (streams.event_ns(1), streams.event_ns(2)) == (105, 45)
    assert streams.free_ns(2) == 105
    with pytest.raises(KeyError):
        streams.event_ns(3)


def test_events_of_earlier_steps_are_numbered_backwards_from_zero() -> None:
    streams = streams_of()
    for number, host_ns in ((1, 10), (2, 20)):
        streams.record_event(number, stream=0, host_ns=host_ns)
    streams.end_step()
    streams.record_event(1, stream=0, host_ns=90)

    assert [streams.happens_ns(number) for number in (-1, 0, 1, 2)] == [10, 20, 90, 0]
