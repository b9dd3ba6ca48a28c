"""Collectives between hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.collective import collective_timing
from neusight.predictors.physics.network import card_gbps, network_us
from neusight.predictors.physics.roofline import sent_bytes

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def time_us(kind: str, num_bytes: int, world_size: int, num_nodes: int) -> float:
    kernel = Kernel.collective(kind, num_bytes, world_size, num_nodes=num_nodes)
    return collective_timing(kernel, find_gpu("H100")).time_us


@given(
    kind=st.sampled_from(KINDS),
    num_bytes=st.integers(1, 2**34),
    num_nodes=st.integers(2, 512),
    local=st.sampled_from([1, 2, 4, 8]),
)
def test_more_bytes_never_take_less(kind: str, num_bytes: int, num_nodes: int, local: int) -> None:
    world_size = num_nodes * local

    assert time_us(kind, 2 * num_bytes, world_size, num_nodes) >= time_us(
        kind, num_bytes, world_size, num_nodes
    )


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_whole_hosts_have_all_their_cards(kind: str) -> None:
    whole = time_us(kind, 2**32, 64, 8)
    one_each = time_us(kind, 2**32, 8, 8)

    cards = 8 * 0.8 * card_gbps(find_gpu("H100"))
    bus = sent_bytes(kind, 2**32, 64) / whole / 1e3
    assert 0.6 * cards < bus < cards
    assert one_each > 4 * whole


def test_what_a_card_carries_bounds_one_rank_a_host() -> None:
    gpu = find_gpu("H100")

    rate = sent_bytes("all_reduce", 2**34, 16) / time_us("all_reduce", 2**34, 16, 16) / 1e3

    assert rate == pytest.approx(0.8 * card_gbps(gpu), rel=0.05)


def test_small_messages_take_trees_over_many_hosts() -> None:
    """A ring would cross 1,024 hosts one after the other."""
    assert time_us("all_reduce", 1024, 8192, 1024) < 1000.0


def test_an_ampere_host_has_slower_cards() -> None:
    assert card_gbps(find_gpu("A100")) == card_gbps(find_gpu("H100")) / 2


def test_a_better_network_is_never_slower() -> None:
    times = [
        network_us(
            "all_reduce", 2**28, world_size=32, num_nodes=4, link_gbps=300.0,
            network_gbps=gbps, inside=lambda kind, ranks, num_bytes: num_bytes / 300e3,
        )
        for gbps in (12.5, 25.0, 50.0, 100.0)
    ]  # fmt: skip

    assert times == sorted(times, reverse=True)
