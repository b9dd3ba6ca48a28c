"""Durations as a forecast gives them."""

from __future__ import annotations

from neusight.predictors.physics.physical_time import whole_nanoseconds


def test_durations_are_whole_nanoseconds_and_never_nothing() -> None:
    assert whole_nanoseconds(1.23456) == 1.235
    assert whole_nanoseconds(0) == 0.001
