"""Softmax: what it reads and writes."""

from __future__ import annotations

import pytest

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import MathMode
from op_calls import call, kernels, spec


def test_softmax_rows_run_along_its_dimension() -> None:
    (kernel,) = kernels(
        call("_softmax", spec(2, 3, 5), self=spec(2, 3, 5), dim=1, half_to_float=False)
    )

    assert kernel.kernel_class is KernelClass.SOFTMAX
    assert kernel.size == (10, 3)
    assert kernel.layout == "strided"


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_reads_its_input_once_and_writes_as_much(name: str) -> None:
    """64 rows of 1000 halves: 128000 bytes each way."""
    x = spec(64, 1000, dtype="bfloat16")

    (kernel,) = kernels(call(name, x, self=x, dim=-1, half_to_float=False))

    assert (kernel.bytes_read, kernel.bytes_written) == (128_000, 128_000)
    assert (kernel.size, kernel.layout) == ((64, 1000), "contiguous")


def test_softmax_to_float_writes_floats() -> None:
    x, result = spec(64, 1000, dtype="bfloat16"), spec(64, 1000)

    (kernel,) = kernels(call("_softmax", result, self=x, dim=1, half_to_float=True))

    assert (kernel.bytes_read, kernel.bytes_written) == (128_000, 256_000)
    assert (kernel.dtype, kernel.out_dtype) == ("bfloat16", "float32")


def test_its_gradient_reads_the_output_and_its_product_with_the_gradient() -> None:
    x = spec(64, 1000)

    product, gradient = kernels(
        call("_softmax_backward_data", x, grad_output=x, output=x, dim=1, input_dtype="float32")
    )

    assert (product.name, gradient.name) == ("mul", "softmax_backward")
    assert (gradient.bytes_read, gradient.bytes_written) == (512_000, 256_000)


def test_a_log_softmax_gradient_takes_one_kernel() -> None:
    x = spec(64, 1000)

    (kernel,) = kernels(
        call("_log_softmax_backward_data", x, grad_output=x, output=x, dim=1, input_dtype="float32")
    )

    assert kernel.name == "log_softmax_backward"


def test_a_masked_softmax_reads_a_byte_of_mask_an_element() -> None:
    x, mask = spec(4, 8), spec(4, 8, dtype="bool")

    (forward,) = kernels(call("_masked_softmax", x, self=x, mask=mask, dim=None, mask_type=2))
    (backward,) = kernels(
        call("_masked_softmax_backward", x, grad_output=x, output=x, mask=mask, dim=None)
    )

    assert (forward.bytes_read, forward.bytes_written, forward.size) == (160, 128, (4, 8))
    assert (backward.bytes_read, backward.bytes_written) == (288, 128)


def test_a_safe_softmax_zeroes_rows_that_are_masked_whole() -> None:
    x = spec(4, 8)

    launched = kernels(call("_safe_softmax", x, self=x, dim=-1, dtype=None))

    assert [kernel.name for kernel in launched] == ["softmax", "eq", "all", "fill", "where"]
    assert [kernel.bytes_written for kernel in launched] == [128, 32, 4, 4, 128]


def test_a_softmax_of_nothing_launches_nothing() -> None:
    assert kernels(call("_softmax", spec(0, 8), self=spec(0, 8), dim=1)) == ()


def test_before_torch_2_7_wide_rows_that_begin_unaligned_go_element_by_element() -> None:
    def layout(width: int, dtype: str, torch: tuple[int, int] = (2, 6)) -> str:
        x = spec(64, width, dtype=dtype)
        signature = call("_softmax", x, self=x, dim=-1, half_to_float=False)
        return kernels(signature, MathMode(torch=torch))[0].layout

    assert layout(3137, "bfloat16", (2, 7)) == "contiguous"
    assert (layout(3137, "bfloat16"), layout(3136, "bfloat16")) == ("scalar", "contiguous")
    assert (layout(3140, "float32"), layout(577, "bfloat16")) == ("contiguous", "contiguous")
