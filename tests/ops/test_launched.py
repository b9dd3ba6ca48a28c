"""What a call launches is what a forecast records, on any device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import neusight
from neusight.ops.launched import kernels_launched_by


def linear() -> Callable[[], object]:
    data, weight = torch.randn(8, 16, device="cuda"), torch.randn(4, 16, device="cuda")
    return lambda: F.linear(data, weight)


def backward() -> Callable[[], object]:
    data = torch.randn(8, 16, device="cuda", requires_grad=True)
    loss = F.gelu(data).sum()
    return lambda: torch.autograd.grad(loss, [data], retain_graph=True)


def optimizer() -> Callable[[], object]:
    parameters = [torch.randn(8, device="cuda", requires_grad=True) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    made = torch.optim.AdamW(parameters)
    made.step()
    return made.step


@pytest.mark.parametrize("make", [linear, backward, optimizer])
def test_what_a_call_launches_is_what_a_forecast_records(
    make: Callable[[], Callable[[], object]],
) -> None:
    with neusight.forecast_on("H100", predictor="roofline") as forecast:
        call = make()
        forecast.step()
        kernels, unmapped = kernels_launched_by(call)

    recorded = [kernel for kernel, _ in forecast.kernels]
    assert unmapped == []
    assert len(kernels) > 0
    assert list(kernels) == recorded[-len(kernels) :]


def test_on_the_cpu_nothing_is_launched() -> None:
    x = torch.ones(2)

    assert kernels_launched_by(lambda: x + x) == ((), [])
