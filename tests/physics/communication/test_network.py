"""Collectives between hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.collective import collective_timing
from neusight.predictors.physics.communication.network import Crossing, network_us
from neusight.predictors.physics.roofline import sent_bytes

#: One direction of a card of a DGX H100, 1e9 bytes per second.
CARD_GBPS = 50.0
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

    cards = 8 * 0.8 * CARD_GBPS
    bus = sent_bytes(kind, 2**32, 64) / whole / 1e3
    assert 0.6 * cards < bus < cards
    assert one_each > 4 * whole


def test_what_a_card_carries_bounds_one_rank_a_host() -> None:
    rate = sent_bytes("all_reduce", 2**34, 16) / time_us("all_reduce", 2**34, 16, 16) / 1e3

    assert rate == pytest.approx(0.8 * CARD_GBPS, rel=0.05)


def test_small_messages_take_trees_over_many_hosts() -> None:
    """A ring would cross 1,024 hosts one after the other."""
    assert time_us("all_reduce", 1024, 8192, 1024) < 1000.0


def group(**changes: object) -> Crossing:
    """32 ranks on 4 nodes; inside one, a rank reaches 300e9 bytes per second."""
    return replace(GROUP, **changes)  # type: ignore[arg-type]


GROUP = Crossing(
    num_ranks=32, num_nodes=4, least=8, most=8, link_gbps=300.0, cards_gbps=320.0, card_gbps=40.0,
    base_us=10.0, hop_us=5.0, inside=lambda kind, ranks, num_bytes: num_bytes / 300e3,
)  # fmt: skip


def test_a_better_network_is_never_slower() -> None:
    times = [
        network_us("all_reduce", 2**28, group(cards_gbps=8 * gbps))
        for gbps in (12.5, 25.0, 50.0, 100.0)
    ]

    assert times == sorted(times, reverse=True)


def test_a_ring_is_latency_and_wire_bytes_over_the_cards() -> None:
    """Two nodes with a GPU each: two crossings up and two down, no step inside."""
    pair = group(num_ranks=2, num_nodes=2, least=1, most=1, cards_gbps=40.0)

    simple_us = 10 + 1.8 + 4 * (5 + 11.3)  # beyond LL's by NCCL's table: 8.4 - 6.6, 14.0 - 2.7
    assert network_us("all_reduce", 4e9, pair) == pytest.approx(simple_us + 4e9 / 40e3)


def test_the_protocol_goes_by_the_size_as_in_nccls_tuning_model() -> None:
    """All-gather of 32 ranks on 4 nodes: 28 steps inside, 3 crossings."""
    latencies = {
        "LL": 10 + 28 * 0.6 + 3 * 5,
        "LL128": 10 + 7.4 + 28 * 1.9 + 3 * (5 + 1.3),
        "Simple": 10 + 1.8 + 28 * 3.4 + 3 * (5 + 11.3),
    }
    rates = {"LL": 20.4, "LL128": 0.92 * 300, "Simple": 300}

    def expected(protocol: str, num_bytes: float) -> float:
        return latencies[protocol] + num_bytes * 31 / 32 / (rates[protocol] * 1e3)

    for protocol, num_bytes in (("LL", 2**14), ("LL128", 2**24), ("Simple", 2**32)):
        found = network_us("all_gather", num_bytes, group())
        assert found == pytest.approx(expected(protocol, num_bytes))
        assert all(expected(other, num_bytes) >= found for other in latencies)


def test_an_all_gather_of_many_nodes_takes_a_step_for_each_rank() -> None:
    """512 A100: no tree and no level gathers for a ring."""
    kernel = Kernel.collective("all_gather", 2**26, 512, num_nodes=64)
    wire_us = sent_bytes("all_gather", 2**26, 512) / (8 * 25.0 * 0.8 * 0.92 * 1e3)

    taken_us = collective_timing(kernel, find_gpu("A100")).time_us

    assert taken_us > wire_us + 448 * 1.9 + 63 * 5


def test_older_gpus_and_pcie_have_no_ll128() -> None:
    without = network_us("all_gather", 2**24, group(has_ll128=False))

    assert without > network_us("all_gather", 2**24, group())


def test_switches_that_add_up_halve_what_crosses() -> None:
    slow = group(cards_gbps=40.0)

    plain, reducing = (
        network_us("all_reduce", 2**32, replace(slow, reduces=r)) for r in (False, True)
    )

    assert reducing < 0.72 * plain


def test_the_emptiest_node_bounds_a_group() -> None:
    """Nine ranks as 8 + 1 have one card between the nodes."""
    uneven = group(num_ranks=9, num_nodes=2, least=1, most=8, cards_gbps=40.0)
    rate = sent_bytes("all_reduce", 2**32, 9) / network_us("all_reduce", 2**32, uneven) / 1e3

    assert rate == pytest.approx(40.0, rel=0.01)
