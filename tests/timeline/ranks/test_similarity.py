"""Ranks that do the same are distinguished from those that do not."""

from __future__ import annotations

from dataclasses import replace

from meeting_ranks import program, receive, reduce, send, spec, work

from neusight.recording.recording import MathMode, OpCall, OpSignature, Recording, Step, TensorSpec
from neusight.timeline.ranks.similarity import (
    calls_agree,
    connected,
    distinct,
    peers_note,
    peers_of,
    work_of,
)


def test_with_whom_it_is_shared_does_not_matter() -> None:
    first = program(0, (reduce("0..1"), work(1.0)))
    other_group = program(5, (reduce("4..5", name="3"), work(1.0)))

    assert work_of(first) == work_of(other_group)


def test_neither_does_to_whom_something_is_sent() -> None:
    assert work_of(program(0, (send(1, 0),))) == work_of(program(2, (send(3, 2),)))


def test_what_is_done_and_how_often_does() -> None:
    first = program(0, (reduce(), work(1.0)), count=3)

    assert work_of(first) != work_of(program(1, (reduce(),), count=3))
    assert work_of(first) != work_of(program(1, (reduce(elements=16), work(1.0)), count=3))
    assert work_of(first) != work_of(program(1, (reduce(), work(1.0)), count=4))
    assert work_of(program(0, (send(1, 0),))) != work_of(program(1, (receive(0, 1),)))


def test_the_same_done_twice_is_not_the_same_as_once() -> None:
    twice = program(0, (work(1.0), reduce(), work(1.0)))

    assert work_of(twice) == work_of(program(1, (work(1.0), reduce(), work(1.0))))
    assert work_of(twice) != work_of(program(1, (work(1.0), reduce())))


def test_calls_agree_however_steps_are_folded() -> None:
    once = (reduce(),)

    assert calls_agree([program(0, once, once), program(1, once, count=2)])
    assert not calls_agree([program(0, once, once), program(1, once, count=3)])


def test_what_comes_before_the_steps_does_not_matter() -> None:
    first = program(0, (reduce(),))
    loads = replace(first, steps=(Step("setup", (work(9.0),)), *first.steps))

    assert work_of(first) == work_of(loads)


def test_peers_are_those_of_transfers_alone() -> None:
    sends = program(1, (send(2, 1), receive(0, 1), reduce("0..7")))

    assert peers_of(sends) == [0, 2]
    assert peers_of(program(1, (reduce("0..7"),))) == []


def test_who_was_run_alone_is_reported_of_its_peers() -> None:
    [few, many] = [program(1, tuple(send(peer, 1) for peer in range(2, last))) for last in (4, 12)]

    assert peers_note(few).startswith("rank 1 sends to or receives from ranks 2, 3, whose steps")
    assert "--rank all-distinct" in peers_note(few)
    assert "ranks 2, 3, 4, 5, 6, …, whose" in peers_note(many)
    assert peers_note(replace(few, world_size=2)) == peers_note(few)
    assert peers_note(program(1, (reduce("0..7"),))) == ""


def test_a_rank_stands_for_those_that_do_the_same_with_its_peers() -> None:
    pipelines = [
        program(0, (send(2, 0), work(1.0))),
        program(1, (send(3, 1), work(1.0))),
        program(2, (receive(0, 2),)),
        program(3, (receive(1, 3),)),
    ]

    assert [one.rank for one in distinct(pipelines)] == [0, 2]
    assert connected(3, {0: [2], 1: [3], 2: [0], 3: [1, 7]}) == {1, 3}


def test_none_stands_for_another_where_one_is_sent_what_it_does_not_receive() -> None:
    lost = [program(0, (send(1, 0),)), program(1, (receive(0, 1),)), program(2, (send(1, 2),))]

    assert len(distinct(lost)) == 3


def selects(rank: int, tokens: int, selected: int, *, width: int = 16) -> Recording:
    """Clears the rows of the tokens that a mask selects, as an embedding split by vocabulary."""
    places = TensorSpec((selected, 1), (1, selected), "int64")
    rows = TensorSpec((tokens, width), (width, 1), "float32")
    one = TensorSpec((), (), "float32")
    mask = TensorSpec((tokens,), (1,), "bool")
    calls = (
        OpSignature("aten::nonzero", "default", (("self", mask),), (places,)),
        OpSignature(
            "aten::index_put_",
            "default",
            (("self", rows), ("indices", (places,)), ("values", one)),
            (rows,),
        ),
    )
    return program(rank, tuple(OpCall(call, MathMode()) for call in calls))


def test_counts_of_values_may_differ_by_chance() -> None:
    most = work_of(selects(0, 4096, 3089))

    assert most.is_like(work_of(selects(1, 4096, 3012)))
    assert not most.is_like(work_of(selects(2, 4096, 1024)))
    assert not most.is_like(work_of(selects(1, 4000, 3089)))
    assert not most.is_like(work_of(selects(1, 4096, 3089, width=17)))
    assert [each.rank for each in distinct([selects(0, 64, 48), selects(1, 64, 49)])] == [0]
    assert [each.rank for each in distinct([selects(0, 64, 48), selects(1, 64, 16)])] == [0, 1]


def test_other_sizes_may_not() -> None:
    def multiplies(rank: int, elements: int) -> Recording:
        signature = OpSignature("aten::relu", "default", (("self", spec(elements)),), ())
        return program(rank, (OpCall(signature, MathMode()),))

    assert not work_of(multiplies(0, 4096)).is_like(work_of(multiplies(1, 4095)))
