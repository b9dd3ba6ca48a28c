"""Where the ranks of a group lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.placement import (
    GroupPlacement,
    placement_of,
    ranks_from,
    require_joined,
)
from neusight.predictors.clusters.topology import Level, Topology
from neusight.predictors.errors import TopologyError
from neusight.predictors.kernel import CollectiveSize

DGX = find_topology("dgx-h100")
RACK = find_topology("gb200-nvl72")


def placed(
    ranks: str, topology: Topology = DGX, per_node: int = 8, nodes: int = 1
) -> GroupPlacement:
    world = len(ranks_from(ranks))
    return placement_of(CollectiveSize(1024, world, nodes, ranks, per_node), topology)


@pytest.mark.parametrize(
    ("ranks", "islands", "least", "most", "cards"),
    [
        ("0..7", 1, 8, 8, 8.0),
        ("0..63", 8, 8, 8, 8.0),
        ("0..56/8", 8, 1, 1, 1.0),
        ("0..62/2", 8, 4, 4, 4.0),
        ("0..8", 2, 1, 8, 1.0),
        ("6,7,8,9,10", 2, 2, 3, 2.0),
    ],
)
def test_ranks_and_gpus_of_a_node_give_the_nodes(
    ranks: str, islands: int, least: int, most: int, cards: float
) -> None:
    place = placed(ranks)

    assert place[:3] == (islands, least, most)
    assert place.cards == cards
    assert (place.network is None) == (islands == 1)


def test_a_node_that_is_not_full_holds_what_the_program_says() -> None:
    """Two ranks a node: rank 2 is on the second."""
    assert placed("0..3", per_node=2).num_islands == 2


def test_few_cards_are_shared_and_many_are_each_gpus_own() -> None:
    p4d, p5 = find_topology("p4d"), find_topology("p5.48xlarge")

    assert placed("0..56/8", p4d).cards == 1.0
    assert placed("0..63", p4d).cards == 4.0
    assert (placed("0..56/8", p5).cards, placed("0..63", p5).cards) == (4.0, 32.0)


def test_a_rack_joins_the_nodes_in_it() -> None:
    inside, beyond = (placed(f"0..{last}", RACK, per_node=4) for last in (71, 143))

    assert (inside.num_islands, inside.network) == (1, None)
    assert (beyond.num_islands, beyond.least, beyond.cards) == (2, 72, 72.0)


def test_over_pcie_the_innermost_level_that_joins_all_counts() -> None:
    box = find_topology("pcie-l40s")

    levels = [placed(ranks, box).inside.ranks for ranks in ("0,1", "2,3", "1,2", "0..3", "3,4")]

    assert levels == [2, 2, 4, 4, 8]


def test_without_ranks_nodes_share_them() -> None:
    place = placement_of(CollectiveSize(1024, 20, 3), DGX)

    assert place[:3] == (3, 6, 7)


def test_a_group_beyond_the_last_level_is_named_with_it() -> None:
    with pytest.raises(TopologyError, match=r"16 ranks \(0..15\).*8 GPUs.*'pcie'.*pcie-l40s"):
        placed("0..15", find_topology("pcie-l40s"))


def test_pods_are_joined_by_the_level_above() -> None:
    pods = Topology(
        "pods", 8,
        (Level("switch", 450.0, ranks=8), Level("network", 50.0, ranks=32, nics_per_node=8),
         Level("network", 50.0, nics_per_node=8, oversubscription=4.0)),
    )  # fmt: skip

    near, far = (placed(f"0..{last}", pods).network for last in (31, 63))

    assert near is not None
    assert far is not None
    assert (near.oversubscription, far.oversubscription) == (1.0, 4.0)


def test_a_topology_that_nobody_stated_grows_with_the_program() -> None:
    size = CollectiveSize(1024, 16, 1, "0..15", 16)

    assert placement_of(size, DGX, is_stated=False).num_islands == 1
    with pytest.raises(TopologyError, match="16 ranks on each node"):
        placement_of(size, DGX)


def test_all_ranks_of_a_program_must_be_joined() -> None:
    require_joined(DGX, 1024, 8)
    with pytest.raises(TopologyError, match="no level above"):
        require_joined(find_topology("pcie-l40s"), 16, 8)


@given(
    world=st.integers(1, 200), per_node=st.integers(1, 8), step=st.integers(1, 9),
    topology=st.sampled_from([DGX, find_topology("p4d"), find_topology("mi300x")]),
)  # fmt: skip
def test_every_rank_is_on_one_island(
    world: int, per_node: int, step: int, topology: Topology
) -> None:
    ranks = f"0..{world - 1}/{step}"
    place = placed(ranks, topology, per_node)
    count = len(ranks_from(ranks))

    assert place.num_islands * place.least <= count <= place.num_islands * place.most
    assert place.num_islands == len({rank // per_node for rank in ranks_from(ranks)})
