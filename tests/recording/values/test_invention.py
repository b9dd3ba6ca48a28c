"""What nobody can know is invented by a stated policy, and said."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.recording.values.invention import FIRST_FLOAT, FLOAT_DECAY, Invention
from recorded_programs import invented, values_of


def test_unknown_numbers_fall_slowly_at_each_line_and_stay_positive() -> None:
    def program() -> tuple[list[float], float]:
        losses = [torch.randn(3, device="cuda").sum().item() for _ in range(5)]
        return losses, torch.randn(3, device="cuda").mean().item()

    losses, other = values_of(program)
    assert losses == pytest.approx([FIRST_FLOAT * FLOAT_DECAY**n for n in range(5)])
    assert other == FIRST_FLOAT
    assert all(value > 0 for value in losses)


def test_invented_reads_are_reported_with_their_line() -> None:
    with neusight.forecast_on("H100") as forecast:
        loss = torch.randn(8, device="cuda").mean()
        line = sys._getframe().f_lineno + 1
        loss.item()
        torch.tensor(1.0, device="cuda").item()

    assert f"test_invention.py:{line}" in invented(forecast)
    assert invented(forecast).count("test_invention.py:") == 1


def test_the_same_program_invents_the_same() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        x = torch.randn(128, device="cuda")
        return [
            x.sum().item(), x.cpu().tolist(), model.weight.sum().item(),
            model(torch.ones(1, 64)).tolist(),
        ]  # fmt: skip

    assert values_of(program) == values_of(program)


def test_numbers_that_nobody_knows_are_of_their_dtype() -> None:
    invention = Invention()

    assert invention.values((2,), torch.bool).tolist() == [False, False]
    assert invention.values((1, 2), torch.int64).tolist() == [[1, 1]]
    assert invention.values((), torch.float64).item() == FIRST_FLOAT
    assert invention.sites == set()
