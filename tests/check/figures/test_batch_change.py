"""The batch of a step, then and now: which figures are of one sample, and which of one token."""

from __future__ import annotations

import pytest

from neusight.integrations.check.figures.batch_change import (
    BatchChange,
    batch_change_of,
    intake_figures,
    rate_of,
)
from neusight.recording.recording import Batch


def figures(samples: int | None, tokens: int | None = None) -> dict[str, float]:
    return intake_figures(Batch(samples=samples, tokens=tokens), 1e6)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (figures(8), figures(16), BatchChange("sample", 8, 16)),
        (figures(8, 1024), figures(16, 2048), BatchChange("sample", 8, 16)),
        (figures(8, 1024), figures(8, 2048), BatchChange("token", 1024, 2048)),
        (figures(8, 1024), figures(4, 2048), BatchChange("token", 1024, 2048)),
        (figures(None, 1024), figures(None, 512), BatchChange("token", 1024, 512)),
        (figures(8, 1024), figures(16, 1024), None),
        (figures(8), figures(8), None),
        (figures(8), {}, None),
        ({}, figures(8), None),
    ],
    ids=["images", "texts", "longer", "fewer, longer", "tokens", "cut up", "same", "lost", "new"],
)
def test_another_batch_is_reported_by_samples_unless_each_is_of_another_length(
    before: dict[str, float], now: dict[str, float], expected: BatchChange | None
) -> None:
    assert batch_change_of(before, now) == expected


def test_a_rate_is_of_tokens_where_both_are_known() -> None:
    found = intake_figures(Batch(samples=8, tokens=8192), 4096.0)

    metric_and_rate = rate_of(found)

    assert metric_and_rate is not None
    assert (metric_and_rate[0].unit, metric_and_rate[1]) == ("tokens/s", 2_000_000.0)
    assert rate_of(intake_figures(Batch(), 4096.0)) is None


@pytest.mark.parametrize(
    ("flops", "is_known"), [(50, True), (49, False), (800, True), (801, False), (0, True)]
)
def test_flops_that_grow_far_otherwise_contradict_a_batch(flops: float, is_known: bool) -> None:
    before, now = {**figures(8), "flops": 100.0}, {**figures(16), "flops": flops}

    assert (batch_change_of(before, now) is not None) is is_known


def test_rates_have_three_digits_and_no_batch_has_none() -> None:
    assert intake_figures(Batch(samples=1), 3e6) == {
        "samples_per_step": 1, "samples_per_second": 0.333,
    }  # fmt: skip
    assert intake_figures(Batch(samples=0, tokens=2), 0.0) == {"tokens_per_step": 2}
