"""The memory events of a trace: one each time the allocator gives or takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from neusight.memory.placement import MemoryTimeline
from neusight.output.trace.events import APART_NS, EventLog
from neusight.timeline.operators.tree import shown_positions
from neusight.timeline.spans import StepSpan, Timeline

#: What encloses an op ends after it, so that it is written shorter: with a function around each of
#: some tens of others by so much at each end.
_MARGIN_NS = 64 * APART_NS


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
    starts: list[int] = []
    ends: list[int] = []
    places: list[tuple[int, int, int]] = []
    for step in steps:
        for position in range(step.first_host, step.last_host):
            op = timeline.host[position]
            if op.kind == "op":
                starts.append(op.start_ns)
                ends.append(op.end_ns)
                at = positions.get(position)
                place = op if at is None else shown.host[at]
                margin_ns = min(_MARGIN_NS, place.duration_ns // 2)
                first_ns, last_ns = place.start_ns + margin_ns, place.end_ns - margin_ns
                places.append((first_ns, last_ns, log.threads[place.thread]))
    numbers = {step.replay.index for step in steps}
    main, of_device = log.threads["main"], f'"Device Id":{log.device},"Device Type":1'
    for event in memory.events:
        if event.step not in numbers:
            continue
        time_ns, thread = timeline.memory_ns[event.mark], main
        before = bisect_right(starts, time_ns) - 1
        if before >= 0 and time_ns <= ends[before]:
            first_ns, last_ns, thread = places[before]
            time_ns = max(first_ns, min(time_ns, last_ns))
        elif event.num_bytes < 0 and 0 <= before < len(places) - 1:
            around = {places[before][2], places[before + 1][2]}
            thread = around.pop() if len(around) == 1 else main  # between two ops of backward
        args = (
            f'"Total Reserved":{event.reserved},"Total Allocated":{event.allocated},'
            f'"Bytes":{event.num_bytes},{of_device},"Addr":{event.address},"finished":false'
        )
        log.instant("cpu_instant_event", "[memory]", time_ns, thread, args)
