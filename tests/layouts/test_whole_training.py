"""Days and cost of a whole training, by hand."""

from __future__ import annotations

import pytest

from neusight.integrations.layouts.layout import Layout
from neusight.integrations.layouts.pricing import LayoutPrice
from neusight.integrations.layouts.whole_training import WholeTraining


def price(checkpoint_s: float = 50.0) -> LayoutPrice:
    zero = dict.fromkeys(
        ("compute_us", "recomputed_us", "exposed_us", "bubble_us", "optimizer_us", "straggler_us",
         "mfu", "memory_bytes", "capacity_bytes", "energy_j"), 0.0,
    )  # fmt: skip
    return LayoutPrice(
        Layout(shard=100),
        "H100-SXM5-80GB",
        1e6,
        tokens_per_s=1e6,
        checkpoint_s=checkpoint_s,
        **zero,
    )


def test_without_failures_it_takes_its_tokens_over_the_rate() -> None:
    found = WholeTraining(864e9).time_of(price())

    assert (found.days, found.gpu_hours, found.goodput) == (10.0, 24_000.0, 1.0)
    assert found.interval_s is None


def test_checkpoints_come_as_often_as_failures_ask_for() -> None:
    # 100 GPUs of 1,000 h: a failure every 36,000 s; √(2 · 50 · 36,000) = 1,897 s.
    found = WholeTraining(864e9, mtbf_hours=1000.0).time_of(price())

    assert found.failure_s == 36_000.0
    assert found.interval_s == pytest.approx(1897.37, abs=0.01)
    # Saving 2.64 %; half an interval, reading and ten minutes lost in 36,000 s: 4.44 %.
    assert found.goodput == pytest.approx(1 / (1.02635 * 1.04441), rel=1e-4)
    assert found.days == pytest.approx(10.0 / found.goodput)


def test_failures_that_come_more_often_leave_less() -> None:
    goodputs = [
        WholeTraining(1e12, mtbf_hours=hours).time_of(price()).goodput for hours in (1e6, 1e4, 1e2)
    ]

    assert goodputs == sorted(goodputs, reverse=True)
    assert 0.0 < goodputs[-1] < 0.8
