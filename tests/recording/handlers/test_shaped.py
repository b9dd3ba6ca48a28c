"""What ops without fake kernels return has the shapes and dtypes that the CPU's own has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight

aten = torch.ops.aten


Meta = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]


def metas(out: Any) -> list[Meta]:
    """Shapes, dtypes and strides; of axes with one element, and without any, these mean nothing."""
    tensors = out if isinstance(out, (tuple, list)) else [out]
    return [
        (
            tuple(tensor.shape),
            tensor.dtype,
            tuple(
                stride if length > 1 and tensor.numel() else 0
                for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ),
        )
        for tensor in tensors
    ]


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


CASES: list[tuple[Callable[..., Any], Sequence[Any]]] = [
    (torch.geqrf, (rows(2, 5, 3),)),
    (torch.geqrf, (rows(3, 5),)),
    (torch.ormqr, (rows(5, 3), rows(3), rows(5, 2))),
    (F.multilabel_margin_loss, (rows(4), torch.zeros(4).long())),
    (F.multilabel_margin_loss, (rows(3, 4), torch.zeros(3, 4).long(), None, None, "none")),
    (
        lambda data, target: F.multilabel_margin_loss(data, target, reduction="none"),
        (rows(4), torch.zeros(4).long()),
    ),
    (torch.fake_quantize_per_tensor_affine, (rows(4, 3), 0.1, 0, -128, 127)),
    (
        torch.fake_quantize_per_channel_affine,
        (rows(4, 3), torch.ones(3), torch.zeros(3), 1, -128, 127),
    ),
    (
        torch._fake_quantize_learnable_per_tensor_affine,
        (rows(4, 3), torch.ones(1), torch.zeros(1), -128, 127, 1.0),
    ),
]


@pytest.mark.parametrize(("call", "arguments"), CASES)
def test_shapes_are_those_of_the_cpu(call: Callable[..., Any], arguments: Sequence[Any]) -> None:
    expected = metas(call(*arguments))

    with neusight.forecast_on("H100") as forecast:
        on_gpu = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in arguments]
        found = metas(call(*on_gpu))

    assert found == expected
    assert forecast.unmapped == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 3), (5, 2)),
        ((2, 5, 3), (2, 5, 1)),
        ((3, 3), (3, 2)),
        ((3, 5), (3, 2)),
        ((4, 5, 3), (4, 5)),
    ],
)
def test_least_squares_gives_what_the_driver_of_cuda_gives(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    expected = metas(torch.linalg.lstsq(rows(*left), rows(*right), driver="gels"))

    with neusight.forecast_on("H100"):
        a, b = torch.randn(left, device="cuda"), torch.randn(right, device="cuda")
        found = metas(torch.linalg.lstsq(a, b))

    assert found == expected


def test_batch_norm_with_update_returns_statistics_in_float32() -> None:
    with neusight.forecast_on("H100") as forecast:
        data = torch.randn(2, 3, 4, 4, device="cuda", dtype=torch.bfloat16)
        ones, zeros = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
        found = metas(aten._batch_norm_with_update(data, ones, zeros, zeros, ones, 0.1, 1e-5))

    assert found == [
        ((2, 3, 4, 4), torch.bfloat16, (48, 16, 4, 1)),
        ((3,), torch.float32, (1,)),
        ((3,), torch.float32, (1,)),
        ((0,), torch.uint8, (0,)),
    ]
    assert forecast.unmapped == []


@pytest.mark.parametrize(
    ("dtype", "num_gemms"), [(torch.bfloat16, 1), (torch.float16, 4), (torch.float32, 4)]
)
def test_groups_are_multiplied_one_by_one_but_in_bfloat16(
    dtype: torch.dtype, num_gemms: int
) -> None:
    with neusight.forecast_on("H100") as forecast:
        left = torch.randn(64, 32, device="cuda", dtype=dtype)
        right = torch.randn(4, 32, 16, device="cuda", dtype=dtype)
        ends = torch.tensor([16, 32, 48, 64], device="cuda", dtype=torch.int32)
        out = torch._grouped_mm(left, right, offs=ends)
        assert (out.shape, out.dtype) == ((64, 16), dtype)

    products = [k for k, _ in forecast.kernels if k.kernel_class.value == "gemm"]
    assert len(products) == num_gemms
    assert sum(kernel.flops for kernel in products) == 2 * 64 * 32 * 16


@pytest.mark.parametrize("bias", [True, False])
def test_a_gru_cell_trains_by_its_fused_kernels(bias: bool) -> None:
    with neusight.forecast_on("H100") as forecast:
        cell = nn.GRUCell(6, 4, bias=bias).cuda()
        state = torch.zeros(3, 4, device="cuda", requires_grad=True)
        cell(torch.rand(3, 6, device="cuda"), state).sum().backward()
        assert state.grad is not None and state.grad.shape == (3, 4)
        gradients = [tuple(g.shape) for p in cell.parameters() if (g := p.grad) is not None]

    assert gradients == [(12, 6), (12, 4), (12,), (12,)][: 4 if bias else 2]
    assert forecast.unmapped == []


def test_rows_of_groups_are_aligned_by_their_own_dtype() -> None:
    """Rows of 180 floats are a multiple of 16 bytes, those of 180 halves are not."""
    with neusight.forecast_on("H100"):
        ends = torch.tensor([16, 64], device="cuda", dtype=torch.int32)
        left = torch.randn(64, 180, device="cuda")
        right = torch.randn(2, 180, 12, device="cuda")
        out = torch._grouped_mm(left, right, offs=ends)
        summed = torch._grouped_mm(left.t(), out, offs=ends)
        with pytest.raises(RuntimeError, match="strides should be multiple of 16 bytes"):
            torch._grouped_mm(left.half(), right.half(), offs=ends)

    assert (out.shape, summed.shape) == ((64, 12), (2, 180, 12))
    assert (out.stride(), summed.stride()) == ((12, 1), (180 * 12, 12, 1))


def test_groups_that_do_not_fit_are_refused() -> None:
    with neusight.forecast_on("H100"):
        left = torch.randn(64, 32, device="cuda")
        right = torch.randn(4, 32, 16, device="cuda")
        ends = torch.tensor([32, 64], device="cuda", dtype=torch.int32)
        with pytest.raises(RuntimeError, match="offsets"):
            torch._grouped_mm(left, right)
        with pytest.raises(RuntimeError, match="batch sizes"):
            torch._grouped_mm(left, right, offs=ends)
        with pytest.raises(RuntimeError, match="contraction"):
            torch._grouped_mm(left[:, :16], right, offs=ends)
