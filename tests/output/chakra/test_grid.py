"""Ranks that were not run, by those that were."""

from __future__ import annotations

import pytest

from neusight.ops.communication.messages import Message, ProcessGroup
from neusight.output.chakra.grid import GridRank, numbered_groups, ranks_of_grid
from neusight.output.chakra.tasks import Task


def exchange(*messages: Message) -> list[Task]:
    return [
        Task(
            "transfer" if message.is_transfer else "collective",
            "", 100, 0, 10, (), messages=(message,),
        )
        for message in messages
    ]  # fmt: skip


def reduce(*ranks: int) -> Message:
    return Message("allreduce", ProcessGroup("", ranks), 8, 8, "float32")


def send(own: int, peer: int) -> Message:
    return Message("send", ProcessGroup("", (own, peer)), 8, 8, "float32", peer=peer)


def likes(places: list[GridRank]) -> list[int]:
    return [place.like for place in places]


def test_all_ranks_are_like_the_only_one_that_was_run() -> None:
    assert likes(ranks_of_grid({2: exchange(reduce(0, 1, 2, 3))}, 4)) == [2, 2, 2, 2]


def test_ranks_are_like_those_at_their_place_of_the_line_that_was_run() -> None:
    """Stages of a pipeline that are outermost, innermost, and in between."""
    nothing = exchange(reduce(0))

    assert likes(ranks_of_grid(dict.fromkeys((0, 4), nothing), 8)) == [0] * 4 + [4] * 4
    assert likes(ranks_of_grid(dict.fromkeys((0, 1), nothing), 8)) == [0, 1] * 4
    assert likes(ranks_of_grid(dict.fromkeys((0, 2), nothing), 8)) == [0, 0, 2, 2] * 2


def test_the_last_rank_may_do_something_else() -> None:
    nothing = exchange(reduce(0))

    assert likes(ranks_of_grid(dict.fromkeys((0, 7), nothing), 8)) == [0] * 7 + [7]
    assert likes(ranks_of_grid(dict.fromkeys((0, 4, 7), nothing), 8)) == [0] * 4 + [4] * 3 + [7]


def test_ranks_that_were_all_run_are_themselves() -> None:
    tasks = {rank: exchange(send(rank, rank)) for rank in range(3)}

    assert likes(ranks_of_grid(tasks, 3)) == [0, 1, 2]


@pytest.mark.parametrize("run", [(0, 1, 3), (0, 3), (2, 3), (0, 5)])
def test_ranks_that_are_no_line_of_a_grid_say_nothing_of_others(run: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not determine what the others do"):
        ranks_of_grid(dict.fromkeys(run, exchange(reduce(0))), 8)


def test_a_rank_that_sends_to_one_that_was_not_run_says_so() -> None:
    with pytest.raises(ValueError, match="rank 0 exchanges with rank 1, which was not run"):
        ranks_of_grid({0: exchange(send(0, 1))}, 8)


def test_groups_and_peers_are_shifted_to_where_a_rank_stands() -> None:
    """Data parallel of two, in it a pipeline of two, in it tensor parallel of two."""
    place = GridRank(7, like=2, world_size=8)

    assert place.members((2, 3)) == (6, 7)
    assert place.members((2, 6)) == (3, 7)
    assert place.members(tuple(range(8))) == tuple(range(8))
    assert place.peer(send(2, 0)) == 5
    assert GridRank(2, 2, 8).members((0, 2, 3)) == (0, 2, 3)


def test_a_group_that_is_no_line_of_a_grid_cannot_be_shifted() -> None:
    with pytest.raises(ValueError, match="lie in no grid"):
        GridRank(7, like=2, world_size=8).members((0, 2, 3))


def test_a_receive_from_anybody_is_from_the_other_of_the_two() -> None:
    anybody = Message("recvAnySource", ProcessGroup("", (1, 4)), 8, 8, "float32")

    assert GridRank(1, 1, 8).peer(anybody) == 4


def test_groups_have_equal_numbers_on_all_ranks_and_that_of_everybody_has_none() -> None:
    tasks = {0: exchange(reduce(0, 1), reduce(0, 2), reduce(0, 1, 2, 3))}
    places = ranks_of_grid(tasks, 4)

    groups = numbered_groups(places, tasks)

    assert groups == {(0, 1, 2, 3): 0, (0, 1): 1, (0, 2): 2, (1, 3): 3, (2, 3): 4}
