"""What would make a program fit, compared with programs that do just that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import neusight
from neusight.advice.checkpoints import with_checkpoints
from neusight.advice.memory import memory_advice
from neusight.advice.optimizers import with_8bit_states, with_foreach_off, with_fused_optimizer
from neusight.advice.remedies import recorded_batch, with_batch
from neusight.advice.tensors import tensors_of
from neusight.memory.placement import memory_of, memory_on
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Alloc, Entry, Recording, Step

MIB, GIB = 2**20, 2**30
BLOCKS = frozenset(f"Net.blocks.{number}" for number in range(6))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = data + F.dropout(self.down(F.gelu(self.up(self.norm(data)))))
        return result


class Net(nn.Module):
    def __init__(self, width: int, recompute: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000)
        self.blocks = nn.ModuleList(Block(width) for _ in BLOCKS)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        data = self.embedding(tokens)
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.recompute else block(data)
        result: torch.Tensor = self.head(data)
        return result


def train(
    *,
    batch: int = 16,
    recompute: bool = False,
    half: bool = False,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> neusight.Forecast:
    with neusight.forecast_on("A100", with_stack=True) as forecast:
        model = Net(256, recompute).cuda()
        chosen = optimizer(model.parameters(), **options)
        for _ in range(3):
            tokens = torch.randint(1000, (batch, 128)).cuda()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(tokens).view(-1, 1000), tokens.view(-1))
            loss.backward()
            chosen.step()
            chosen.zero_grad()
            del loss, tokens
    return forecast


@pytest.fixture(scope="module")
def plain() -> neusight.Forecast:
    return train()


def peak(recording: Recording) -> int:
    return memory_on(recording, find_gpu("A100")).peak_allocated


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


@pytest.mark.parametrize("batch", [4, 24, 64])
def test_another_batch_needs_what_it_needs(plain: neusight.Forecast, batch: int) -> None:
    changed = with_batch(plain.recording, recorded=16, batch=batch)

    assert peak(changed) == pytest.approx(train(batch=batch).peak_memory_bytes, 0.002)


def test_another_batch_of_sequences_that_come_first_needs_what_it_needs() -> None:
    def recorded(batch: int) -> neusight.Forecast:
        with neusight.forecast_on("A100") as forecast:
            model = nn.LSTM(256, 256, 2).cuda()
            for _ in range(3):
                result, _ = model(torch.randn(50, batch, 256).cuda())
                result.square().mean().backward()
        return forecast

    changed = with_batch(recorded(64).recording, recorded=64, batch=160)

    assert peak(changed) == pytest.approx(recorded(160).peak_memory_bytes, 0.01)


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


def test_shapes_of_what_was_allocated_are_known(plain: neusight.Forecast) -> None:
    specs = tensors_of(plain.recording)

    named = {specs[id(alloc)].shape for alloc in plain.memory.alive_at_peak if id(alloc) in specs}
    assert {(2048, 1000), (16, 128, 1024), (1000, 256), (1024, 256)} <= named


def test_advice_tells_what_fits_and_by_how_much(plain: neusight.Forecast) -> None:
    limit = 560 * MIB

    advice = memory_advice(
        plain.recording,
        plain.gpu,
        limit_bytes=limit,
        latency_of=lambda changed: plain.of(changed).step_latency_us.median,
    )

    assert not advice.fits
    assert advice.needed_bytes > limit
    first = advice.remedies[0]
    assert first.what == "checkpoint Net.blocks.* (6 modules)"
    assert first.fits
    assert first.saved_bytes == advice.needed_bytes - first.total_bytes
    assert first.added_us is not None
    assert 0 < first.added_us < plain.step_latency_us.median
    assert advice.batch is not None
    assert advice.batch.recorded == 16
    assert 1 <= advice.batch.batch < 16
    largest, spec = next(item for item in advice.tensors if item[0].kind != "workspace")
    assert spec is not None
    assert (spec.shape, largest.num_bytes) == ((2048, 1024), 8 * MIB)
    assert largest.stack[0].partition(":")[0].endswith("test_memory.py")


def test_the_largest_batch_fits_and_one_more_does_not(plain: neusight.Forecast) -> None:
    limit = 700 * MIB
    found = memory_advice(plain.recording, plain.gpu, limit_bytes=limit).batch
    assert found is not None

    def fits(batch: int) -> bool:
        return memory_on(train(batch=batch).recording, plain.gpu, capacity_bytes=limit).fits

    assert fits(found.batch)
    assert not fits(found.batch + 1)


def test_needed_memory_suffices_and_less_does_not(plain: neusight.Forecast) -> None:
    needed = memory_advice(plain.recording, plain.gpu).needed_bytes

    assert memory_on(plain.recording, plain.gpu, capacity_bytes=needed).fits
    assert not memory_on(plain.recording, plain.gpu, capacity_bytes=int(needed * 0.985)).fits


def test_where_nothing_alone_suffices_all_together_are_tried(plain: neusight.Forecast) -> None:
    advice = memory_advice(plain.recording, plain.gpu, limit_bytes=470 * MIB)

    assert not any(remedy.fits for remedy in advice.remedies if "together" not in remedy.what)
    assert any("all of these together" in remedy.what for remedy in advice.remedies)


def test_inference_is_not_told_to_checkpoint() -> None:
    with neusight.forecast_on("A100") as forecast, torch.no_grad():
        model = Net(256, False).cuda().eval()
        for _ in range(3):
            model(torch.randint(1000, (16, 128)).cuda())

    advice = memory_advice(forecast.recording, forecast.gpu, limit_bytes=GIB // 2)

    assert not any("checkpoint" in remedy.what for remedy in advice.remedies)
    assert recorded_batch(forecast.recording).samples == 16


def test_nothing_recorded_needs_the_context_alone() -> None:
    advice = memory_advice(Recording((), gpu="A100", torch_version="2.13.0"), find_gpu("A100"))

    assert advice.fits
    assert advice.needed_bytes == find_gpu("A100").context_bytes
    assert advice.remedies == ()
    assert advice.batch is None


def test_a_batch_that_nothing_shows_is_not_guessed() -> None:
    entries: tuple[Entry, ...] = (Alloc(0, 4 * MIB, "net", "aten::relu"),)
    program = Recording((Step("eval", entries),), gpu="A100", torch_version="2.13.0")

    assert memory_advice(program, find_gpu("A100")).batch is None
    assert memory_of(program).peak_allocated == 4 * MIB
