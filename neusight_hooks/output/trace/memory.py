"""The memory events of a trace: one each time the allocator gives or takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from neusight.memory.placement import MemoryEvent, MemoryTimeline
from neusight.output.trace.events import EventLog
from neusight.timeline.spans import StepSpan, Timeline

__all__ = ["write_memory_events"]


def write_memory_events(
    log: EventLog,
    timeline: Timeline,
    memory: MemoryTimeline,
    steps: Sequence[StepSpan],
) -> None:
    """Writes the events of these steps, each on the thread of the op around it."""
    shown = {step.replay.index for step in steps}
    tops = [
        (span.start_ns, span.end_ns, span.thread)
        for step in steps
        for span in timeline.host[step.first_host : step.last_host]
        if span.kind == "op"
    ]
    starts = [start for start, _, _ in tops]
    for event in memory.events:
        if event.step not in shown:
            continue
        time_ns = timeline.memory_ns[event.mark]
        before = bisect_right(starts, time_ns) - 1
        inside = before >= 0 and time_ns <= tops[before][1]
        thread = log.threads[tops[before][2] if inside else "main"]
        log.instant("cpu_instant_event", "[memory]", time_ns, thread, _args(log, event))


def _args(log: EventLog, event: MemoryEvent) -> str:
    return (
        f'"Total Reserved":{event.reserved},"Total Allocated":{event.allocated},'
        f'"Bytes":{event.num_bytes},"Addr":{event.address},"Device Id":{log.device},'
        f'"Device Type":1,"Ev Idx":{log.next_index()}'
    )
