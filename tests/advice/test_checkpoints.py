"""Checkpoints made in a recording, compared with programs that checkpoint."""

from __future__ import annotations

import pytest

import neusight
from neusight.advice.checkpoints import with_checkpoints
from small_net import BLOCKS, peak, train


@pytest.mark.parametrize("half", [False, True])
def test_checkpoints_save_what_checkpointing_saves(half: bool) -> None:
    changed = with_checkpoints(train(half=half).recording, BLOCKS)

    assert peak(changed) == pytest.approx(train(half=half, recompute=True).peak_memory_bytes, 0.01)


def test_checkpoints_cost_what_checkpointing_costs(plain: neusight.Forecast) -> None:
    real = train(recompute=True)

    changed = plain.of(with_checkpoints(plain.recording, BLOCKS))

    assert changed.gpu_busy_us == pytest.approx(real.gpu_busy_us, 0.03)
    assert changed.gpu_busy_us > 1.1 * plain.gpu_busy_us


def test_what_is_checkpointed_already_is_left_alone() -> None:
    recording = train(recompute=True).recording

    assert with_checkpoints(recording, BLOCKS) == recording
