"""What ranks that ran side by side recorded, as one answer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.failure import FAILURE_OPTION
from neusight.integrations.program.guard.forking import text_of_end
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.runner import Outcome

if TYPE_CHECKING:
    from neusight.integrations.program.ranks.side_by_side import Ranks
    from neusight.ops.user_ops import UserOps
    from neusight.recording.recording import Recording


def joined(ranks: Ranks, *, are_stated: bool) -> Recorded:
    """What all of them recorded, cut to where all are; of ranks not stated only those that
    stand for all. Where one failed, or was interrupted, what is known is of one alone.

    What neusight itself failed at is raised.
    """
    for process in ranks.processes.values():
        if process.done is not None and process.done.error is not None:
            raise process.done.error
    if ranks.failed is not None:
        return _failed(ranks, ranks.failed)
    found: dict[int, Recorded] = {
        rank: process.done.answer
        for rank, process in ranks.processes.items()
        if process.done is not None
    }
    if len(found) < len(ranks.processes) or any(
        one.outcome.is_interrupted for one in found.values()
    ):
        return _interrupted(next(iter(found.values()), None))
    recordings = _cut(found)
    if not are_stated:
        recordings = _standing_for_all(recordings)
    first = next(iter(found.values()))
    outcome = Outcome(stopped_early=any(one.outcome.stopped_early for one in found.values()))
    return replace(
        first,
        outcome=outcome,
        recording=recordings[0],
        ranks=tuple(recordings) if len(recordings) > 1 else (),
        ops=_all_ops(one.ops for one in found.values()),
        files=_digest(one.files for one in found.values()),
    )


def _failed(ranks: Ranks, rank: int) -> Recorded:
    process = ranks.processes[rank]
    if process.done is not None:
        found: Recorded = process.done.answer
        outcome = replace(found.outcome, failure=f"rank {rank}: {found.outcome.failure}")
        return replace(found, outcome=outcome, recording=_of_failed(found.recording, rank))
    assert process.status is not None
    failure, exit_code = text_of_end(os.waitstatus_to_exitcode(process.status))
    return Recorded(Outcome(f"rank {rank}: {failure}", exit_code=exit_code, is_lost=True))


def _of_failed(recording: Recording | None, rank: int) -> Recording | None:
    """What it recorded, whose failure says which rank it was."""
    if recording is None or FAILURE_OPTION not in recording.options:
        return recording
    failure = f"rank {rank}: {recording.options[FAILURE_OPTION]}"
    return replace(recording, options={**recording.options, FAILURE_OPTION: failure})


def _interrupted(first: Recorded | None) -> Recorded:
    """Nobody knows how far each rank came, so only the first one's steps are shown of."""
    outcome = Outcome(failure="interrupted", exit_code=ExitCode.INTERRUPTED)
    if first is None:
        return Recorded(replace(outcome, is_lost=True))
    return replace(first, outcome=outcome)


def _standing_for_all(recordings: Sequence[Recording]) -> list[Recording]:
    """Those that do what no other does; the first says which ranks were run."""
    from neusight.output.ranks import RUN_OPTION, run_text
    from neusight.timeline.ranks.similarity import distinct

    first, *others = distinct(recordings)
    text = run_text([recording.rank for recording in recordings])
    return [replace(first, options={**first.options, RUN_OPTION: text}), *others]


def _cut(found: dict[int, Recorded]) -> list[Recording]:
    from neusight.timeline.ranks.cutting import cut_alike, without_broken_step

    whole = [
        without_broken_step(one.recording) if one.was_stopped else one.recording
        for _, one in sorted(found.items())
        if one.recording is not None
    ]
    stopped = {rank for rank, one in found.items() if one.outcome.stopped_early}
    return cut_alike(whole, stopped=stopped)


def _all_ops(each: Iterable[UserOps | None]) -> UserOps:
    """The ops that any of the ranks brought along."""
    from neusight.ops.user_ops import UserOps

    known = [ops for ops in each if ops is not None]
    names = dict.fromkeys(name for ops in known for name in ops.names)
    kernels = {call: kernels for ops in known for call, kernels in ops.kernels.items()}
    return UserOps(tuple(names), kernels)


def _digest(digests: Iterable[str]) -> str:
    """One for the files of all ranks, which may read different ones."""
    different: Sequence[str] = sorted(set(digests))
    if len(different) == 1:
        return different[0]
    return hashlib.sha256("".join(different).encode()).hexdigest()[: len(different[0])]
