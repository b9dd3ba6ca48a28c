"""Every combination of arguments and ranks."""

from __future__ import annotations

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.planning.candidates import Candidate, candidates_of
from neusight.integrations.cli.sweep import FLAG_VALUES, Sweep
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError

TRAIN = Program("train.py", ("--tp", "9", "--fast"))


def test_every_combination_is_a_candidate_in_the_order_asked_for() -> None:
    sweeps = [Sweep("tp", ("1", "2")), Sweep("fast", FLAG_VALUES, is_flag=True)]

    found = candidates_of(TRAIN, sweeps, [None])

    assert [candidate.program.arguments for candidate in found] == [
        ("--tp", "1"), ("--tp", "1", "--fast"), ("--tp", "2"), ("--tp", "2", "--fast"),
    ]  # fmt: skip
    assert [candidate.title for candidate in found[:2]] == ["tp 1, fast no", "tp 1, fast yes"]


def test_several_numbers_of_ranks_are_chosen_among_too() -> None:
    found = candidates_of(TRAIN, [Sweep("tp", ("1", "2"))], [Rank(0, 8), Rank(0, 16)])

    assert [candidate.title for candidate in found] == [
        "world-size 8, tp 1", "world-size 8, tp 2", "world-size 16, tp 1", "world-size 16, tp 2",
    ]  # fmt: skip
    assert found[-1].rank == Rank(0, 16)


def test_without_choices_the_program_is_one_candidate() -> None:
    assert candidates_of(TRAIN, [], [None]) == [Candidate((), TRAIN)]
    assert Candidate((), TRAIN).title == "as it is"


def test_an_argument_that_stands_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="--sweep names micro-batch twice"):
        candidates_of(TRAIN, [Sweep("micro-batch", ("1",)), Sweep("micro_batch", ("2",))], [None])


def test_more_combinations_than_anyone_waits_for_are_refused() -> None:
    sweep = Sweep("a", tuple(map(str, range(100))))

    assert len(candidates_of(TRAIN, [sweep, Sweep("b", sweep.values[:10])], [None])) == 1000
    with pytest.raises(OptionError) as raised:
        candidates_of(TRAIN, [sweep, Sweep("b", sweep.values[:11])], [None])
    assert str(raised.value) == (
        "these are 1,100 combinations; plan 1,000 at most: leave values out"
    )
