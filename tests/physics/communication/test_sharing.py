"""Links that several transfers use at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.sharing import (
    Flow,
    fair_rates,
    link_demands,
    shared_times_ns,
)

H100 = find_gpu("H100")
LINK = {"switch out": 1.0, "switch in": 1.0}
OUT, IN = {"switch out": 1.0}, {"switch in": 1.0}


def test_two_that_each_fill_a_link_take_twice_as_long() -> None:
    assert shared_times_ns([Flow(0, 500, 1, LINK), Flow(0, 500, 2, LINK)]) == [1000, 1000]


def test_what_is_left_alone_gets_the_whole_link_again() -> None:
    """The short one ends at 200, when the long one has 900 of 1000 to go."""
    assert shared_times_ns([Flow(0, 1000, 1, LINK), Flow(0, 100, 2, LINK)]) == [1100, 200]


def test_a_sender_and_a_receiver_do_not_share() -> None:
    assert shared_times_ns([Flow(0, 500, 1, OUT), Flow(0, 500, 2, IN)]) == [500, 500]


def test_link_and_network_cards_do_not_share() -> None:
    assert shared_times_ns([Flow(0, 500, 1, LINK), Flow(0, 500, 2, {"network out": 1.0})]) == [
        500,
        500,
    ]


def test_those_of_one_stream_follow_each_other() -> None:
    """The second of stream 1 begins when the first has ended, at 200."""
    flows = [Flow(0, 100, 1, LINK), Flow(0, 100, 2, LINK), Flow(100, 100, 1, LINK)]

    assert shared_times_ns(flows) == [200, 200, 100]


def test_what_one_cannot_use_the_others_get() -> None:
    assert fair_rates([{"a": 0.25}, {"a": 1.0}]) == [1.0, 0.75]
    assert fair_rates([{"a": 1.0, "b": 1.0}, {"b": 1.0}, {"b": 1.0}]) == [
        0.333333333 for _ in range(3)
    ]  # to nine digits


def test_a_group_of_whole_hosts_uses_the_cards_and_one_of_neighbours_does_not() -> None:
    stated = find_topology("dgx-h100")
    gpu = find_gpu("H100")
    across = Kernel.collective("all_gather", 2**30, 16, num_nodes=2, ranks="0..15", gpus_per_node=8)
    inside = Kernel.collective("all_gather", 2**30, 8, ranks="0..7", gpus_per_node=8)

    assert stated.network is not None
    assert {link.split()[0] for link in link_demands(across, 5000.0, gpu)} == {"network", "switch"}
    assert {link.split()[0] for link in link_demands(inside, 5000.0, gpu)} == {"switch"}


def test_one_rank_alone_uses_no_link() -> None:
    assert link_demands(Kernel.collective("all_gather", 2**30, 1), 5000.0, H100) == {}


SHARES = st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 1.0), max_size=3)


@given(st.lists(SHARES, max_size=6))
def test_no_link_carries_more_than_it_can_and_no_transfer_starves(
    demands: list[dict[str, float]],
) -> None:
    rates = fair_rates(demands)

    for link in "abc":
        used = sum(
            rate * demand.get(link, 0.0) for rate, demand in zip(rates, demands, strict=True)
        )
        assert used <= 1.0 + 1e-6
    assert all(0.0 < rate <= 1.0 for rate in rates)


@given(
    st.lists(
        st.builds(Flow, st.integers(0, 2000), st.integers(0, 1000), st.integers(0, 3), SHARES),
        max_size=8,
    )
)
def test_nobody_is_faster_for_others(flows: list[Flow]) -> None:
    times = shared_times_ns(flows)

    assert all(time >= flow.alone_ns for time, flow in zip(times, flows, strict=True))
    assert sum(times) <= len(flows) * (sum(flow.alone_ns for flow in flows) + len(flows))
