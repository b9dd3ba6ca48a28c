"""An op call becomes plain values, on any device; what a call launches is what a forecast hears."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import neusight
from neusight.recording.recording import TensorSpec
from neusight.recording.signature import kernels_launched_by, math_mode, signature_of, spec_of


def test_a_signature_holds_every_argument_by_name_with_defaults() -> None:
    x = torch.ones(2, 3, dtype=torch.float16)
    out = torch.ones(2, 3)

    signature = signature_of(torch.ops.aten.add.Tensor, (x, 1.5), {}, out)

    assert (signature.op, signature.overload) == ("aten::add", "Tensor")
    assert signature.arguments == (
        ("self", TensorSpec((2, 3), (3, 1), "float16", "cpu")), ("other", 1.5), ("alpha", 1)
    )  # fmt: skip
    assert signature.outputs == (TensorSpec((2, 3), (3, 1), "float32", "cpu"),)


def test_strides_are_those_of_the_tensor() -> None:
    with neusight.forecast_on("H100"):
        x = torch.empty(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
        spec = spec_of(x)

    assert spec == TensorSpec((2, 3, 4, 5), (60, 1, 15, 3), "float32", "cuda")
    assert spec.is_channels_last


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
def test_what_a_call_launches_is_what_a_forecast_hears(
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


def test_the_switches_of_torch_are_those_of_now() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            found = math_mode()
    finally:
        torch.set_float32_matmul_precision(before)

    assert (found.matmul_tf32, found.cudnn_benchmark, found.cudnn_tf32) == (True, True, False)
