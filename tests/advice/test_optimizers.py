"""Optimizers changed in a recording, compared with programs that use such."""

from __future__ import annotations

from dataclasses import replace

import pytest

import neusight
from neusight.advice.optimizers import (
    with_8bit_states,
    with_foreach_off,
    with_fused_optimizer,
    with_optimizer_steps,
)
from neusight.memory.placement import memory_on
from neusight.recording.recording import Alloc, Entry, HostWork, Mark, Recording, Step
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


@pytest.mark.parametrize(
    ("numel", "num_bytes"),
    [(4095, 4 * 4095), (4096, 4096 + 4 * 16), (4097, 4097 + 4 * 17), (2**20, 2**20 + 4 * 4096)],
)
def test_a_state_in_8_bits_has_a_scale_for_each_256_elements(numel: int, num_bytes: int) -> None:
    state = Alloc(0, 4 * numel, op="aten::zeros_like", kind="optimizer_state")
    kept = Alloc(1, 4 * numel, op="aten::zeros_like", kind="gradient")
    recording = Recording((Step("train", (state, kept)),), gpu="A100", torch_version="2.13.0")

    [step] = with_8bit_states(recording).steps

    assert step.entries == (replace(state, num_bytes=num_bytes), kept)


def test_what_lies_between_the_marks_of_a_step_is_the_optimizers() -> None:
    name, work = "Optimizer.step#SGD.step", HostWork("cpu ops", 1.0)
    begin, end = Mark("annotation_begin", name), Mark("annotation_end", name)
    entries: tuple[Entry, ...] = (work, begin, work, begin, work, end, work, end, work)

    assert [is_own for _, is_own in with_optimizer_steps(entries)] == [
        False, True, True, True, True, True, True, False, False,
    ]  # fmt: skip
