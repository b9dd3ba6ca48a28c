"""Ranks that were run side by side: a row each of what its steady step and its memory are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neusight.memory.placement import MemoryTimeline
from neusight.memory.spread import MemoryVerdict
from neusight.predictors.clusters.placement import ranges_text, ranks_from
from neusight.predictors.formatting import bytes_text, counted, time_text
from neusight.recording.recording import Recording
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import kernels_of, steady_step_of

#: Name in `Recording.options`: the ranks that were run where none were stated, as a text.
RUN_OPTION = "ranks_run"

_NS_PER_US = 1000

#: Ranks that are shown one by one; JSON has all.
_MOST_SHOWN = 16


@dataclass(frozen=True)
class RankRow:
    """A rank's steady step. `bubble` is the share of it in which no kernel runs but transfers and
    collectives, or none at all; `waited_us` the time inside of these for other ranks, all streams
    counted."""

    rank: int
    step_us: float
    bubble: float
    waited_us: float
    peak_memory_bytes: int
    peak_reserved_bytes: int
    memory_verdict: MemoryVerdict


def rank_row(recording: Recording, timeline: Timeline, memory: MemoryTimeline) -> RankRow:
    """The figures of one rank, scheduled with the others."""
    step = steady_step_of(timeline)
    step_ns = 0 if step is None else step.latency_ns
    computing = 0 if step is None else step.gpu_busy_ns - step.exposed_communication_ns
    kernels = () if step is None else kernels_of(step, timeline)
    return RankRow(
        rank=recording.rank,
        step_us=step_ns / _NS_PER_US,
        bubble=round(1.0 - min(computing, step_ns) / step_ns, 6) if step_ns else 0.0,
        waited_us=sum(span.waited_ns for span in kernels) / _NS_PER_US,
        peak_memory_bytes=memory.peak_allocated,
        peak_reserved_bytes=memory.peak_reserved,
        memory_verdict=memory.verdict,
    )


#: Steps that differ by a smaller share are equally long: ranks that wait for each other end alike.
_EQUAL_SHARE = 1e-3


def slowest(rows: Sequence[RankRow]) -> RankRow:
    """The one with the longest step; of equals the one that waits least, for which the others wait,
    then the first."""
    longest = max(row.step_us for row in rows)
    equals = [row for row in rows if row.step_us >= longest * (1.0 - _EQUAL_SHARE)]
    return min(equals, key=lambda row: row.waited_us)


def _slowest_rank(rows: Sequence[RankRow]) -> str:
    last = slowest(rows)
    step = f"{time_text(last.step_us)} a step"
    others = [row for row in rows if row is not last]
    if others and all(
        abs(getattr(row, name) - getattr(last, name)) <= _EQUAL_SHARE * last.step_us
        for row in others
        for name in ("step_us", "waited_us")
    ):
        return f"equally fast, {step}"
    return f"slowest: rank {last.rank}, {step}"


def ranks_run(recording: Recording) -> tuple[int, ...]:
    """The ranks that were run for `--rank all-distinct`, also those that others stand for; none
    where it was not asked for."""
    text = recording.options.get(RUN_OPTION)
    return () if text is None else ranks_from(text)


def run_as_text(recording: Recording, shown: Iterable[int]) -> str:
    """Which ranks those that are `shown` stand for, and which were not run at all; "" where no
    more than these were asked for."""
    run = frozenset(ranks_run(recording))
    if not run:
        return ""
    alike, unknown = run.difference(shown), frozenset(range(recording.world_size)) - run
    words = []
    if alike:
        verb = "does" if len(alike) == 1 else "do"
        words.append(f"rank{'s' * (len(alike) > 1)} {ranges_text(alike)} {verb} the same")
    if unknown:
        words.append(f"{counted(len(unknown), 'rank')} not run: {ranges_text(unknown)}")
    return "; ".join(words)


def rank_lines(rows: Sequence[RankRow], recording: Recording) -> list[str]:
    """A line for each rank, the slowest rank, and what is known of the other ranks."""
    if not rows:
        return []
    world_size = recording.world_size
    title = f"  ranks     {len(rows)} of {world_size} side by side; {_slowest_rank(rows)}"
    header = f"    {'rank':<6}{'step':>11}{'no compute':>12}{'waits':>11}{'memory':>12}"
    lines = [
        f"    {row.rank:<6}{time_text(row.step_us):>11}{row.bubble:>12.1%}"
        f"{time_text(row.waited_us):>11}{bytes_text(row.peak_memory_bytes):>12}"
        + ("" if row.memory_verdict == "fits" else f"  {row.memory_verdict}")
        for row in rows[:_MOST_SHOWN]
    ]
    more = len(rows) - _MOST_SHOWN
    others = run_as_text(recording, [row.rank for row in rows])
    return [
        title,
        header,
        *lines,
        *([f"    and {more} more"] if more > 0 else []),
        *([f"    {others}"] if others else []),
    ]
