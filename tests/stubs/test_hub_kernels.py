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


def test_experts_are_refused_with_what_to_do(integration: Any) -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        with pytest.raises(NotImplementedError, match="pip install kernels"):
            integration._FINEGRAINED_FP8.grouped_matmul()


def test_nothing_is_left_behind(integration: Any) -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")

    assert integration._FINEGRAINED_FP8 is None
