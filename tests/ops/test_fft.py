"""Fourier transforms: a pass a dimension, and its FLOPs."""

from __future__ import annotations

from op_calls import call, kernels, spec


def test_a_transform_is_a_kernel_a_dimension_of_5_n_log_n_operations() -> None:
    """2 images of 64 x 256: log2 is 6 along the first, 8 along the second."""
    x = spec(2, 64, 256, dtype="complex64")

    second, first = kernels(call("_fft_c2c", x, self=x, dim=(2, 1), normalization=0, forward=True))

    assert second.flops == 5 * 2 * 64 * 256 * 8
    assert first.flops == 5 * 2 * 256 * 64 * 6
    assert first.bytes_read == first.bytes_written == second.bytes_read == 8 * 2 * 64 * 256
    assert (second.layout, first.layout) == ("contiguous", "strided")


def test_a_long_row_takes_a_pass_for_each_12_bits() -> None:
    def passes(length: int) -> int:
        x = spec(1, length, dtype="complex64")
        return len(kernels(call("_fft_c2c", x, self=x, dim=(1,), normalization=0)))

    assert (passes(4096), passes(4097), passes(2**24), passes(2**24 + 1)) == (1, 2, 2, 3)


def test_a_transform_of_nothing_launches_nothing() -> None:
    x = spec(0, 8, dtype="complex64")

    assert kernels(call("_fft_c2c", x, self=x, dim=(1,), normalization=0)) == ()
