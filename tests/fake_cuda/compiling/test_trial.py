"""Models are compiled on trial, without a change of the program that calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_net import Net, quiet, steady
from torch import nn

import neusight
from neusight.forecast import forecast_options
from neusight.recording.recording import TRIAL_OPTION
from neusight.session import Session, SessionOptions


class Loss(nn.Module):
    def forward(self, out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, wanted)


def program() -> None:
    net, loss = Net().cuda(), Loss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        out = net(torch.randn(128, 256, device="cuda"))
        loss(out, torch.randint(0, 64, (128,), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def tried() -> neusight.Forecast:
    call: Any = nn.Module.__call__
    options = SessionOptions(forecast_options("H100"), compiles_models=True)
    with quiet(), Session(options) as forecast:
        program()
    assert nn.Module.__call__ is call
    return forecast


def test_the_model_runs_as_if_it_had_been_compiled(
    tried: neusight.Forecast, compiled: neusight.Forecast
) -> None:
    def kernels(forecast: neusight.Forecast) -> list[str]:
        return [c.signature.op for c in steady(forecast) if c.module.startswith("Net")]

    assert kernels(tried) == kernels(compiled)
    assert [frame.recompiled for frame in tried.recording.compiled] == [""]
    assert tried.warnings == []


def test_what_was_compiled_is_said(tried: neusight.Forecast) -> None:
    assert tried.recording.options[TRIAL_OPTION] == "Net"


def test_losses_without_parameters_and_optimizers_stay_as_they_are(
    tried: neusight.Forecast,
) -> None:
    ops = [call.signature.op for call in steady(tried) if not call.module.startswith("Net")]

    assert "aten::_log_softmax" in ops
    assert "aten::_foreach_add_" in ops
    assert not any(op.startswith("inductor") for op in ops)


def test_modules_of_torchs_own_are_compiled_too() -> None:
    options = SessionOptions(forecast_options("H100"), compiles_models=True)

    with quiet(), Session(options) as forecast, torch.no_grad():
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda()
        for _ in range(3):
            model(torch.randn(8, 64, device="cuda"))

    assert forecast.recording.options[TRIAL_OPTION] == "Sequential"
    assert any(call.signature.op.startswith("inductor::triton") for call in steady(forecast))


def test_what_the_program_compiles_itself_is_not_compiled_again() -> None:
    options = SessionOptions(forecast_options("H100"), compiles_models=True)

    with quiet(), Session(options) as forecast:
        model: Any = torch.compile(Net().cuda().eval(), backend="eager")
        model(torch.randn(8, 256, device="cuda"))

    assert TRIAL_OPTION not in forecast.recording.options
