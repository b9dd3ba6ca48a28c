"""Parameters on the CPU hold no data until somebody computes on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight
from recorded_programs import values_of


def test_parameters_made_inside_hold_no_data_until_they_are_read() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(4096, 4096)
        nn.init.trunc_normal_(model.weight, std=0.02)
        model.cuda()

    assert not any("seeded random values" in text for text in forecast.warnings)


def test_cpu_code_computes_on_filled_parameters_and_is_reported() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.zeros(1, device="cuda")
        model: Any = nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.Linear(100, 10))
        out = model(torch.ones(2, 100))
        loss = F.cross_entropy(out, torch.tensor([1, 2]))
        loss.backward()
        finite = [
            loss.isfinite().item(), model[0].weight.sum().isfinite().item(),
            all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None),
        ]  # fmt: skip
        consistent = [
            model[0].weight.sum().item() == model[0].weight.sum().item(),
            model[0].weight[0].tolist() == model[0].weight.tolist()[0],
            torch.equal(model[0].weight, model[0].weight.clone()),
        ]

    assert finite == [True, True, True]
    assert consistent == [True, True, True]
    assert any("seeded random values" in text for text in forecast.warnings)


def test_parameters_are_filled_as_transformers_initialises_them() -> None:
    """With a standard deviation of 0.02."""
    spread = values_of(lambda: nn.Linear(100, 100).weight.detach().clone().std().item())

    assert spread == pytest.approx(0.02, rel=0.05)


def test_training_on_the_cpu_inside_moves_the_parameters() -> None:
    def program() -> tuple[bool, bool]:
        model = nn.Linear(100, 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        for _ in range(2):
            model(torch.ones(2, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return bool(torch.equal(before, model.weight)), bool(model.weight.isfinite().all())

    assert values_of(program) == (False, True)


def test_like_factories_ask_parameters_for_their_shape_only() -> None:
    def program() -> tuple[float, float]:
        weight = nn.Linear(100, 100).weight
        return torch.zeros_like(weight).sum().item(), torch.ones_like(weight).sum().item()

    assert values_of(program) == (0.0, 10_000.0)
