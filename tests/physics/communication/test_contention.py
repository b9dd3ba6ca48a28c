"""What a collective leaves to others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors import predict
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.communication.collective import channels_of
from neusight.predictors.physics.communication.contention import (
    Contention,
    contention_of,
    slowdown,
    without_sms,
)
from neusight.predictors.physics.physical_time import Bound

H100 = find_gpu("H100")
REDUCE = Kernel.collective("all_reduce", 2**30, 8)
GEMM = Kernel.gemm(4096, 4096, 4096)
ATTENTION = Kernel.attention(4, 32, 32, 4096, 4096, 128, causal=True, dtype="bfloat16")
NORM = Kernel.rows(
    KernelClass.NORMALIZATION, "layer_norm", 2**16, 2**12,
    dtype="bfloat16", bytes_read=2**29, bytes_written=2**29,
)  # fmt: skip

#: The kernels of `beside_a_copy`: their times alone are those of these.
MEASURED = Path(__file__).parents[3] / "benchmarks/measured/h100/profiles.jsonl.gz"
WORKS = {"gemm": Kernel.gemm(8192, 8192, 8192), "attention": ATTENTION, "norm": NORM}


def test_channels_hold_sms_and_the_bytes_pass_the_dram_twice() -> None:
    """16 of 132 SMs, for the switches add up; 1.75 GiB in 10 ms, twice, of the DRAM."""
    left = contention_of(REDUCE, 10_000.0, H100)

    assert left.sms_left == pytest.approx(116 / 132)
    bandwidth = H100.bandwidth_gbps * H100.bandwidth_utilization
    assert left.bandwidth_left == pytest.approx(1 - 2 * 1.75 * 2**30 / 1e7 / bandwidth)


def test_what_bounds_a_kernel_says_what_it_lacks() -> None:
    few, slow = Contention(sms_left=0.8), Contention(bandwidth_left=0.5)

    def times(kernel: Kernel, bound: Bound) -> list[float]:
        return [slowdown(kernel, bound, left, num_waves=1e6) for left in (few, slow)]

    assert times(ATTENTION, "compute") == [pytest.approx(1.25), 1.0]
    assert times(GEMM, "memory") == [1.0, 2.0]
    assert times(NORM, "memory") == [1.25, 2.0]
    assert times(GEMM, "launch") == [1.0, 1.0]


def test_one_full_wave_becomes_two_and_half_a_wave_still_fits() -> None:
    beside = Contention(sms_left=0.9, pairs_left=0.9)

    def times(num_waves: float) -> float:
        return slowdown(GEMM, "compute", beside, num_waves=num_waves)

    assert times(0.5) == 1.0
    assert times(1.0) > 1.2 > times(20.0) > 1.1


def test_a_product_whose_ctas_come_in_pairs_loses_the_neighbours_too() -> None:
    """From Hopper on, beside CTAs that lie apart: those of NCCL before 2.17."""
    apart, packed, on_ampere = (
        contention_of(REDUCE, 1e6, find_gpu(gpu), in_clusters=in_clusters)
        for gpu, in_clusters in (("H100", False), ("H100", True), ("A100", False))
    )

    assert apart.pairs_left == pytest.approx(1 - 2 * (1 - apart.sms_left))
    assert packed.pairs_left == packed.sms_left == apart.sms_left
    assert on_ampere.pairs_left == on_ampere.sms_left


def test_kernels_beside_a_copy_take_as_long_as_an_h100_showed() -> None:
    """On 1 to 32 CTAs that lie apart; no constant of the model was read off these."""
    alone_us: dict[str, float] = {}
    errors: dict[str, list[float]] = {}
    with gzip.open(MEASURED, "rt", encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream if "beside_a_copy" in line]
    for record in records:
        work = record["work"]
        if work not in WORKS:
            continue
        us = median(kernel[2] for kernel in record["kernels"] if kernel[0] != "copier")
        if alone_us.setdefault(work, us) == us:
            continue
        left = without_sms(record["ctas"], H100, taken=0.0, in_clusters=False)
        [estimate] = predict([WORKS[work]], H100)
        times = slowdown(WORKS[work], estimate.bound, left, num_waves=estimate.num_waves)
        errors.setdefault(work, []).append(abs(times / (us / alone_us[work]) - 1.0))

    assert {work: len(own) for work, own in errors.items()} == dict.fromkeys(WORKS, 7)
    assert max(errors["gemm"]) < 0.08
    assert max(errors["attention"] + errors["norm"]) < 0.03


def test_copies_and_collectives_lack_nothing() -> None:
    copy = Kernel.rows(
        KernelClass.COPY, "memcpy_d2h", 1, 64, dtype="float32", bytes_read=256, bytes_written=256
    )
    beside = Contention(0.5, 0.5)

    for kernel in (copy, REDUCE):
        assert slowdown(kernel, "memory", beside, num_waves=1.0) == 1.0


def test_over_pcie_few_channels_are_held() -> None:
    nvlink, pcie = (contention_of(REDUCE, 1e6, find_gpu(name)) for name in ("H100", "L40S"))

    assert pcie.sms_left > 0.97 > nvlink.sms_left


def test_one_rank_alone_holds_nothing() -> None:
    assert contention_of(Kernel.collective("all_reduce", 2**30, 1), 10.0, H100) == Contention()


@given(
    time_us=st.floats(0.0, 1e9), world=st.integers(1, 64), bound=st.sampled_from(get_args(Bound)),
    name=st.sampled_from(["H100", "T4", "L40S", "MI300X"]), num_waves=st.floats(1e-3, 1e6),
)  # fmt: skip
def test_nothing_is_slowed_more_than_twice(
    time_us: float, world: int, bound: Bound, name: str, num_waves: float
) -> None:
    gpu = find_gpu(name)
    left = contention_of(Kernel.collective("all_gather", 2**28, world), time_us, gpu)

    assert 1.0 <= slowdown(GEMM, bound, left, num_waves=num_waves) <= 2.0 + 1e-9


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
