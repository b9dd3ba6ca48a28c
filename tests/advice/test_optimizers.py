"""Optimizers changed in a recording, compared with programs that use such."""

from __future__ import annotations

import pytest

import neusight
from neusight.advice.optimizers import with_8bit_states, with_foreach_off, with_fused_optimizer
from neusight.memory.placement import memory_on
from small_net import peak, train


def test_a_fused_optimizer_keeps_nothing_in_between() -> None:
    small = train(batch=1)

    changed = with_fused_optimizer(small.recording)

    assert peak(changed) < 0.95 * small.peak_memory_bytes
    assert peak(changed) == pytest.approx(train(batch=1, fused=True).peak_memory_bytes, 0.005)


def test_an_optimizer_without_foreach_keeps_little() -> None:
    small = train(batch=1)

    changed = with_foreach_off(small.recording)

    assert peak(changed) == pytest.approx(train(batch=1, foreach=False).peak_memory_bytes, 0.03)


def test_states_in_8_bits_are_a_quarter_and_a_scale(plain: neusight.Forecast) -> None:
    before = memory_on(plain.recording, plain.gpu).by_category["optimizer_state"]
    small = sum(
        alloc.num_bytes
        for alloc in plain.memory.alive_at_peak
        if alloc.kind == "optimizer_state" and alloc.num_bytes < 4 * 4096
    )

    after = memory_on(with_8bit_states(plain.recording), plain.gpu).by_category["optimizer_state"]

    assert after - small == pytest.approx((before - small) * (1 + 4 / 256) / 4, abs=4096)
