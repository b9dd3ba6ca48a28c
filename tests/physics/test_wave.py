"""Waves, tails and occupancy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.physics.wave import ctas_per_sm, effective_waves, num_waves


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


def test_occupancy_is_the_tightest_limit() -> None:
    h100 = find_gpu("H100")

    assert ctas_per_sm(h100, threads_per_cta=1024) == 2
    assert ctas_per_sm(h100, threads_per_cta=128, registers_per_thread=255) == 2
    assert ctas_per_sm(h100, threads_per_cta=128, shared_memory_bytes=100_000) == 2
    assert ctas_per_sm(h100, threads_per_cta=32) == 32
    assert ctas_per_sm(h100, threads_per_cta=10**6) == 1


def test_num_waves_is_ctas_over_slots() -> None:
    assert num_waves(264, find_gpu("H100")) == 2.0
    assert num_waves(264, find_gpu("H100"), ctas_per_sm=2) == 1.0
