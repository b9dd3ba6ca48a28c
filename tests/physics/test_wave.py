"""What tails cost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.physics.wave import effective_waves


def test_tail_wave_costs_a_whole_wave_at_full_tail_cost() -> None:
    waves = np.array([0.3, 1.0, 1.01, 2.5])

    assert effective_waves(waves, 1.0).tolist() == [1.0, 1.0, 2.0, 3.0]


def test_without_tail_cost_a_part_costs_its_share() -> None:
    assert effective_waves(np.array([0.3, 2.5]), 0.0).tolist() == [1.0, 2.5]


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1))
def test_more_waves_never_cost_less(waves: float, more: float, tail_cost: float) -> None:
    pair = effective_waves(np.array([waves, waves + more]), tail_cost)

    assert pair[1] >= pair[0] * (1 - 1e-12)
