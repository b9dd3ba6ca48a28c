"""Attention over jagged nested tensors takes the kernels that torch.nested takes on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import neusight


def jagged(*lengths: int, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> Any:
    rows = [torch.randn(length, width) for length in lengths]
    return torch.nested.nested_tensor(
        rows, layout=torch.jagged, device="cuda", dtype=dtype, requires_grad=True
    )


def heads(tensor: Any) -> Any:
    return tensor.unflatten(-1, (4, -1)).transpose(1, 2)


def names_of(forecast: neusight.Forecast) -> list[str]:
    return [kernel.name for kernel, _ in forecast.kernels if "attention" in kernel.name]


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        (torch.bfloat16, 64, "flash_attention"),
        (torch.float16, 96, "flash_attention"),
        (torch.float32, 64, "efficient_attention"),
    ],
)
def test_sequences_of_any_length_run_packed_both_ways(
    dtype: torch.dtype, width: int, expected: str
) -> None:
    with neusight.forecast_on("H100") as forecast:
        tokens = jagged(30, 50, 7, width=width, dtype=dtype)
        q = heads(tokens)
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        back = out.transpose(1, 2).flatten(-2)
        back.values().sum().backward()
        assert [tuple(part.shape) for part in back.unbind()] == [
            (30, width), (50, width), (7, width),
        ]  # fmt: skip
        assert tokens.grad.values().shape == (87, width)

    assert expected in names_of(forecast)
    assert f"{expected}_backward" in names_of(forecast)
    assert forecast.unmapped == []


def test_keys_may_have_other_lengths_than_queries() -> None:
    with neusight.forecast_on("A100") as forecast:
        q, k = heads(jagged(3, 5)), heads(jagged(7, 2))
        out = F.scaled_dot_product_attention(q, k, k)
        assert [tuple(part.shape) for part in out.unbind()] == [(4, 3, 16), (4, 5, 16)]

    assert names_of(forecast) == ["flash_attention"]


def test_a_backend_that_the_program_turned_off_is_not_taken() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with neusight.forecast_on("H100") as forecast, sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        q = heads(jagged(30, 50))
        F.scaled_dot_product_attention(q, q, q)

    assert names_of(forecast) == ["efficient_attention"]


def test_jagged_tensors_move_to_the_gpu_and_back() -> None:
    rows = [torch.randn(3, 8), torch.randn(5, 8)]

    with neusight.forecast_on("H100"):
        there = torch.nested.nested_tensor(rows, layout=torch.jagged).to("cuda")
        here: Any = there.cpu()
        assert (there.device.type, here.device.type) == ("cuda", "cpu")
        assert there.half().shape[1] == there.shape[1]

    assert here.offsets().tolist() == [0, 3, 8]


def test_compiled_code_on_jagged_tensors_runs_eager_and_says_so() -> None:
    with neusight.forecast_on("H100") as forecast:
        out = torch.compile(lambda x: torch.relu(x * 2))(jagged(3, 5))
        assert out.values().shape == (8, 64)

    assert any("forecast as eager" in line for line in forecast.warnings)
