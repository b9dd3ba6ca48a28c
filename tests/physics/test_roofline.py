"""The bounds no kernel beats."""

from __future__ import annotations

import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.roofline import (
    flop_roofline_us,
    roofline_us,
    wire_bytes,
)


def test_large_gemm_is_bound_by_flops() -> None:
    kernel = Kernel.gemm(8192, 8192, 8192)

    assert roofline_us(kernel, find_gpu("A100")) == pytest.approx(2 * 8192**3 / 312e12 * 1e6)


def test_fp64_gemm_uses_the_matrix_unit() -> None:
    kernel = Kernel.gemm(1024, 1024, 1024, dtype="float64")

    assert flop_roofline_us(kernel, find_gpu("A100")) == pytest.approx(2 * 1024**3 / 19.5e12 * 1e6)


def test_add_is_bound_by_bytes() -> None:
    kernel = Kernel.elementwise("add", 10**8, dtype="float32", num_inputs=2)

    assert roofline_us(kernel, find_gpu("H100")) == pytest.approx(1.2e9 / 3350e3)


def test_host_copies_cross_the_host_link() -> None:
    kernel = Kernel.rows(
        KernelClass.COPY, "memcpy_h2d", 1, 10**6, dtype="uint8",
        bytes_read=64 * 10**6, bytes_written=64 * 10**6, flops=0,
    )  # fmt: skip

    assert roofline_us(kernel, find_gpu("H100")) == pytest.approx(1000)


def test_all_reduce_sends_its_buffer_nearly_twice() -> None:
    assert wire_bytes(Kernel.collective("all_reduce", 800, 8)) == 1400
    assert wire_bytes(Kernel.collective("all_gather", 800, 8)) == 700
    assert wire_bytes(Kernel.collective("broadcast", 800, 8)) == 800
    assert wire_bytes(Kernel.collective("all_reduce", 800, 1)) == 0
