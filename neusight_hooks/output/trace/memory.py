"""The memory events of a trace: one each time the allocator gives or takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from neusight.memory.placement import MemoryEvent, MemoryTimeline
from neusight.output.trace.events import APART_NS, EventLog
from neusight.timeline.operators.tree import shown_positions
from neusight.timeline.spans import StepSpan, Timeline

__all__ = ["write_memory_events"]


def write_memory_events(
    log: EventLog,
    timeline: Timeline,
    memory: MemoryTimeline,
    steps: Sequence[StepSpan],
    shown: Timeline,
) -> None:
    """Writes the events of these steps of a timeline, each on the thread of the op around it and
    in the time that the op has where it is `shown` with operators around it."""
    positions = shown_positions(timeline, steps, shown)
    ops = [
        (span, shown.host[positions[position]] if position in positions else span)
        for step in steps
        for position, span in enumerate(
            timeline.host[step.first_host : step.last_host], step.first_host
        )
        if span.kind == "op"
    ]
    starts = [op.start_ns for op, _ in ops]
    numbers = {step.replay.index for step in steps}
    for event in memory.events:
        if event.step not in numbers:
            continue
        time_ns = timeline.memory_ns[event.mark]
        before = bisect_right(starts, time_ns) - 1
        thread = log.threads["main"]
        if before >= 0 and time_ns <= ops[before][0].end_ns:
            op = ops[before][1]
            thread = log.threads[op.thread]
            time_ns = max(op.start_ns + APART_NS, min(time_ns, op.end_ns - APART_NS))
        log.instant("cpu_instant_event", "[memory]", time_ns, thread, _args(log, event))


def _args(log: EventLog, event: MemoryEvent) -> str:
    return (
        f'"Total Reserved":{event.reserved},"Total Allocated":{event.allocated},'
        f'"Bytes":{event.num_bytes},"Addr":{event.address},"Device Id":{log.device},'
        f'"Device Type":1,"Ev Idx":{log.next_index()}'
    )
