"""Which step stands for a program, and what limits it: timelines written down by hand."""

from __future__ import annotations

import pytest

from neusight.predictors.kernel import Kernel
from neusight.timeline.steady import bound_of, kernels_of, steady_step_of, steady_steps_of
from timelines import kernel_span, step_span, timeline

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


@pytest.mark.parametrize(
    ("compute", "memory", "launch", "exposed", "bound"),
    [
        (30.0, 20.0, 0.0, 10.0, "compute"),
        (30.0, 20.0, 11.0, 10.0, "memory"),  # the shortest possible time is no arithmetic
        (30.0, 20.0, 0.0, 31.0, "communication"),
    ],
)
def test_the_largest_share_binds_and_collectives_count_where_only_they_run(
    compute: float, memory: float, launch: float, exposed: float, bound: str
) -> None:
    spans = [
        kernel_span(microseconds=compute, bound="compute"),
        kernel_span(microseconds=memory, bound="memory"),
        kernel_span(microseconds=launch, bound="launch"),
        kernel_span(ALL_REDUCE, 90.0, bound="communication"),
    ]
    step = step_span(busy=100.0, exposed=exposed, kernels=(0, 4))

    assert bound_of(step, timeline([step], spans)) == bound
