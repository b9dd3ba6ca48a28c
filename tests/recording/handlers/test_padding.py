"""An encoder leaves out padded tokens in eval, as on a GPU, where the mask is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import neusight


def encoder(dtype: torch.dtype = torch.float32) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2).to("cuda", dtype).eval()


def padding(lengths: Sequence[int], width: int) -> torch.Tensor:
    return torch.arange(width)[None, :] >= torch.tensor(lengths)[:, None]


def forecast_of(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> neusight.Forecast:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        tokens = torch.randn(len(lengths), 32, 64, device="cuda", dtype=dtype)
        out = encoder(dtype)(tokens, src_key_padding_mask=padding(lengths, 32).cuda())
        assert (out.shape, out.dtype) == ((len(lengths), 32, 64), dtype)
        assert out.is_contiguous()
    assert forecast.unmapped == []
    return forecast


def flops_of(forecast: neusight.Forecast, kernel_class: str) -> int:
    kernels = [kernel for kernel, _ in forecast.kernels]
    return sum(k.flops for k in kernels if k.kernel_class.value == kernel_class)


def test_products_are_of_the_tokens_that_are_there() -> None:
    """A layer has 12 times 64 x 64 weights less four times (its inner width is 128)."""
    forecast = forecast_of([32, 10, 6])

    assert flops_of(forecast, "gemm") == 2 * 48 * 2 * (4 * 64 * 64 + 2 * 64 * 128)
    assert forecast.warnings == []


def test_attention_is_of_each_sequence_alone() -> None:
    flops = flops_of(forecast_of([30, 10, 14, 2]), "attention")

    assert flops == pytest.approx(2 * 4 * 64 * (900 + 100 + 196 + 4), rel=0.1)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, "efficient_attention"), (torch.bfloat16, "flash_attention")],
)
def test_the_kernel_is_that_of_packed_sequences(dtype: torch.dtype, expected: str) -> None:
    names = {kernel.name for kernel, _ in forecast_of([32, 10], dtype).kernels}

    assert expected in names


def test_a_mask_that_nobody_knows_leaves_all_and_that_is_said() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        tokens = torch.randn(2, 32, 64, device="cuda")
        unknown = torch.rand(2, 32 * 64, device="cuda")[:, ::64] > 0.5
        assert encoder()(tokens, src_key_padding_mask=unknown).shape == (2, 32, 64)

    assert any("padded tokens are computed too" in warning for warning in forecast.warnings)


def test_padding_before_tokens_is_computed() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        mask = padding([4, 8], 8).flip(1).cuda()
        encoder()(torch.randn(2, 8, 64, device="cuda"), src_key_padding_mask=mask)

    weights, scores = 2 * 16 * (4 * 64 * 64 + 2 * 64 * 128), 2 * (2 * 64) * 8 * 8
    assert flops_of(forecast, "gemm") == 2 * (weights + 2 * scores)
