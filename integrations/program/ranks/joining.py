"""What ranks that ran side by side recorded, as one answer."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from textwrap import indent
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.failure import FAILURE_OPTION, failure_options, failure_text
from neusight.integrations.program.guard.forking import text_of_end
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.runner import Outcome
from neusight.predictors.clusters.placement import ranges_text
from neusight.predictors.errors import HangError, MismatchError

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
    found: dict[int, Recorded] = ranks.answers
    first = next(iter(found.values()), None)
    all_ended = len(found) == len(ranks.processes)
    if first is None or not all_ended or any(one.outcome.is_interrupted for one in found.values()):
        # How far each rank came is unknown, so only the first one's steps are reported.
        outcome = Outcome(failure="interrupted", exit_code=ExitCode.INTERRUPTED)
        if first is None:
            return Recorded(replace(outcome, is_lost=True))
        return replace(first, outcome=outcome)
    error = HangError(ranks.unmet) if ranks.unmet else shared_device_error(found)
    if error is not None:
        return refused(first, error)
    recordings = _cut({rank: one for rank, one in found.items() if one.like is None})
    if not are_stated:
        recordings = _standing_for_all(recordings, found)
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
    ended: dict[int, Recorded] = ranks.answers
    if rank not in ended:
        status = ranks.processes[rank].status
        assert status is not None
        failure, exit_code = text_of_end(os.waitstatus_to_exitcode(status))
        return Recorded(Outcome(f"rank {rank}: {failure}", exit_code=exit_code, is_lost=True))
    text = ended[rank].outcome.failure
    those = sorted(number for number, one in ended.items() if one.outcome.failure == text)
    found = ended[those[0]]
    who = f"rank{'s' * (len(those) > 1)} {ranges_text(those)}"
    failure = f"{who}: {text}"
    if HangError.__name__ not in failure:  # which names all who wait
        failure += f"; {_left_waiting(found.recording)}"
    shown = found.outcome.traceback
    if those != [next(iter(ranks.processes))]:
        shown = indent(shown, f"[{who}] ", lambda line: True)
    outcome = replace(found.outcome, failure=failure, traceback=shown)
    recording = found.recording
    if recording is not None and FAILURE_OPTION in recording.options:
        failure = f"{who}: {recording.options[FAILURE_OPTION]}"
        options = {**recording.options, FAILURE_OPTION: failure}
        recording = replace(recording, options=options)
    return replace(found, outcome=outcome, recording=recording)


def _left_waiting(recording: Recording | None) -> str:
    """What its failure means to the other ranks, which were ended."""
    from neusight.recording.recording import OpCall
    from neusight.timeline.ranks.groups import parts_of

    steps, rank = (recording.steps, recording.rank) if recording is not None else ((), 0)
    last = next(
        (
            f"the call after {parts[-1].words}{f' at {call.stack[0]}' if call.stack else ''}"
            for step in reversed(steps)
            for call in reversed(step.entries)
            if isinstance(call, OpCall) and (parts := parts_of(call, rank))
        ),
        "their first collective",
    )
    return f"on a cluster the others wait for it in {last}, unless they fail too"


def shared_device_error(found: Mapping[int, Recorded]) -> MismatchError | None:
    """The error of ranks of one host whose collectives run on one GPU alone, the same."""
    from neusight.recording.recording import DEVICES_OPTION

    ranks: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank, one in found.items():
        if one.recording is not None:
            device = one.recording.options.get(DEVICES_OPTION, "")
            ranks[rank // one.recording.gpus_per_node, device].append(rank)
    for (_, device), those in ranks.items():
        if device and "," not in device and len(those) > 1:
            return MismatchError(
                f"ranks {ranges_text(those)} of one host run collectives on {device} alike, which "
                'NCCL refuses ("Duplicate GPU detected"): call '
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first'
            )
    return None


def refused(first: Recorded, error: Exception) -> Recorded:
    """What the first rank recorded, where ranks could not go on together."""
    assert first.recording is not None
    stated = {**first.recording.options, **failure_options(error)}
    outcome = Outcome(failure_text(error), exit_code=1)
    recording = replace(first.recording, options=stated)
    return replace(first, outcome=outcome, recording=recording, ranks=())


def _standing_for_all(
    recordings: Sequence[Recording], found: Mapping[int, Recorded]
) -> list[Recording]:
    """Those that do what no other does; the first says which ranks were run. The collectives of all
    where the ranks of a group do not make the same: an error of theirs is to name each."""
    from neusight.output.ranks import RUN_OPTION
    from neusight.timeline.ranks.similarity import calls_agree, collectives_of, distinct

    text = ranges_text(found)
    kept = distinct(recordings)
    if len(recordings) < len(found):
        all_calls = _cut(
            {
                rank: replace(one, recording=one.recording and collectives_of(one.recording))
                for rank, one in found.items()
            }
        )
        kept = kept if calls_agree(all_calls) else all_calls
    first, *others = kept
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
