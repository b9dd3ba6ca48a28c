"""Folded steps of several ranks are unfolded where they belong together."""

from __future__ import annotations

from meeting_ranks import program, reduce, work

from neusight.recording.recording import Entry, Recording, Replay, Step
from neusight.timeline.ranks.alignment import aligned, unfolded

MEET, ALONE = (reduce(),), (work(1.0),)


def steps(rank: int, *found: tuple[tuple[Entry, ...], int]) -> Recording:
    made = tuple(Step("train", entries, count) for entries, count in found)
    return Recording(made, gpu="H100", torch_version="2.13", world_size=2, rank=rank)


def indices(runs: list[tuple[Replay, ...]]) -> list[list[int]]:
    return [[run.index for run in one] for one in runs]


def test_equal_programs_are_run_through_as_each_alone_is() -> None:
    runs = aligned([program(rank, MEET, count=100) for rank in (0, 1)])

    assert indices(runs) == [[0, 1, 99], [0, 1, 99]]
    assert [run.represents for run in runs[0]] == [1, 1, 98]


def test_a_step_that_is_its_own_on_one_rank_is_run_through_on_all() -> None:
    plain = steps(0, (MEET, 100))
    logs = steps(1, (MEET, 50), ((*MEET, *ALONE), 1), (MEET, 49))

    runs = aligned([plain, logs])

    assert indices(runs)[0] == [0, 1, 49, 50, 51, 52, 99]
    assert indices(runs)[1] == [0, 1, 49, 50, 51, 52, 99]
    assert sum(run.represents for run in runs[0]) == 100


def test_steps_without_a_meeting_do_not_count() -> None:
    plain = steps(0, (MEET, 100))
    evaluates = steps(1, (MEET, 50), (ALONE, 30), (MEET, 50))

    runs = aligned([plain, evaluates])

    assert indices(runs)[0] == [0, 1, 49, 50, 51, 99]
    assert indices(runs)[1] == [0, 1, 49, 50, 51, 79, 80, 81, 129]


def test_where_ranks_meet_unequally_often_all_steps_are_run_through() -> None:
    runs = aligned([steps(0, (MEET, 9)), steps(1, (MEET, 8))])

    assert [len(run) for run in runs] == [9, 8]


def test_endless_programs_stay_folded() -> None:
    runs = unfolded([steps(0, (MEET, 10**12)), steps(1, (MEET, 10**12))])

    assert [len(run) for run in runs] == [3, 3]
