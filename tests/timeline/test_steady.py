"""Which step stands for a program, and what limits it: timelines written down by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.physical_time import Bound
from neusight.recording.recording import Mark
from neusight.timeline.spans import KernelSpan
from neusight.timeline.steady import (
    bound_of,
    critical_path_of,
    kernels_of,
    other_steps_of,
    steady_step_of,
    steady_steps_of,
)
from timelines import RELU, kernel_span, step_span, timeline

ALL_REDUCE = Kernel.collective("all_reduce", 1024, 8)


def test_the_median_of_three_steps_stands_for_them_not_the_fastest() -> None:
    steps = [step_span(microseconds=us) for us in (999.0, 30.0, 10.0, 20.0)]

    assert steady_step_of(timeline(steps)) is steps[3]


def test_a_step_counts_as_often_as_it_stands_for() -> None:
    first, few, many = step_span(), step_span(microseconds=10.0), step_span(microseconds=50.0)
    many = step_span(microseconds=50.0, represents=7)

    assert steady_step_of(timeline([first, few, few, few, many])) is many


def test_the_first_training_step_is_left_out_and_inference_beside_training_too() -> None:
    steps = [
        step_span("setup", 1.0),
        step_span("train", 2.0),
        step_span("eval", 3.0),
        step_span("train", 4.0),
    ]

    assert steady_steps_of(timeline(steps)) == [steps[3]]
    assert steady_steps_of(timeline(steps[:3])) == [steps[1]]
    assert steady_steps_of(timeline(steps[:1])) == [steps[0]]
    assert steady_step_of(timeline([])) is None


def test_a_step_has_the_kernels_from_its_first_up_to_not_including_its_last() -> None:
    spans = [kernel_span(microseconds=us) for us in (1.0, 2.0, 3.0, 4.0)]

    found = kernels_of(step_span(kernels=(1, 3)), timeline([], spans))

    assert [span.duration_ns for span in found] == [2000, 3000]


@pytest.mark.parametrize(
    ("busy", "gaps", "bound"),
    [
        (74.0, 0.0, "host"),  # it idles for more than a quarter
        (75.0, 0.0, "memory"),
        (70.0, 6.0, "memory"),  # gaps between queued kernels are not the host's fault
        (0.0, 100.0, "host"),
    ],
)
def test_a_gpu_that_idles_for_a_quarter_of_the_step_waits_for_its_host(
    busy: float, gaps: float, bound: str
) -> None:
    step = step_span(busy=busy, gaps=gaps, kernels=(0, 1))

    assert bound_of(step, timeline([step], [kernel_span()])) == bound


def placed(
    start: float, microseconds: float, bound: Bound = "memory", *, stream: int = 0
) -> KernelSpan:
    kernel = ALL_REDUCE if bound == "communication" else RELU
    span = kernel_span(kernel, microseconds, bound=bound)
    return span._replace(start_ns=round(start * 1000), stream=stream)


@pytest.mark.parametrize(
    ("compute", "memory", "launch", "bound"),
    [
        (30.0, 20.0, 0.0, "compute"),
        (30.0, 20.0, 11.0, "memory"),  # the shortest possible time is no arithmetic
    ],
)
def test_on_one_stream_the_largest_share_binds(
    compute: float, memory: float, launch: float, bound: str
) -> None:
    spans = [
        placed(0.0, compute, "compute"),
        placed(compute, memory),
        placed(compute + memory, launch, "launch"),
    ]
    step = step_span(busy=100.0, kernels=(0, 3))

    assert bound_of(step, timeline([step], spans)) == bound


def test_collectives_bind_where_the_end_waits_for_them_and_not_where_they_are_hidden() -> None:
    """92 us, of which collectives are busy for 78 and other kernels, beside them, for 60."""
    first, beside = placed(0.0, 12.0), placed(12.0, 48.0)
    reduce = placed(12.0, 78.0, "communication", stream=1)
    last = placed(90.0, 2.0)
    hidden = placed(12.0, 40.0, "communication", stream=1)
    step = step_span(busy=92.0, microseconds=92.0, kernels=(0, 4))

    assert critical_path_of([first, beside, reduce, last]) == [last, reduce, first]
    assert bound_of(step, timeline([step], [first, beside, reduce, last])) == "communication"
    after = placed(60.0, 2.0)
    assert critical_path_of([first, beside, hidden, after]) == [after, beside, first]
    assert bound_of(step, timeline([step], [first, beside, hidden, after])) == "memory"


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(0, 2)),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_a_critical_path_never_overlaps_itself(drawn: list[tuple[int, int, int]]) -> None:
    spans = [placed(float(at), float(long), stream=stream) for at, long, stream in drawn]

    path = critical_path_of(spans)

    assert path[0].end_ns == max(span.end_ns for span in spans)
    assert all(later.start_ns >= earlier.end_ns for later, earlier in pairwise(path))
    assert len(path) <= len(spans)


def test_eager_calls_and_graph_replays_are_apart() -> None:
    graph = (Mark("graph_begin", "0"),)
    eager = [step_span("eval", 400.0, index=at) for at in range(3)]
    replays = [step_span("eval", 150.0, index=at, entries=graph) for at in range(3, 6)]
    both = timeline([*eager, *replays])

    others, share = other_steps_of(both)

    assert steady_steps_of(both) == replays[1:]
    assert [(item.kind, item.is_replay, item.num_steps) for item in others] == [("eval", False, 2)]
    assert share == pytest.approx(800 / 1100)
    assert other_steps_of(timeline(eager)) == ([], 0.0)


@pytest.mark.parametrize(
    ("beside", "start_ns", "before"),
    [
        ((5_000, 6_000), 13_000, "first"),  # 3 µs after it on its stream: queued
        ((5_000, 6_000), 13_001, "beside"),  # later: what ended last
        ((2_000, 8_000), 10_000, "first"),  # at once
        ((2_000, 7_000), 9_999, "beside"),  # before it ended, as only other streams let it
    ],
)
def test_a_kernel_waits_for_what_it_was_queued_behind_else_for_what_ended_last(
    beside: tuple[int, int], start_ns: int, before: str
) -> None:
    kernels = {
        "first": kernel_span()._replace(start_ns=0, duration_ns=10_000),
        "beside": kernel_span()._replace(start_ns=beside[0], duration_ns=beside[1], stream=1),
    }
    last = kernel_span()._replace(start_ns=start_ns, duration_ns=500)

    assert critical_path_of([*kernels.values(), last])[:2] == [last, kernels[before]]


def test_other_steps_have_their_share_of_the_time_without_the_first_of_each_kind() -> None:
    """4 x 10 us of training, and 10 of inference beyond the first."""
    steps = [
        step_span(microseconds=10.0),
        step_span(microseconds=10.0, represents=4),
        step_span("eval", microseconds=5.0),
        step_span("eval", microseconds=5.0, represents=2),
    ]

    [found], share = other_steps_of(timeline(steps))

    assert (found.kind, found.num_steps, found.total_ns, share) == ("eval", 2, 10_000, 0.2)
