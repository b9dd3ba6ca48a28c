"""Fused optimizers of packages step in one kernel, with states in float32."""

from __future__ import annotations

import pytest
import torch
from stub_calls import BF16

import neusight


@pytest.mark.parametrize(
    ("home", "name", "bytes_an_element"),
    [
        # 16-bit parameter and gradient are read, two float32 states too; all but the gradient
        # are written.
        ("apex.optimizers", "FusedAdam", 2 + 2 + 8 + 2 + 8),
        ("deepspeed.ops.adam", "FusedAdam", 2 + 2 + 8 + 2 + 8),
        ("apex.optimizers", "FusedSGD", 2 + 2 + 2),
    ],
)
def test_a_step_is_one_kernel(home: str, name: str, bytes_an_element: int) -> None:
    import importlib

    with neusight.forecast_on("H100") as forecast:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda().to(BF16)
        optimizer = getattr(importlib.import_module(home), name)(model.parameters(), lr=0.1)
        model(torch.ones(8, 64, device="cuda", dtype=BF16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    kernels = [k for k, _ in forecast.kernels if k.kernel_class.value == "optimizer"]
    elements = sum(parameter.numel() for parameter in model.parameters())

    assert [kernel.num_bytes for kernel in kernels] == [bytes_an_element * elements]
    assert any(home.partition(".")[0] in line and name in line for line in forecast.warnings)


def test_adam_counts_its_steps() -> None:
    with neusight.forecast_on("H100"):
        from apex.optimizers import FusedAdam  # type: ignore[import-not-found]

        weight = torch.nn.Parameter(torch.ones(8, device="cuda", dtype=BF16))
        optimizer = FusedAdam([weight], lr=0.1)
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()

    assert optimizer.param_groups[0]["step"] == 3


def test_momentum_has_a_buffer_of_the_parameters_type() -> None:
    with neusight.forecast_on("H100"):
        from apex.optimizers import FusedSGD

        weight = torch.nn.Parameter(torch.ones(8, device="cuda", dtype=BF16))
        optimizer = FusedSGD([weight], lr=0.1, momentum=0.9)
        weight.sum().backward()
        optimizer.step()
        buffer = optimizer.state[weight]["momentum_buffer"]

    assert buffer.dtype is BF16
