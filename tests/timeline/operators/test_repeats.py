"""Steps that are the same as an earlier one but for when they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.timeline.operators.repeats import (
    Offset,
    Repeat,
    later_kernels,
    later_spans,
    offset_between,
    repeats_of,
)
from neusight.timeline.operators.tree import with_operators
from neusight.timeline.spans import StepSpan, Timeline


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    """Six steps, of which the last ones are the same."""
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            forecast.step()
    return forecast.timeline


def last_two(timeline: Timeline) -> tuple[StepSpan, StepSpan]:
    earlier, later = timeline.steps[-2:]
    return earlier, later


def test_an_equal_step_is_the_earlier_one_moved(timeline: Timeline) -> None:
    earlier, later = last_two(timeline)

    offset = offset_between(timeline, earlier, later)

    assert offset is not None
    assert offset.time_ns == later.start_ns - earlier.start_ns > 0
    host = timeline.host[earlier.first_host : earlier.last_host]
    kernels = timeline.kernels[earlier.first_kernel : earlier.last_kernel]
    assert tuple(later_spans(host, offset)) == timeline.host[later.first_host : later.last_host]
    assert (
        tuple(later_kernels(kernels, offset))
        == timeline.kernels[later.first_kernel : later.last_kernel]
    )


def test_equal_steps_repeat_the_first_of_them(timeline: Timeline) -> None:
    steps = timeline.steps[-3:]

    first, *others = repeats_of(timeline, steps)

    assert first == Repeat(0, Offset(0, 0, 0))
    for other, step in zip(others, steps[1:], strict=True):
        assert other == Repeat(0, offset_between(timeline, steps[0], step) or Offset(0, 0, 0))
        assert other.offset.time_ns > 0
        assert other.offset.position == step.first_host - steps[0].first_host


def test_a_step_that_lasts_longer_is_another(timeline: Timeline) -> None:
    earlier, later = last_two(timeline)

    assert offset_between(timeline, earlier, replace(later, end_ns=later.end_ns + 1)) is None


@pytest.mark.parametrize("change", ["start_ns", "duration_ns", "correlation", "name"])
def test_a_step_in_which_one_span_differs_is_another(timeline: Timeline, change: str) -> None:
    earlier, later = last_two(timeline)
    at = next(
        position
        for position in range(later.first_host, later.last_host)
        if timeline.host[position].correlation
    )
    span = timeline.host[at]
    old = getattr(span, change)
    fields: dict[str, Any] = {change: f"{old}2" if change == "name" else old + 1}
    changed = span._replace(**fields)
    host = (*timeline.host[:at], changed, *timeline.host[at + 1 :])

    assert offset_between(replace(timeline, host=host), earlier, later) is None


def test_a_step_in_which_one_kernel_differs_is_another(timeline: Timeline) -> None:
    earlier, later = last_two(timeline)
    at = later.last_kernel - 1
    kernel = timeline.kernels[at]
    changed = kernel._replace(duration_ns=kernel.duration_ns + 1)
    kernels = (*timeline.kernels[:at], changed, *timeline.kernels[at + 1 :])

    assert offset_between(replace(timeline, kernels=kernels), earlier, later) is None


def test_operators_of_a_repeated_step_are_those_of_a_step_alone(timeline: Timeline) -> None:
    together = with_operators(timeline, timeline.steps[-3:])
    alone = with_operators(timeline, timeline.steps[-1:])

    step = together.steps[-1]
    first = step.first_host
    moved = [
        span._replace(parent=span.parent - first if span.parent >= 0 else span.parent)
        for span in together.host[first : step.last_host]
    ]
    kernels = [
        kernel._replace(op=kernel.op - first)
        for kernel in together.kernels[step.first_kernel : step.last_kernel]
    ]
    assert tuple(moved) == alone.host
    assert tuple(kernels) == alone.kernels
