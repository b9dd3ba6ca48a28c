"""What torch.compile made of a program: graphs, breaks, recompiles, fusion; as data and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from neusight.memory.placement import MemoryTimeline
from neusight.output.figures import Row
from neusight.predictors.formatting import bytes_text, counted, time_text
from neusight.recording.recording import (
    COMPILED_CODE,
    CompiledFrame,
    Entry,
    Mark,
    Recording,
    Synchronize,
)
from neusight.timeline.compiled_calls import compiled_call_ns, frame_of
from neusight.timeline.host import HostProfile
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline
from neusight.timeline.steady import kernels_of, steady_step_of

#: Breaks, and recompiles, that are shown on the first screen.
_ROWS_SHOWN = 3
#: The op by which compiled code allocates.
_ALLOCATES = "inductor::empty_strided_cuda"
_NS_PER_US = 1000


class Break(NamedTuple):
    """A line at which Dynamo ends a graph, with torch's reason.

    What it costs the steady step, as far as that is known: the calls of compiled code that goes on
    after it, backward included, with the host's time for them, and the waits for the GPU on that
    line. The fusion that is lost across it is not in it.
    """

    line: str
    reason: str
    num_calls: int = 0
    host_us: float = 0.0
    num_waits: int = 0
    wait_us: float = 0.0


class Recompile(NamedTuple):
    """A guard that failed, so that a function was compiled again: its line, torch's words for it,
    and how often."""

    line: str
    function: str
    reason: str
    num_times: int = 1


@dataclass(frozen=True)
class Compilation:
    """What was compiled, and what of it the steady step runs: `num_calls` of graphs in forward,
    kernels that were `fused`, and bytes of compiled code's own buffers alive at the peak."""

    num_graphs: int
    num_calls: int
    breaks: tuple[Break, ...]
    recompiles: tuple[Recompile, ...]
    fused: Row
    buffer_bytes: int


def compilation_of(
    recording: Recording, timeline: Timeline, memory: MemoryTimeline, host: HostProfile
) -> Compilation | None:
    """What torch.compile made of the program; None where it compiled nothing."""
    step = steady_step_of(timeline)
    entries = () if step is None else step.replay.step.entries
    calls = list(_marks(entries))
    kernels = () if step is None else kernels_of(step, timeline)
    total_ns = sum(span.duration_ns for span in kernels)
    fused = [span for span in kernels if is_fused(span)]
    fused_ns = sum(span.duration_ns for span in fused)
    share = round(fused_ns / total_ns, 6) if total_ns else 0.0
    if not recording.compiled and not calls:
        return None
    return Compilation(
        num_graphs=sum(frame.num_ops > 0 for frame in recording.compiled),
        num_calls=sum(call.name != COMPILED_CODE[-1] for call in calls),
        breaks=tuple(_priced_breaks(recording.compiled, step, timeline, host)),
        recompiles=recompiles_of(recording.compiled),
        fused=Row("fused", len(fused), fused_ns / _NS_PER_US, share),
        buffer_bytes=sum(
            alloc.num_bytes for alloc in memory.alive_at_peak if alloc.op == _ALLOCATES
        ),
    )


def _marks(entries: Sequence[Entry]) -> Iterator[Mark]:
    """The marks at which compiled code begins to run."""
    for entry in entries:
        if isinstance(entry, Mark) and entry.kind == "compiled_begin":
            yield entry


# -- breaks and recompiles -------------------------------------------------------------------------


def breaks_of(frames: Sequence[CompiledFrame]) -> tuple[Break, ...]:
    """Each line at which Dynamo ended a graph, once, in the order in which it came there."""
    found = dict.fromkeys((stop.line, stop.reason) for frame in frames for stop in frame.breaks)
    return tuple(Break(*key) for key in found)


def recompiles_of(frames: Sequence[CompiledFrame]) -> tuple[Recompile, ...]:
    """Each guard that failed, with its count."""
    counts = Counter(
        (frame.recompiled_at, frame.function, frame.recompiled)
        for frame in frames
        if frame.recompiled
    )
    return tuple(Recompile(*key, count) for key, count in counts.items())


def resumed_frames(frames: Sequence[CompiledFrame], stop: Break) -> set[str]:
    """Torch's names of the functions that go on after a break."""
    ends = {
        found.frame_line
        for frame in frames
        for found in frame.breaks
        if found[::2] == (stop.line, stop.reason)
    }
    return {frame.frame_id for frame in frames if frame.resumes_at in ends}


def _priced_breaks(
    frames: Sequence[CompiledFrame], step: StepSpan | None, timeline: Timeline, host: HostProfile
) -> Iterator[Break]:
    reported: set[str] = set()  # a call is that of one break, where two are on a line
    for stop in breaks_of(frames):
        if step is None:
            yield stop
            continue
        ids = resumed_frames(frames, stop) - reported
        reported |= ids
        calls = [mark for mark in _marks(step.replay.step.entries) if frame_of(mark) in ids]
        waits = _waits_at(stop.line, step, timeline)
        yield stop._replace(
            num_calls=len(calls),
            host_us=sum(compiled_call_ns(mark, host) for mark in calls) / _NS_PER_US,
            num_waits=len(waits),
            wait_us=sum(waits) / _NS_PER_US,
        )


def _waits_at(line: str, step: StepSpan, timeline: Timeline) -> list[int]:
    """Nanoseconds of each wait for the GPU on that line; each entry has a span, in their order."""
    waits = [entry for entry in step.replay.step.entries if isinstance(entry, Synchronize)]
    spans = [
        span for span in timeline.host[step.first_host : step.last_host] if span.kind == "sync"
    ]
    place = line.rpartition("/")[2]
    return [
        span.duration_ns for entry, span in zip(waits, spans, strict=False) if entry.source == place
    ]


def is_fused(span: KernelSpan) -> bool:
    """Whether torch.compile wrote the kernel."""
    return span.call.signature.op.startswith("inductor::")


# -- in words --------------------------------------------------------------------------------------


def compiled_lines(found: Compilation) -> list[str]:
    """The lines about it in the summary."""
    fused = found.fused
    buffers = f", {bytes_text(found.buffer_bytes)} of its buffers at the peak"
    lines = [
        f"  compiled  {counted(found.num_graphs, 'graph')}, {counted(found.num_calls, 'call')} a "
        f"step; {counted(fused.count, 'fused kernel')} ({time_text(fused.time_us)}, "
        f"{fused.share:.1%} of kernel time){buffers if found.buffer_bytes else ''}"
    ]
    lines += _shown([_break_text(stop) for stop in found.breaks], "breaks")
    lines += _shown([_recompile_text(again) for again in found.recompiles], "recompiles")
    return lines


def _shown(rows: Sequence[str], what: str) -> list[str]:
    lines = [f"            {row}" for row in rows[:_ROWS_SHOWN]]
    more = len(rows) - len(lines)
    return [*lines, f"            and {more} more {what}"] if more > 0 else lines


def _break_text(stop: Break) -> str:
    costs = []
    if stop.num_calls:
        calls = counted(stop.num_calls, "more call")
        costs.append(f"{time_text(stop.host_us)} of the host ({calls})")
    if stop.num_waits:
        waits = counted(stop.num_waits, "wait")
        costs.append(f"{waits} for the GPU ({time_text(stop.wait_us)})")
    words = f"graph break at {stop.line}: {stop.reason}"
    if not costs:
        return words
    return f"{words}; costs {' and '.join(costs)} a step, and fusion across it"


def _recompile_text(again: Recompile) -> str:
    times = f" ({again.num_times} times)" if again.num_times > 1 else ""
    return f"recompiled{times} for {again.line}: {again.reason}"


def compiled_json(found: Compilation | None) -> dict[str, Any] | None:
    """The same as plain values."""
    if found is None:
        return None
    return {
        "num_graphs": found.num_graphs,
        "calls_per_step": found.num_calls,
        "fused_kernels": asdict(found.fused),
        "buffer_bytes_at_peak": found.buffer_bytes,
        "breaks": [stop._asdict() for stop in found.breaks],
        "recompiles": [again._asdict() for again in found.recompiles],
    }
