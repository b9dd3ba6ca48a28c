"""Cuts a profile into steps, by the profiler's marks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from neusight.integrations.profiles.reading.builder import STEP_MARK, Builder
from neusight.integrations.profiles.reading.notes import Notes
from neusight.integrations.profiles.reading.profile import DeviceEvent, HostOp, ProfileStep


def steps_of(builder: Builder, notes: Notes) -> tuple[ProfileStep, ...]:
    """The ProfilerStep annotations with what was launched in each; else all as one step."""
    events = [event for i, event in enumerate(builder.events) if i not in builder.early]
    marks = _numbered(builder.marks)
    if not marks:
        notes.add(f"no {STEP_MARK}N annotations: the whole trace counts as one step")
        ranges = [(op.start_ns, op.end_ns) for op in builder.ops]
        ranges += [(call.start_ns, call.end_ns) for call in builder.calls]
        ranges += [(event.start_ns, event.end_ns) for event in events]
        start = min((begin for begin, _ in ranges), default=0)
        end = max((done for _, done in ranges), default=0)
        return (ProfileStep("whole trace", start, end - start, end - start, tuple(events)),)
    starts = [mark.start_ns for mark in marks]
    groups: list[list[DeviceEvent]] = [[] for _ in marks]
    outside = 0
    for event in events:
        begun = builder.calls[event.launch].start_ns if event.launch >= 0 else event.start_ns
        index = bisect_right(starts, begun) - 1
        # What is launched between two annotations belongs to the one before.
        last = index == len(marks) - 1 and begun > marks[index].end_ns
        if index < 0 or last:
            outside += 1
        else:
            groups[index].append(event)
    if outside:
        notes.add(f"{outside} of {len(events)} kernels and copies lie outside all steps")
    backlog_ns = max((builder.events[i].end_ns for i in builder.early), default=0)
    return _with_latencies(marks, groups, builder.loads, backlog_ns)


def _numbered(marks: list[HostOp]) -> list[HostOp]:
    """The steps in order, each once."""
    seen: dict[str, HostOp] = {}
    for mark in sorted(marks, key=lambda mark: mark.start_ns):
        seen.setdefault(mark.name, mark)
    return list(seen.values())


def _with_latencies(
    marks: list[HostOp], groups: list[list[DeviceEvent]], loads: list[HostOp], backlog_ns: int
) -> tuple[ProfileStep, ...]:
    """A step costs the time from the end of the one before to its own, device included; the first
    one from the end of what was launched before the trace, at `backlog_ns`."""
    steps = []
    done_ns = max(marks[0].start_ns, backlog_ns)
    loads = sorted(loads, key=lambda load: load.start_ns)
    starts = [load.start_ns for load in loads]
    spent = [0, *accumulate(load.duration_ns for load in loads)]
    for mark, events in zip(marks, groups, strict=True):
        end_ns = max([mark.end_ns, *(event.end_ns for event in events)])
        latency_ns = max(0, end_ns - max(done_ns, mark.start_ns))
        first, end = bisect_left(starts, mark.start_ns), bisect_left(starts, mark.end_ns)
        loader_ns = spent[max(first, end)] - spent[first]
        steps.append(
            ProfileStep(
                mark.name, mark.start_ns, mark.duration_ns, latency_ns, tuple(events), loader_ns
            )
        )
        done_ns = max(done_ns, end_ns)
    return tuple(steps)
