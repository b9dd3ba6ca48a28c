"""Kernels: FLOPs, bytes and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass


def test_gemm_counts_flops_and_compulsory_bytes() -> None:
    kernel = Kernel.gemm(2, 3, 4, dtype="bfloat16", bias=True)

    assert kernel.flops == 48
    assert kernel.bytes_read == (8 + 12) * 2 + 6
    assert kernel.bytes_written == 12


def test_causal_attention_counts_half_the_scores() -> None:
    full = Kernel.attention(1, 1, 1, 100, 100, 64, causal=False, dtype="float16")
    causal = Kernel.attention(1, 1, 1, 100, 100, 64, causal=True, dtype="float16")

    assert causal.flops / full.flops == pytest.approx(0.505)


def test_attention_backward_has_five_products_for_two() -> None:
    forward = Kernel.attention(1, 2, 2, 64, 64, 64, causal=False, dtype="float16")
    backward = Kernel.attention(1, 2, 2, 64, 64, 64, causal=False, dtype="float16", backward=True)

    assert backward.flops * 2 == forward.flops * 5
    assert backward.name == "flash_attention_backward"


def test_convolution_gradients_have_the_flops_of_the_forward() -> None:
    size = ConvolutionSize(2, 8, 16, 1, (10, 10), (10, 10), (3, 3), (1, 1), "forward")

    flops = {
        Kernel.convolution(size._replace(direction=direction), dtype="float32").flops
        for direction in ("forward", "data_gradient", "weight_gradient")
    }

    assert flops == {2 * 2 * 16 * 8 * 100 * 9}


@pytest.mark.parametrize(
    ("m", "dtype", "reported"),
    [
        (-1, "bfloat16", "gemm: m is -1; a size cannot be negative"),
        (1.5, "bfloat16", "gemm: m is 1.5; a size is a whole number"),
        (1, "float15", "Unknown dtype 'float15'"),
    ],
)
def test_sizes_and_dtypes_that_cannot_be_are_refused(m: Any, dtype: str, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        Kernel.gemm(m, 1, 1, dtype=dtype)


def test_equal_kernels_are_equal_and_hash_alike() -> None:
    first, second = (Kernel.elementwise("add", 8, dtype="float32", num_inputs=2) for _ in range(2))

    assert first == second
    assert hash(first) == hash(second)
    assert first.kernel_class is KernelClass.ELEMENTWISE
    assert first.num_bytes == 96
