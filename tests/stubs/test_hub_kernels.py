"""Kernels of the Hugging Face hub: a layer in FP8 is one product that reads eight bits a weight."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import neusight

IN, OUT, BLOCK = 512, 1024, 128
_INTEGRATION = "transformers.integrations.finegrained_fp8"


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of transformers that keeps the kernels, before they were fetched."""
    module: Any = ModuleType(_INTEGRATION)
    module.FineGrainedFP8, module._FINEGRAINED_FP8 = SimpleNamespace, None
    monkeypatch.setitem(sys.modules, _INTEGRATION, module)
    return module


def test_a_product_reads_weights_of_eight_bits_and_their_scales(integration: Any) -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.zeros(2, 8, IN, device="cuda", dtype=torch.bfloat16)
        weight = torch.zeros(OUT, IN, device="cuda", dtype=torch.float8_e4m3fn)
        scales = torch.ones(OUT // BLOCK, IN // BLOCK, device="cuda")
        out = integration._FINEGRAINED_FP8.matmul(x, weight, scales, [BLOCK, BLOCK], x.dtype)

    assert (tuple(out.shape), out.dtype) == ((2, 8, OUT), torch.bfloat16)
    (product,) = [kernel for kernel, _ in forecast.kernels if kernel.name == "scaled_gemm_by_row"]
    assert product.dtype == "float8_e4m3fn"
    assert product.bytes_read == 16 * IN * 2 + OUT * IN + (OUT // BLOCK) * (IN // BLOCK) * 4
    assert "kernels is not installed; its functions are forecast by stubs: finegrained-fp8" in str(
        forecast.warnings
    )


@pytest.mark.parametrize(("rows", "read"), [(2, 2), (64, 8)])
def test_experts_read_the_weights_of_those_that_get_rows(
    integration: Any, rows: int, read: int
) -> None:
    experts = 8
    with neusight.forecast_on("H100") as forecast:
        x = torch.zeros(rows, IN, device="cuda", dtype=torch.bfloat16)
        weight = torch.zeros(experts, OUT, IN, device="cuda", dtype=torch.float8_e4m3fn)
        scales = torch.ones(experts, OUT // BLOCK, IN // BLOCK, device="cuda")
        offsets = torch.zeros(experts, device="cuda", dtype=torch.int32)
        kernels = integration._FINEGRAINED_FP8
        out = kernels.grouped_matmul(x, weight, scales, offsets=offsets, block_size=[BLOCK, BLOCK])
        kernels.batched_matmul(x, weight, scales, expert_ids=offsets, block_size=[BLOCK, BLOCK])

    assert (tuple(out.shape), out.dtype) == ((rows, OUT), torch.bfloat16)
    products = [kernel for kernel, _ in forecast.kernels if kernel.name == "grouped_gemm"]
    assert [product.dtype for product in products] == ["float8_e4m3fn"] * 2
    assert {product.flops for product in products} == {2 * rows * IN * OUT}
    of_each = OUT * IN + (OUT // BLOCK) * (IN // BLOCK) * 4
    assert {product.bytes_read for product in products} == {rows * IN * 2 + read * of_each}


def test_nothing_is_left_behind(integration: Any) -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")

    assert integration._FINEGRAINED_FP8 is None
