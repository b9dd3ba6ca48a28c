"""What a collective leaves to others."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.communication.collective import channels_of
from neusight.predictors.physics.communication.contention import (
    Contention,
    contention_of,
    slowdown,
)
from neusight.predictors.physics.physical_time import Bound

H100 = find_gpu("H100")
REDUCE = Kernel.collective("all_reduce", 2**30, 8)
GEMM = Kernel.gemm(4096, 4096, 4096)


def test_channels_hold_sms_and_the_bytes_pass_the_dram_twice() -> None:
    """16 of 132 SMs, for the switches add up; 1.75 GiB in 10 ms, twice, of the DRAM."""
    left = contention_of(REDUCE, 10_000.0, H100)

    assert left.sms_left == pytest.approx(116 / 132)
    bandwidth = H100.bandwidth_gbps * H100.bandwidth_utilization
    assert left.bandwidth_left == pytest.approx(1 - 2 * 1.75 * 2**30 / 1e7 / bandwidth)


def test_what_bounds_a_kernel_says_what_it_lacks() -> None:
    half, most = Contention(sms_left=0.8), Contention(bandwidth_left=0.5)

    assert [slowdown(GEMM, "compute", left) for left in (half, most)] == [1.25, 1.0]
    assert [slowdown(GEMM, "memory", left) for left in (half, most)] == [1.0, 2.0]
    assert slowdown(GEMM, "launch", half) == 1.0


def test_copies_and_collectives_lack_nothing() -> None:
    copy = Kernel.rows(
        KernelClass.COPY, "memcpy_d2h", 1, 64, dtype="float32", bytes_read=256, bytes_written=256
    )
    beside = Contention(0.5, 0.5)

    assert slowdown(copy, "memory", beside) == slowdown(REDUCE, "memory", beside) == 1.0


def test_over_pcie_few_channels_are_held() -> None:
    nvlink, pcie = (contention_of(REDUCE, 1e6, find_gpu(name)) for name in ("H100", "L40S"))

    assert pcie.sms_left > 0.97 > nvlink.sms_left


def test_one_rank_alone_holds_nothing() -> None:
    assert contention_of(Kernel.collective("all_reduce", 2**30, 1), 10.0, H100) == Contention()


@given(
    time_us=st.floats(0.0, 1e9), world=st.integers(1, 64), bound=st.sampled_from(get_args(Bound)),
    name=st.sampled_from(["H100", "T4", "L40S", "MI300X"]),
)  # fmt: skip
def test_nothing_is_slowed_more_than_twice(
    time_us: float, world: int, bound: Bound, name: str
) -> None:
    gpu = find_gpu(name)
    left = contention_of(Kernel.collective("all_gather", 2**28, world), time_us, gpu)

    assert 1.0 <= slowdown(GEMM, bound, left) <= 2.0


@pytest.mark.parametrize(
    ("gpu", "collective", "channels"),
    [
        ("A100", Kernel.collective("all_gather", 2**30, 8), 24),
        ("V100", Kernel.collective("all_gather", 2**30, 8), 12),
        ("H100", Kernel.collective("all_gather", 2**30, 8), 24),
        ("H100", Kernel.collective("all_reduce", 2**30, 8), 16),
        ("H100", Kernel.collective("all_gather", 2**16, 8), 2),
        ("H100", Kernel.collective("all_gather", 2**30, 16, num_nodes=2), 16),
        ("H100", Kernel.collective("send_recv", 2**30, 2, num_nodes=2), 2),
    ],
)
def test_channels_are_those_of_links_and_cards_and_fewer_for_few_bytes(
    gpu: str, collective: Kernel, channels: int
) -> None:
    assert channels_of(collective, find_gpu(gpu)) == channels
