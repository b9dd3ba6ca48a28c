"""Ops have the ranks that they meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meeting_ranks import batch, gather, receive, reduce, send, work

from neusight.fake_cuda.distributed.rank import ranks_text
from neusight.predictors.clusters.placement import ranks_from
from neusight.recording.recording import MathMode, OpCall, OpSignature
from neusight.timeline.ranks.groups import parts_of


@given(st.lists(st.integers(0, 4096), min_size=1, max_size=20, unique=True))
def test_ranks_are_read_as_they_were_written(ranks: list[int]) -> None:
    ranks.sort()

    assert ranks_from(ranks_text(ranks)) == tuple(ranks)


def test_an_op_that_is_no_communication_meets_nobody() -> None:
    assert parts_of(work(1.0), rank=0) == ()


def test_a_collective_meets_its_group_and_says_what_it_moves() -> None:
    (part,) = parts_of(gather("0..6/2"), rank=4)

    assert part.ranks == (0, 2, 4, 6)
    assert part.words == "all_gather_into_tensor of 8 float32"
    assert part.group == "0"


@pytest.mark.parametrize(
    ("op", "what", "words"),
    [
        ("c10d::barrier", ("barrier",), "barrier"),
        ("c10d::allreduce_", ("all_reduce", "elements", "0"), "all_reduce of 0 elements"),
    ],
)
def test_a_call_that_moves_nothing_meets_its_group_too(
    op: str, what: tuple[str, ...], words: str
) -> None:
    arguments = (("process_group", "size=2 nodes=1 name=4 ranks=0..1"),)
    (part,) = parts_of(OpCall(OpSignature(op, "default", arguments, ()), MathMode()), rank=1)

    assert part == (("4", "0..1"), (0, 1), what, words)


@pytest.mark.parametrize(("rank", "call"), [(1, send(3, own=1)), (3, receive(1, own=3))])
def test_both_ends_of_a_transfer_have_one_key(rank: int, call: object) -> None:
    (part,) = parts_of(call, rank)  # type: ignore[arg-type]

    assert part.key == ("0", "1 to 3")
    assert part.ranks == (1, 3)


def test_a_batch_meets_the_other_end_of_each_transfer() -> None:
    call = batch(1, ("isend", 2), ("irecv", 0))

    assert [part.key[1] for part in parts_of(call, rank=1)] == ["1 to 2", "0 to 1"]


def test_ranks_must_agree_on_the_size_of_an_all_reduce() -> None:
    one, other = (parts_of(reduce(elements=size), rank=0)[0] for size in (8, 9))

    assert one.key == other.key
    assert one.what != other.what
