"""A rank goes on until it has to wait for a GPU that waits for another rank."""

from __future__ import annotations

from meeting_ranks import FREE, price, program, reduce, work

from neusight.recording.recording import Synchronize, replays
from neusight.timeline.ranks.meetings import Meetings
from neusight.timeline.ranks.rank_schedule import RankSchedule


def test_the_host_stops_only_where_it_needs_what_nobody_knows() -> None:
    meetings = Meetings([0, 1])
    recording = program(0, [reduce(), work(5.0), Synchronize("synchronize"), work(1.0)])
    rank = RankSchedule(0, list(replays(recording)), price, FREE, meetings)

    assert rank.advance()
    assert not rank.advance()
    assert [found.rank for found in rank.waiting()] == [0]
    (other,) = meetings.appointments(reduce(), 1)
    meetings.come(other, 50_000)
    rank.advance()

    assert rank.is_done
    timeline = rank.timeline()
    assert [(k.start_ns, k.end_ns) for k in timeline.kernels] == [
        (0, 60_000),
        (60_000, 65_000),
        (65_000, 66_000),
    ]
    assert timeline.steps[0].latency_ns == 66_000
