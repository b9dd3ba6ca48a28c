"""Of many ranks those are found that do as the first ones do."""

from __future__ import annotations

from dataclasses import replace

from meeting_ranks import program, reduce, work

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.program.ranks.rank_process import Done, RankProcess
from neusight.integrations.program.ranks.scanning import Scan
from neusight.integrations.program.ranks.side_by_side import Ranks
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.runner import Outcome
from neusight.recording.recording import Entry

EARLY, WELL = Outcome(stopped_early=True), Outcome()


def recorded(
    rank: int, *entries: Entry, count: int = 2, outcome: Outcome = EARLY, world: str = "0..63"
) -> Recorded:
    return Recorded(outcome, program(rank, (work(1.0), *entries, reduce(world)), count=count))


def begun(first: Recorded) -> Ranks:
    process = RankProcess(0, 0, None, 0, done=Done("early", first), status=0)  # type: ignore[arg-type]
    return Ranks({0: process})


def scan_after(first: Recorded, world_size: int = 64) -> tuple[Scan, list[int]]:
    """With the ranks that it runs; each is recorded as begun."""
    scan, ranks = Scan(Rank(0, world_size, 8)), begun(first)
    others = []
    for rank in scan.others(ranks):
        others.append(rank)
        ranks.processes[rank] = RankProcess(rank, 0, None, 0)  # type: ignore[arg-type]
    return scan, others


def test_all_others_of_a_small_program_are_run_for_one_steady_step() -> None:
    scan, others = scan_after(recorded(0))

    assert sorted(others) == list(range(1, 64))
    assert (scan.steps(5), Scan(scan.template).steps(5)) == (1, 5)


def test_of_a_large_program_sixteen_ranks_are_run_of_all_hosts_first() -> None:
    large = recorded(0, *[work(1.0)] * 50_000)

    _, others = scan_after(large)

    assert others == [63, *range(1, 8), *range(8, 57, 8)]


def test_a_program_that_came_to_its_end_is_run_to_it_on_all_ranks() -> None:
    assert scan_after(recorded(0, outcome=WELL))[0].steps(5) == 5


def test_of_a_rank_that_begins_as_another_one_the_collectives_are_kept() -> None:
    scan, _ = scan_after(recorded(0, count=6))

    found = scan.compared(recorded(9))

    assert found.like == 0
    assert found.recording is not None
    assert [step.entries for step in found.recording.steps] == [(reduce("0..63"),)]


def test_a_rank_that_does_more_or_came_to_another_end_is_kept_whole() -> None:
    scan, _ = scan_after(recorded(0, count=6))
    slow, ended = recorded(9, work(2.0)), recorded(9, count=6, outcome=WELL)

    assert (scan.compared(slow), scan.compared(ended)) == (slow, ended)


def test_before_the_first_have_ended_nothing_is_compared() -> None:
    found = replace(recorded(1), was_stopped=True)

    assert Scan(Rank(0, 64, 8)).compared(found) is found
