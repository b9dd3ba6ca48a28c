"""Ranks of one program scheduled together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from neusight.predictors.errors import HangError, MismatchError
from neusight.recording.recording import Recording, Replay
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing
from neusight.timeline.ranks.alignment import aligned, unfolded
from neusight.timeline.ranks.meetings import Meetings, rank_text
from neusight.timeline.ranks.rank_schedule import RankSchedule
from neusight.timeline.spans import Timeline

#: The time limit of a process group after which a cluster gives up (torch.distributed, NCCL), and
#: how many waiting calls an error names.
_LIMIT = "its time limit (by default 10 minutes)"
_MOST_SHOWN = 20


def schedule_together(
    recordings: Sequence[Recording],
    price: Pricing,
    host: HostProfile,
    *,
    stretch_ns: Sequence[Sequence[int]] = (),
) -> tuple[Timeline, ...]:
    """The timeline of each rank, where a collective lasts until the last of those that are run has
    come. Ranks that are not run are stood for by those that are.

    `stretch_ns` is what each rank's kernels, in order of launch, take beyond their estimates.
    MismatchError where ranks do not agree on a call, HangError where none can go on; both name the
    ranks, what they call, and the program's lines.
    """
    runs = aligned(recordings)
    try:
        return _scheduled(recordings, runs, price, host, stretch_ns)
    except (HangError, MismatchError):
        # Steps that are folded away may have been other steps on other ranks.
        all_runs = unfolded(recordings)
        if [*map(len, all_runs)] == [*map(len, runs)]:
            raise
        return _scheduled(recordings, all_runs, price, host, ())


def _scheduled(
    recordings: Sequence[Recording],
    runs: Sequence[tuple[Replay, ...]],
    price: Pricing,
    host: HostProfile,
    stretch_ns: Sequence[Sequence[int]],
) -> tuple[Timeline, ...]:
    meetings = Meetings([recording.rank for recording in recordings])
    ranks = [
        RankSchedule(
            recording.rank,
            replays,
            price,
            host,
            meetings,
            stretch_ns=stretch_ns[place] if stretch_ns else (),
        )
        for place, (recording, replays) in enumerate(zip(recordings, runs, strict=True))
    ]
    while sum(rank.advance() for rank in ranks):
        continue
    if not all(rank.is_done for rank in ranks):
        mismatch = meetings.mismatch()
        if mismatch is not None:
            raise mismatch
        raise HangError(_hang_text(ranks, meetings))
    return tuple(rank.timeline() for rank in ranks)


def _hang_text(ranks: Sequence[RankSchedule], meetings: Meetings) -> str:
    """Which rank waits for which, in which call, and where."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        for appointment in rank.waiting():
            missing = rank_text(meetings.missing(appointment))
            waiting[f"in {appointment} ({appointment.place}) for {missing}"].append(rank.rank)
    lines = [
        f"{rank_text(those)} wait{'s' * (len(those) == 1)} {what}"
        for what, those in waiting.items()
    ]
    ended = [rank.rank for rank in ranks if rank.is_done]
    if ended:
        verbs = "have ended and make" if len(ended) > 1 else "has ended and makes"
        lines.append(f"{rank_text(ended)} {verbs} no such call")
    reported = "; ".join(lines[:_MOST_SHOWN])
    more = f"; and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
    return f"no rank can continue, and a cluster would hang here until {_LIMIT}: {reported}{more}"
