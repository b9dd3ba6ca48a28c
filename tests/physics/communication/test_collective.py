"""The physics of collectives."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors import Tiled
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.collective import collective_timing, inside_gbps
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.physics.roofline import roofline_us, sent_bytes

OPS = st.sampled_from(
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "other"]
)
GPUS = st.sampled_from(["H100", "A100-PCIE-80GB", "L40S", "T4", "MI210", "GB200"])


def time_us(op: str, name: str, num_bytes: int, world_size: int, num_nodes: int = 1) -> float:
    kernel = Kernel.collective(op, num_bytes, world_size, num_nodes=num_nodes)
    return collective_timing(kernel, find_gpu(name)).time_us


@given(OPS, GPUS, st.integers(0, 2**40), st.integers(1, 2**30), st.integers(0, 2048))
def test_more_bytes_are_never_faster(
    op: str, name: str, num_bytes: int, more: int, world_size: int
) -> None:
    before = time_us(op, name, num_bytes, world_size)

    assert math.isfinite(before)
    assert before > 0
    assert time_us(op, name, num_bytes + more, world_size) >= before


@given(OPS, st.integers(0, 2**32), st.integers(2, 512), st.integers(1, 64))
def test_more_ranks_are_never_faster(op: str, num_bytes: int, world_size: int, more: int) -> None:
    assert time_us(op, "H100", num_bytes, world_size + more) >= time_us(
        op, "H100", num_bytes, world_size
    )


@given(OPS, GPUS, st.integers(0, 2**40), st.integers(1, 64))
def test_nothing_beats_the_link(op: str, name: str, num_bytes: int, world_size: int) -> None:
    kernel = Kernel.collective(op, num_bytes, world_size)

    if world_size > 1:
        assert collective_timing(kernel, find_gpu(name)).time_us >= roofline_us(
            kernel, find_gpu(name)
        )


def test_small_messages_cost_the_floor() -> None:
    assert time_us("all_reduce", "H100", 8, 8) == pytest.approx(
        find_gpu("H100").link_floor_us, rel=0.01
    )


def test_large_messages_reach_most_of_the_link() -> None:
    bus_bandwidth = 2 * 7 / 8 * 2**30 / time_us("all_reduce", "H100", 2**30, 8) / 1e3

    assert 0.6 * 450 < bus_bandwidth < 450


def test_bridged_pairs_fall_back_to_the_host_beyond_two() -> None:
    bridge, host = system_of(find_gpu("A100-PCIE-80GB")).inside
    gpu = find_gpu("A100-PCIE-80GB")

    assert inside_gbps(gpu, bridge, world_size=2) > 150
    assert inside_gbps(gpu, host, world_size=4) < 32


def test_over_pcie_a_step_and_the_bytes_cost_what_was_fitted() -> None:
    """Four L40S: six steps, and 1.5 times the bytes through the host's memory."""
    expected = 6.5 + 6 * 0.9 + 1.5 * 2**20 / 4.75e3

    assert time_us("all_reduce", "L40S", 2**20, 4) == pytest.approx(expected)


def test_in_an_unknown_host_a_rank_reaches_the_same_share_of_pcie_however_many_take_part() -> None:
    """As 2, 4 and 8 GPUs do in three of four hosts of data/deepbench."""
    rates = [
        2 * (ranks - 1) / ranks * 2**28 / (time_us("all_reduce", "M40", 2**28, ranks) * 1e3)
        for ranks in (2, 4, 8)
    ]

    assert rates == pytest.approx([0.37 * 16.0] * 3, rel=0.01)


def test_a_mesh_has_a_link_to_each_of_the_others() -> None:
    two, eight = (
        sent_bytes("all_gather", 2**30, ranks) / time_us("all_gather", "MI300X", 2**30, ranks)
        for ranks in (2, 8)
    )

    assert eight == pytest.approx(7 * two, rel=0.1)


def test_a_rack_of_one_switch_is_one_island() -> None:
    """72 GB200 reach each other by NVLink, on hosts of four."""
    rack = time_us("all_gather", "GB200", 2**30, 64, 16)

    assert rack < 0.6 * time_us("all_gather", "B200", 2**30, 64, 8)


def test_hosts_apart_are_slower() -> None:
    assert time_us("all_reduce", "H100", 2**26, 16, 2) > time_us("all_reduce", "H100", 2**26, 8)


def test_a_long_message_takes_its_bytes_over_the_links_rate_in_decimal_units() -> None:
    gpu = find_gpu("H100")
    kernel = Kernel.collective("broadcast", 10**13, 8)

    rate = inside_gbps(gpu, system_of(gpu).levels[0], world_size=8)

    assert collective_timing(kernel, gpu).time_us == pytest.approx(1e13 / (rate * 1e3), rel=1e-3)


def test_one_rank_alone_copies_its_buffer() -> None:
    gpu = find_gpu("H100")
    kernel = Kernel.collective("all_reduce", 2**30, 1)

    expected = gpu.floor_us + 2 * 2**30 / (gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization)
    assert collective_timing(kernel, gpu).time_us == pytest.approx(expected)


def test_hosts_decide_more_than_switches_do() -> None:
    gpu = find_gpu("H100")

    switched, between_hosts = (
        collective_timing(Kernel.collective("all_reduce", 2**26, 16, num_nodes=nodes), gpu).spread
        for nodes in (1, 2)
    )

    assert between_hosts > 2 * switched


def all_reduce_us(gpu: str, num_bytes: int, ranks: int, dtype: str = "bfloat16") -> float:
    (estimate,) = Tiled().predict(
        [Kernel.collective("all_reduce", num_bytes, ranks, dtype=dtype)], find_gpu(gpu)
    )
    return estimate.latency_us


@pytest.mark.parametrize(
    ("gpu", "ranks", "bus_gbps"),
    [("H200", 4, 363.3), ("H200", 5, 414.2), ("H200", 8, 473.1), ("B200", 6, 778.2)],
)
def test_switches_reduce_from_so_many_gpus_on(gpu: str, ranks: int, bus_gbps: float) -> None:
    """Bus bandwidths of 8 GiB in data/achievable: rings on 4, more where the switches add up."""
    wire = 2 * (ranks - 1) / ranks * 2**33

    assert wire / all_reduce_us(gpu, 2**33, ranks) / 1e3 == pytest.approx(bus_gbps, rel=0.09)


def test_switches_do_not_add_bytes_nor_before_nvlink_4() -> None:
    assert all_reduce_us("H100", 2**29, 8, "int8") > 1.2 * all_reduce_us("H100", 2**29, 8)
    kernel = Kernel.collective("all_reduce", 2**30, 8)
    assert collective_timing(kernel, find_gpu("A100")).at_most_us == math.inf
    assert collective_timing(kernel, find_gpu("H100")).at_most_us < math.inf


@settings(max_examples=50)
@given(st.integers(0, 2**36), st.integers(2, 80))
def test_no_estimate_of_a_reduction_beats_what_the_link_allows(num_bytes: int, ranks: int) -> None:
    kernel = Kernel.collective("all_reduce", num_bytes, ranks)
    gb200 = find_gpu("GB200")

    assert all_reduce_us("GB200", num_bytes, ranks) >= roofline_us(kernel, gb200) - 1e-3


def test_ranks_that_read_each_other_beat_rings_for_small_sums_and_nvlink_is_needed() -> None:
    rings, one, two = (
        Kernel.collective("all_reduce", 8192, 8, variant=variant)
        for variant in ("", "one_shot", "two_shot")
    )

    times = [collective_timing(kernel, find_gpu("A100")).time_us for kernel in (rings, one, two)]

    assert times[1] == pytest.approx(5.0 + 7 * 8192 / 300e3)
    assert times[1] < times[2] < times[0]
    assert collective_timing(one, find_gpu("L40S")) == collective_timing(rings, find_gpu("L40S"))
