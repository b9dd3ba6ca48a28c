"""The memory events of a trace: one each time the allocator gives or takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from neusight.memory.placement import MemoryTimeline
from neusight.output.trace.events import APART_NS, EventLog
from neusight.timeline.operators.tree import shown_positions
from neusight.timeline.spans import MAIN, StepSpan, Timeline

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
    host, positions = timeline.host, shown_positions(timeline, steps, shown)
    ops = [
        position
        for step in steps
        for position in range(step.first_host, step.last_host)
        if host[position].kind == "op"
    ]
    starts = [host[position].start_ns for position in ops]
    numbers = {step.replay.index for step in steps}
    main, of_device = log.number_of(MAIN), f'"Device Id":{log.device},"Device Type":1'
    for event in memory.events:
        if event.step not in numbers:
            continue
        time_ns, thread = timeline.memory_ns[event.mark], main
        before = bisect_right(starts, time_ns) - 1
        op = host[ops[before]] if before >= 0 else None
        if op is not None and time_ns <= op.start_ns + op.duration_ns:
            at = positions.get(ops[before])
            place = op if at is None else shown.host[at]
            margin_ns = place.duration_ns // 2
            margin_ns = _MARGIN_NS if margin_ns > _MARGIN_NS else margin_ns
            first_ns = place.start_ns + margin_ns
            last_ns = place.start_ns + place.duration_ns - margin_ns
            # For each event, so without min and max, which are calls.
            time_ns = last_ns if time_ns > last_ns else time_ns
            time_ns = first_ns if time_ns < first_ns else time_ns
            thread = log.number_of(place.thread)
        elif event.num_bytes < 0 and op is not None and before < len(ops) - 1:
            is_between = op.thread == host[ops[before + 1]].thread  # two ops of backward
            thread = log.number_of(op.thread) if is_between else main
        args = (
            f'"Total Reserved":{event.reserved},"Total Allocated":{event.allocated},'
            f'"Bytes":{event.num_bytes},{of_device},"Addr":{event.address},"finished":false'
        )
        log.instant("cpu_instant_event", "[memory]", time_ns, thread, args)
