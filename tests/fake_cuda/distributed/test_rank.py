"""Which of many processes the program is run as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.fake_cuda.distributed.rank import Rank, ranks_text, stated_rank
from neusight.predictors.errors import OptionError


@given(num_nodes=st.integers(1, 200), per_node=st.integers(1, 16), data=st.data())
def test_every_rank_has_its_place(num_nodes: int, per_node: int, data: st.DataObject) -> None:
    world_size = num_nodes * per_node
    index = data.draw(st.integers(0, world_size - 1))

    rank = Rank(index, world_size, per_node)

    assert rank.node * per_node + rank.local_index == index
    assert (rank.num_nodes, rank.local_world_size) == (num_nodes, per_node)
    environment = rank.environment()
    assert environment["RANK"] == str(index)
    assert environment["LOCAL_RANK"] == str(rank.local_index)
    assert environment["WORLD_SIZE"] == str(world_size)


@pytest.mark.parametrize(
    ("world_size", "expected"), [(1, (1, 1)), (4, (4, 1)), (8, (8, 1)), (64, (8, 8))]
)
def test_hosts_have_up_to_eight_gpus(world_size: int, expected: tuple[int, int]) -> None:
    rank = Rank(0, world_size)

    assert (rank.gpus_per_node, rank.num_nodes) == expected


def test_a_host_need_not_be_full_where_it_is_the_only_one() -> None:
    rank = Rank(5, 6, 8)

    assert (rank.num_nodes, rank.local_world_size, rank.node, rank.local_index) == (1, 6, 0, 5)
    assert Rank(7, 8, 8).node == 0


@pytest.mark.parametrize(("world_size", "per_node"), [(2, 2), (4, 4), (16, 4), (1, 1)])
def test_a_node_of_the_system_holds_as_many_as_there_are(world_size: int, per_node: int) -> None:
    system: Any = SimpleNamespace(gpus_per_node=4)

    assert stated_rank(world_size=world_size, environment={}, system=system) == Rank(
        0, world_size, per_node
    )
    stated = stated_rank(world_size=16, gpus_per_node=2, environment={}, system=system)
    assert stated == Rank(0, 16, 2)
    unknown: Any = SimpleNamespace(gpus_per_node=-1)
    assert stated_rank(world_size=16, environment={}, system=unknown) == Rank(0, 16, 8)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""), ([4], "4"), ([4, 5], "4,5"), ([4, 5, 6], "4..6"), ([4, 6, 8], "4..8/2"),
        ([6, 5, 4], "6,5,4"), ([1, 1, 1], "1,1,1"), ([0, 1, 3], "0,1,3"), ([0, 2, 3], "0,2,3"),
    ],
)  # fmt: skip
def test_ranks_at_equal_distances_are_a_range(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("index", "world_size", "per_node", "words"),
    [
        (0, 12, 8, "12 ranks do not fill nodes of 8 GPUs"),
        (8, 8, 8, "no rank 8 of 8; ranks count from 0 to 7"),
        (-1, 8, 8, "no rank -1"),
        (0, 0, 8, "world size is 0"),
        (0, 8, -1, "GPUs per node"),
    ],
)
def test_ranks_that_mean_nothing_are_refused(
    index: int, world_size: int, per_node: int, words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        Rank(index, world_size, per_node)


def test_a_launchers_variables_count_where_nothing_is_stated() -> None:
    environment = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}

    assert stated_rank(environment=environment) == Rank(9, 16, 4)
    assert stated_rank(index=3, world_size=8, environment=environment) == Rank(3, 8, 8)
    assert stated_rank(index=1, environment=environment) == Rank(1, 16, 4)
    assert stated_rank(environment={"RANK": "1"}) is None


@pytest.mark.parametrize("text", ["", "eight", "-1"])
def test_variables_that_are_no_numbers_are_named(text: str) -> None:
    with pytest.raises(OptionError, match="variable WORLD_SIZE"):
        stated_rank(environment={"RANK": "0", "WORLD_SIZE": text})


def test_a_rank_without_a_world_is_refused() -> None:
    with pytest.raises(OptionError, match="without --world-size"):
        stated_rank(index=1, environment={})


def test_no_gpus_on_a_node_are_refused() -> None:
    with pytest.raises(OptionError, match="0 GPUs per node"):
        stated_rank(world_size=8, gpus_per_node=0, environment={})


@pytest.mark.parametrize("several", ["all-distinct", (0, 3)])
def test_several_ranks_are_for_the_command_line(several: Any) -> None:
    with pytest.raises(OptionError, match="--rank all-distinct SCRIPT runs several side by side"):
        stated_rank(index=several, world_size=8)


def test_a_program_alone_is_the_only_rank() -> None:
    assert Rank() == Rank(index=0, world_size=1)
