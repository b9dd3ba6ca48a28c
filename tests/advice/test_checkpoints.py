"""Checkpoints made in a recording, compared with programs that checkpoint."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

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


class Shift(nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return F.relu(data * 2) + 1  # of which the backward needs relu's result alone


class Chain(nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.first, self.recompute = nn.Linear(1024, 1024), recompute
        self.blocks = nn.ModuleList(Shift() for _ in range(4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        data = self.first(data)
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.recompute else block(data)
        return data


def test_what_goes_into_a_checkpointed_module_is_kept_until_it_has_run_again() -> None:
    def trained(recompute: bool) -> neusight.Forecast:
        with neusight.forecast_on("A100") as forecast:
            model = Chain(recompute).cuda()
            for _ in range(3):
                model(torch.ones(1024, 1024, device="cuda")).sum().backward()
        return forecast

    recording = trained(recompute=False).recording
    changed = with_checkpoints(recording, frozenset(f"Chain.blocks.{at}" for at in range(4)))

    assert changed != recording
    assert peak(changed) == pytest.approx(trained(recompute=True).peak_memory_bytes, 0.01)
