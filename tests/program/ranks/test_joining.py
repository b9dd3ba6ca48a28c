"""What ranks recorded becomes one answer, whatever became of each."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from meeting_ranks import program, reduce, work

from neusight.exit_codes import ExitCode
from neusight.failure import FAILURE_OPTION
from neusight.integrations.program.ranks import joining
from neusight.integrations.program.ranks.rank_process import Done, RankProcess
from neusight.integrations.program.ranks.side_by_side import Ranks
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.runner import Outcome
from neusight.ops.user_ops import UserOps
from neusight.output.ranks import RUN_OPTION
from neusight.recording.recording import Entry, Recording

EARLY = Outcome(stopped_early=True)


def process(rank: int, done: Done | None, status: int = 0) -> RankProcess:
    return RankProcess(rank, 0, None, 0, done=done, status=status)  # type: ignore[arg-type]


def recorded(
    rank: int, *entries: Entry, count: int = 5, outcome: Outcome = EARLY, files: str = "abc"
) -> Done:
    recording = program(rank, entries or (reduce("0..7"),), count=count)
    return Done("early", Recorded(outcome, recording, UserOps((f"op{rank}",)), files))


def ranks_of(*done: Done) -> Ranks:
    processes = {}
    for each in done:
        rank = each.answer.recording.rank
        processes[rank] = process(rank, each)
    return Ranks(processes)


def joined(found: Ranks, *, are_stated: bool = True) -> Recorded:
    return joining.joined(found, are_stated=are_stated)


def ranks(found: Recorded) -> list[int]:
    return [recording.rank for recording in found.ranks]


def test_recordings_of_all_are_cut_to_the_same_steps() -> None:
    found = joined(ranks_of(recorded(0, count=7), recorded(1, work(1.0), reduce("0..7"), count=6)))

    assert ranks(found) == [0, 1]
    assert [one.steps[0].count for one in found.ranks] == [6, 6]
    assert found.recording == found.ranks[0]
    assert found.outcome.stopped_early
    assert found.ops is not None
    assert found.ops.names == ("op0", "op1")


def test_ranks_that_nobody_stated_are_left_out_where_they_do_what_another_does() -> None:
    slow = recorded(2, work(1.0), work(2.0), reduce("0..7"))
    alike = joined(ranks_of(*map(recorded, range(4))), are_stated=False)
    other = joined(ranks_of(recorded(0), recorded(1), slow, recorded(3)), are_stated=False)

    assert (alike.ranks, ranks(other)) == ((), [0, 2])
    assert alike.recording is not None
    assert alike.recording.options[RUN_OPTION] == "0..3"
    assert other.recording is not None
    assert other.recording.options[RUN_OPTION] == "0..3"


def test_no_rank_is_left_out_where_they_do_not_make_the_same_calls() -> None:
    other = recorded(2, reduce("0..7", elements=16))
    found = joined(ranks_of(recorded(0), recorded(1), other, recorded(3)), are_stated=False)

    assert ranks(found) == [0, 1, 2, 3]


@pytest.mark.parametrize(("elements", "kept"), [(8, []), (16, [0, 1, 2])])
def test_of_a_rank_that_was_found_alike_the_calls_are_compared_all_the_same(
    elements: int, kept: list[int]
) -> None:
    like = recorded(2, reduce("0..7", elements=elements))
    like = replace(like, answer=replace(like.answer, like=0))

    assert ranks(joined(ranks_of(recorded(0), recorded(1), like), are_stated=False)) == kept


def test_who_waits_for_what_is_never_sent_is_a_failure_of_all() -> None:
    found = ranks_of(recorded(0), recorded(1))
    found.unmet = "rank 1 waits for rank 5"

    answer = joined(found)

    assert answer.outcome == Outcome("HangError: rank 1 waits for rank 5", exit_code=1)
    assert answer.ranks == ()


def test_stated_ranks_stay_even_where_they_are_alike() -> None:
    assert ranks(joined(ranks_of(recorded(0), recorded(1)))) == [0, 1]


def test_files_of_ranks_that_read_different_ones_have_a_digest_of_their_own() -> None:
    alike = joined(ranks_of(recorded(0), recorded(1)))
    unlike = joined(ranks_of(recorded(0), recorded(1, files="xyz")))

    assert alike.files == "abc"
    assert unlike.files not in ("abc", "xyz")


def test_of_a_failure_the_rank_is_reported_and_what_it_did() -> None:
    failed = Recorded(Outcome("ValueError: no such layer", exit_code=1), _failing(3))
    found = ranks_of(recorded(0))
    found.processes[3], found.failed = process(3, Done("failed", failed)), 3

    answer = joined(found)

    assert answer.outcome.failure == (
        "rank 3: ValueError: no such layer; on a cluster the others wait for it in the call after "
        "all_reduce of 8 float32 at train.py:1, unless they fail too"
    )
    assert answer.recording is not None
    assert answer.recording.options[FAILURE_OPTION] == "rank 3: ValueError: no such layer"
    assert answer.ranks == ()


def test_ranks_that_fail_alike_are_reported_once() -> None:
    """As where a model cannot be divided by their number; the others were ended before."""
    text = "RuntimeError: shape is invalid"
    failed = Recorded(Outcome(text, exit_code=1, traceback=f"at line 1\n{text}\n"))
    found = ranks_of(recorded(0))
    for rank in (3, 1, 2):
        found.processes[rank] = process(rank, Done("failed", failed))
    found.failed = 3

    outcome = joined(found).outcome

    assert outcome.failure.startswith(f"ranks 1..3: {text}; on a cluster the others wait")
    assert outcome.traceback == f"[ranks 1..3] at line 1\n[ranks 1..3] {text}\n"


def _failing(rank: int) -> Recording:
    return replace(
        program(rank, (reduce(),)), options={FAILURE_OPTION: "ValueError: no such layer"}
    )


def test_a_rank_whose_process_is_killed_is_named() -> None:
    found = ranks_of(recorded(0))
    found.processes[3], found.failed = process(3, None, signal.SIGKILL), 3

    answer = joined(found)

    assert answer.outcome.failure.startswith("rank 3: its process was killed by SIGKILL")
    assert answer.outcome.is_lost


def test_after_an_interrupt_the_first_rank_alone_is_reported() -> None:
    interrupted = Outcome("interrupted", exit_code=ExitCode.INTERRUPTED)

    answer = joined(ranks_of(recorded(0), recorded(1, outcome=interrupted)))

    assert answer.outcome.is_interrupted
    assert answer.ranks == ()
    assert answer.recording is not None

    nothing = joined(Ranks({0: process(0, None)}))
    assert nothing.outcome.is_interrupted
    assert nothing.outcome.is_lost


def test_what_neusight_failed_at_is_raised() -> None:
    found = ranks_of(recorded(0))
    found.processes[1] = process(1, Done("failed", error=LookupError("of our own")))

    with pytest.raises(LookupError, match="of our own"):
        joined(found)
