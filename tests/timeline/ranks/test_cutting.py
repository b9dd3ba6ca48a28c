"""Recordings of ranks that were stopped apart end together."""

from __future__ import annotations

from meeting_ranks import program, reduce, work

from neusight.recording.recording import Entry, Recording, Step
from neusight.timeline.ranks.cutting import cut_alike, without_broken_step

MEET, ALONE, BROKEN = (reduce(),), (work(1.0),), (work(2.0), reduce())


def steps(rank: int, *found: tuple[tuple[Entry, ...], int]) -> Recording:
    """Those that do not meet infer."""
    made = tuple(
        Step("eval" if entries is ALONE else "train", entries, count) for entries, count in found
    )
    return Recording(made, gpu="H100", torch_version="2.13", world_size=2, rank=rank)


def counts(recordings: list[Recording]) -> list[list[int]]:
    return [[step.count for step in recording.steps] for recording in recordings]


def test_all_end_where_the_first_that_was_stopped_did() -> None:
    cut = cut_alike([program(0, MEET, count=7), program(1, MEET, count=9)], stopped={0, 1})

    assert counts(cut) == [[7], [7]]


def test_a_call_that_a_rank_left_out_stays_missing() -> None:
    skips = Recording(
        (Step("train", MEET, 4), Step("train", ALONE, 3)), "H100", "2.13", world_size=2, rank=1
    )

    cut = cut_alike([program(0, MEET, count=6), skips], stopped={0, 1})

    assert counts(cut) == [[6], [4, 2]]


def test_steps_of_one_rank_alone_do_not_count() -> None:
    evaluates = steps(1, (MEET, 3), (ALONE, 2), (MEET, 5), (ALONE, 4))

    cut = cut_alike([program(0, MEET, count=4), evaluates], stopped={0})

    assert counts(cut) == [[4], [3, 2, 1]]


def test_what_a_rank_left_out_by_itself_stays_missing() -> None:
    recordings = [program(0, MEET, count=7), program(1, MEET, count=5)]

    assert cut_alike(recordings, stopped={0}) == recordings
    assert cut_alike(recordings, stopped=set()) == recordings


def test_steps_before_the_first_that_count_are_kept() -> None:
    warms_up = steps(1, (ALONE, 2), (MEET, 5))

    assert counts(cut_alike([program(0, MEET, count=3), warms_up], stopped={0})) == [[3], [2, 3]]


def test_a_rank_that_was_stopped_before_it_trained_cuts_nothing() -> None:
    recordings = [program(0, MEET, count=7), steps(1, (ALONE, 3))]

    assert cut_alike(recordings, stopped={1}) == recordings


def test_where_nobody_trains_steps_of_inference_count() -> None:
    cut = cut_alike([steps(0, (ALONE, 7)), steps(1, (ALONE, 5))], stopped={0, 1})

    assert counts(cut) == [[5], [5]]


def test_where_steps_are_not_the_same_calls_are_counted() -> None:
    twice = program(0, (*MEET, *MEET), count=3)
    once = program(1, MEET, count=5)

    cut = cut_alike([twice, once], stopped={0, 1})

    assert counts(cut) == [[2], [4]]
    assert "ranks do not agree on what a step is" in cut[0].warnings[0]


def test_a_step_that_was_broken_off_goes() -> None:
    assert counts([without_broken_step(steps(0, (MEET, 5), (BROKEN, 1)))]) == [[5]]
    assert counts([without_broken_step(steps(0, (MEET, 5)))]) == [[5]]
    assert counts([without_broken_step(steps(0, (BROKEN, 1)))]) == [[1]]
