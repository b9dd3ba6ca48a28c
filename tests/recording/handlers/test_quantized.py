"""Products and gradients of numbers of few bits have the shapes and types that a GPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

import neusight

BFLOAT16 = torch.bfloat16


def fp8(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda").to(torch.float8_e4m3fn)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device="cuda").to(dtype)


def offsets() -> torch.Tensor:
    return torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")


BY_ROW, BLOCKS = ScalingType.RowWise, ScalingType.BlockWise1x32
SWIZZLE = SwizzleType.SWIZZLE_32_4_4


def grouped(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    multiply: Callable[..., torch.Tensor] = F.scaled_grouped_mm  # type: ignore[attr-defined]
    return multiply(left, right, ones(64), BY_ROW, ones(4, 32), BY_ROW, offs=ends)


GROUPS: dict[str, tuple[Callable[[], torch.Tensor], tuple[int, ...]]] = {
    "rows of groups": (
        lambda: grouped(fp8(64, 64), fp8(4, 32, 64).transpose(-2, -1), offsets()),
        (64, 32),
    ),
    "a matrix each": (
        lambda: grouped(fp8(4, 16, 64), fp8(4, 32, 64).transpose(-2, -1), None),
        (4, 16, 32),
    ),
    "inner groups": (lambda: grouped(fp8(32, 64), fp8(48, 64).t(), offsets()), (4, 32, 48)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_scaled_groups_have_their_shapes_by_the_newer_op_too(name: str) -> None:
    run, expected = GROUPS[name]

    with neusight.forecast_on("H100") as forecast:
        out = run()
        assert (tuple(out.shape), out.dtype) == (expected, BFLOAT16)

    assert "grouped_gemm" in {kernel.name for kernel, _ in forecast.kernels}
    assert forecast.unmapped == []


def test_rows_of_groups_are_aligned() -> None:
    with neusight.forecast_on("H100"):
        out = grouped(fp8(64, 64), fp8(4, 36, 64).transpose(-2, -1), offsets())
        assert (tuple(out.shape), out.stride()) == ((64, 36), (40, 1))


def test_products_take_all_scalings() -> None:
    """MXFP8 and NVFP4 on a Blackwell GPU, by torch's own shape rules."""
    with neusight.forecast_on("B200") as forecast:
        left, right = fp8(256, 256), fp8(256, 256).t()
        scales = ones(256 * 8, dtype=torch.float8_e8m0fnu)
        out = scaled_mm(left, right, scales, BLOCKS, scales, BLOCKS, SWIZZLE, SWIZZLE)
        assert (tuple(out.shape), out.dtype) == ((256, 256), BFLOAT16)
        packed = torch.zeros(256, 128, device="cuda", dtype=torch.uint8)
        four = packed.view(torch.float4_e2m1fn_x2)
        small = ones(256 * 16, dtype=torch.float8_e4m3fn)
        assert torch._scaled_mm(four, four.t(), small, small, out_dtype=BFLOAT16).shape == (
            256,
            256,
        )

    flops = [kernel.flops for kernel, _ in forecast.kernels if "gemm" in kernel.name]
    assert flops == [2 * 256**3] * 2
    assert forecast.unmapped == []


def test_weights_are_packed_to_four_bits() -> None:
    with neusight.forecast_on("H100") as forecast:
        weight = torch.ones(64, 64, dtype=torch.uint8, device="cuda")
        packed = torch._convert_weight_to_int4pack(weight, 2)
        assert (tuple(packed.shape), packed.dtype) == ((8, 4, 32, 1), torch.int32)

    assert forecast.unmapped == []


def learnable(device: str, *, by_channel: bool) -> list[Any]:
    data = torch.ones(4, 3, device=device, requires_grad=True)
    size = 3 if by_channel else 1
    scale, zero = (torch.full((size,), v, device=device, requires_grad=True) for v in (0.1, 0.0))
    if by_channel:
        out = torch._fake_quantize_learnable_per_channel_affine(
            data, scale, zero, 1, -128, 127, 1.0
        )
    else:
        out = torch._fake_quantize_learnable_per_tensor_affine(data, scale, zero, -128, 127, 1.0)
    out.sum().backward()
    return [
        (tuple(t.shape), t.dtype) for t in (out, data.grad, scale.grad, zero.grad) if t is not None
    ]


@pytest.mark.parametrize("by_channel", [False, True])
def test_learnable_scales_have_gradients(by_channel: bool) -> None:
    expected = learnable("cpu", by_channel=by_channel)

    with neusight.forecast_on("H100") as forecast:
        found = learnable("cuda", by_channel=by_channel)

    assert found == expected
    assert forecast.unmapped == []


@pytest.mark.parametrize(
    "call", [lambda x: torch.histogram(x, 5), lambda x: torch.histogramdd(x[:, None], [5])]
)
def test_histograms_of_edges_are_refused_as_on_a_gpu(call: Callable[[Any], Any]) -> None:
    with (
        neusight.forecast_on("H100"),
        pytest.raises(NotImplementedError, match=r"from the 'CUDA' backend.*torch\.histc"),
    ):
        call(ones(100))


def test_quantized_dtypes_are_refused_with_what_to_do() -> None:
    with (
        neusight.forecast_on("H100"),
        pytest.raises(RuntimeError, match=r"quantize_per_tensor at test_quantized\.py.*torchao"),
    ):
        torch.quantize_per_tensor(ones(4), 0.1, 0, torch.qint8)


def test_weights_that_nobody_knows_do_not_sum_to_zero() -> None:
    with neusight.forecast_on("H100"):
        weights = torch.rand(20, device="cuda")
        out = torch.cov(torch.randn(3, 20, device="cuda"), aweights=weights)
        assert out.shape == (3, 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((16, 64, 32), "needs to be greater than 16, but got 16"),
        ((17, 60, 32), r"self.size\(1\) needs to be .* a multiple of 8, but got 60"),
        ((17, 64, 30), r"mat2.size\(1\) needs to be .* a multiple of 8, but got 30"),
    ],
)
def test_products_of_integers_fail_where_they_fail_on_a_gpu(
    shape: tuple[int, int, int], message: str
) -> None:
    rows, inner, columns = shape

    with neusight.forecast_on("A100"), pytest.raises(RuntimeError, match=message):
        torch._int_mm(
            ones(rows, inner, dtype=torch.int8), ones(columns, inner, dtype=torch.int8).t()
        )


def test_seventeen_rows_of_integers_are_one_product() -> None:
    with neusight.forecast_on("A100") as forecast:
        out = torch._int_mm(ones(17, 64, dtype=torch.int8), ones(32, 64, dtype=torch.int8).t())
        assert (tuple(out.shape), out.dtype) == ((17, 32), torch.int32)

    [product] = [kernel for kernel, _ in forecast.kernels if kernel.name == "gemm"]
    assert (product.dtype, product.bytes_written) == ("int8", 17 * 32 * 4)
