"""The bounds no kernel beats."""

from __future__ import annotations

import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import PEER_COPY, Kernel, KernelClass
from neusight.predictors.physics.roofline import (
    flop_roofline_us,
    memory_roofline_us,
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


@pytest.mark.parametrize(
    ("name", "peer_us", "all_reduce_us", "all_gather_us"),
    [
        ("H100", 1000.0, 1777.778, 1555.556),  # NVLink, whose switches add up
        ("A100", 1500.0, 4666.667, 2333.333),  # 1400 MB at 300 GB/s
        ("M40", 28125.0, 87500.0, 43750.0),  # PCIe 3.0, 16 GB/s
    ],
)
def test_what_crosses_the_link_is_bound_by_it(
    name: str, peer_us: float, all_reduce_us: float, all_gather_us: float
) -> None:
    """450 MB from a peer; 800 MB among eight."""
    copy = Kernel.rows(
        KernelClass.COPY, PEER_COPY, 1, 10**6, dtype="uint8",
        bytes_read=45 * 10**7, bytes_written=45 * 10**7, flops=0,
    )  # fmt: skip
    reduce, gather = (Kernel.collective(op, 8 * 10**8, 8) for op in ("all_reduce", "all_gather"))

    found = [memory_roofline_us(kernel, find_gpu(name)) for kernel in (copy, reduce, gather)]

    assert found == pytest.approx([peer_us, all_reduce_us, all_gather_us], rel=1e-6)
