"""Who came, who is missing, and who came for something else."""

from __future__ import annotations

import pytest
from meeting_ranks import gather, reduce, send, work

from neusight.timeline.ranks.meetings import Meetings


def test_a_meeting_is_complete_when_the_last_rank_that_is_run_has_come() -> None:
    meetings = Meetings([0, 2, 5])
    first, second = (meetings.appointments(reduce("0..3"), rank)[0] for rank in (0, 2))

    meetings.come(first, 30)
    assert meetings.complete_ns(first) is None
    assert meetings.missing(first) == [2]
    meetings.come(second, 20)

    assert meetings.complete_ns(first) == meetings.complete_ns(second) == 30
    assert meetings.missing(first) == []


@pytest.mark.parametrize("call", [work(1.0), reduce("4..7"), reduce("0,4"), send(4, own=0)])
def test_a_rank_that_no_other_of_its_group_is_run_with_has_no_appointment(call: object) -> None:
    assert Meetings([0, 1]).appointments(call, 0) == ()  # type: ignore[arg-type]


def test_calls_of_a_group_are_counted_on_each_rank() -> None:
    meetings = Meetings([0, 1])
    numbers = [
        meetings.appointments(call, rank)[0].number
        for rank in (0, 1)
        for call in (reduce(), reduce(name="1"), gather())
    ]

    assert numbers == [1, 1, 2, 1, 1, 2]


def test_ranks_that_call_different_things_are_all_named_with_their_lines() -> None:
    meetings = Meetings([0, 1, 2, 3])
    calls = {1: gather("0..3", line=91), 0: reduce("0..3", line=88), 2: reduce("0..3", line=88)}
    for rank, call in calls.items():
        (appointment,) = meetings.appointments(call, rank)
        meetings.come(appointment, 0)

    assert meetings.complete_ns(appointment) is None
    assert str(meetings.mismatch()).startswith(
        "process group '0', call 1: ranks 0,2 call all_reduce of 8 float32 at train.py:88, rank 1 "
        "calls all_gather_into_tensor of 8 float32 at train.py:91, rank 3 did not come to it."
    )


def test_ranks_that_agree_have_no_mismatch() -> None:
    meetings = Meetings([0, 1])
    for rank in (0, 1):
        (appointment,) = meetings.appointments(reduce(), rank)
        meetings.come(appointment, rank)

    assert meetings.mismatch() is None
    assert meetings.complete_ns(appointment) == 1
