"""The trace file: what it holds beside the events of its lanes, and how it is written."""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypedDict

from typing_extensions import Unpack

from neusight._version import __version__
from neusight.memory.placement import MemoryTimeline
from neusight.output.trace.collectives import Collectives, distributed_info
from neusight.output.trace.device_lanes import DeviceLanes
from neusight.output.trace.events import Event, EventLog, compact_json
from neusight.output.trace.frame import device_properties, frame_of, names_of_lanes
from neusight.output.trace.host_lanes import HostLanes
from neusight.output.trace.memory import write_memory_events
from neusight.predictors.errors import TraceError
from neusight.predictors.files import write_atomically
from neusight.predictors.gpu import GPU
from neusight.timeline.operators.repeats import repeats_of
from neusight.timeline.operators.tree import with_operators as add_operators
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import shown_steps_of

#: Fixed, so that equal forecasts are equal files: 2024-01-01 00:00:00 UTC.
BASE_TIME_NS = 1_704_067_200_000_000_000
#: What runs before the first step shown, so that no time is zero.
LEAD_NS = 1_000_000
#: Steps written at most, the last ones; a real profile rarely has more.
MAX_STEPS = 12


class TraceOptions(TypedDict, total=False):
    """What a trace shows, and whose it is."""

    rank: int
    world_size: int
    gpus_per_node: int
    begins_ns: int | None
    max_steps: int
    record_shapes: bool
    profile_memory: bool
    with_modules: bool
    with_operators: bool
    step_names: Mapping[int, str] | None
    notes: Mapping[str, object] | None


class TraceText(NamedTuple):
    """A trace file in two parts: all but its events, and these as JSON, in texts that a comma
    belongs between."""

    header: dict[str, object]
    events: Sequence[str]


def trace_events(
    timeline: Timeline,
    memory: MemoryTimeline | None,
    gpu: GPU,
    **options: Unpack[TraceOptions],
) -> dict[str, object]:
    """The content of a trace file; `options` are those of `trace_text`."""
    header, events = trace_text(timeline, memory, gpu, **options)
    return {**header, "traceEvents": read_events(events)}


def read_events(events: Sequence[str]) -> list[Event]:
    """The events of a `TraceText` as values."""
    found: list[Event] = json.loads(f"[{','.join(events)}]")
    return found


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Looks for no garbage meanwhile: a trace is made of a hundred thousand tuples, none in a
    cycle, and Python would go through all objects of the process again and again (a sixth of the
    time)."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_collecting_later()
def trace_text(
    timeline: Timeline,
    memory: MemoryTimeline | None,
    gpu: GPU,
    *,
    rank: int = 0,
    world_size: int = 1,
    gpus_per_node: int = 0,
    begins_ns: int | None = None,
    max_steps: int = MAX_STEPS,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_modules: bool = True,
    with_operators: bool = True,
    step_names: Mapping[int, str] | None = None,
    notes: Mapping[str, object] | None = None,
) -> TraceText:
    """The content of a trace file, in the schema of `torch.profiler`'s `export_chrome_trace`.

    Shown are the last `max_steps` replayed train or eval steps (all steps where there are
    neither); equal steps that were folded away leave a hole in the numbers of `ProfilerStep#N`.
    The GPU has the number that it has on its host, where there are `gpus_per_node` (0: as many as
    there are ranks). Times count from `begins_ns`, which ranks that are read together share; None:
    from before the first step shown.
    `with_operators` shows what the dispatcher calls around ops and below them, too. `step_names`
    are the names of the steps that have one, by number (None: `ProfilerStep#N` of each).
    `notes` joins the key "neusight", which says that this is a forecast.
    """
    shown_memory = memory if profile_memory else None
    steps = shown_steps_of(timeline)[-max_steps:]
    repeats = repeats_of(timeline, steps)
    shown = replace(timeline, steps=tuple(steps))
    if with_operators:
        shown = add_operators(timeline, steps, repeats)
    collectives = Collectives(timeline, rank)
    local_rank = rank % (gpus_per_node or world_size)
    trace: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [device_properties(gpu, device) for device in range(local_rank + 1)],
    }
    if world_size > 1:
        trace["distributedInfo"] = distributed_info(
            rank, world_size, collectives.groups(world_size)
        )
    trace["record_shapes"] = int(record_shapes)
    trace["profile_memory"] = int(shown_memory is not None)
    if any(span.kind == "function" for span in shown.host):
        trace["with_stack"] = 1
    trace["with_modules"] = int(with_modules)
    trace["neusight"] = {
        "forecast": True,
        "version": __version__,
        "gpu": gpu.name,
        "steps": [{"step": step.replay.index, "represents": step.represents} for step in steps],
        **(notes or {}),
    }
    trace["displayTimeUnit"] = "ms"
    trace["baseTimeNanoseconds"] = BASE_TIME_NS
    base_ns = begins_of([timeline], max_steps=max_steps) if begins_ns is None else begins_ns
    log = EventLog(rank=rank, device=local_rank, base_ns=base_ns)
    device = DeviceLanes(log, shown, gpu, collectives)
    host = HostLanes(
        log, device, shown, collectives, record_shapes=record_shapes, with_modules=with_modules,
        step_names=step_names,
    )  # fmt: skip
    for step, repeat in zip(shown.steps, repeats, strict=True):
        host.step(step, repeat)
    of_rank = f", rank {rank} of {world_size}" if world_size > 1 else ""
    gpu_name = f"{gpu.name} (forecast){of_rank}"
    first_ns = steps[0].start_ns if steps else 0
    last_ns = max((step.done_ns for step in steps), default=first_ns) + LEAD_NS
    if shown_memory is not None and steps:
        write_memory_events(log, timeline, shown_memory, steps, shown)
    names = names_of_lanes(log, gpu_name, device.streams, first_ns - LEAD_NS)
    frame = frame_of(log, first_ns - LEAD_NS, last_ns)
    return TraceText(trace, [text_of(names), *log.texts(), text_of(frame)])


def begins_of(timelines: Sequence[Timeline], *, max_steps: int = MAX_STEPS) -> int:
    """When the traces of these begin: a moment before the first of their steps shown."""
    shown = [shown_steps_of(timeline)[-max_steps:] for timeline in timelines]
    return min((steps[0].start_ns for steps in shown if steps), default=0) - LEAD_NS


def text_of(events: Sequence[Event]) -> str:
    """Events as JSON, with commas between them."""
    return compact_json(events)[1:-1]


def write_trace(
    path: str | Path,
    timeline: Timeline,
    memory: MemoryTimeline | None,
    gpu: GPU,
    **options: Unpack[TraceOptions],
) -> None:
    """Writes a timeline as a trace file; `options` are those of `trace_text`.

    The file is gzipped where its name ends in .gz, and written whole or not at all: TraceError
    when it cannot be written. Equal forecasts give equal files.
    """
    header, events = trace_text(timeline, memory, gpu, **options)
    save_trace_text(path, header, events)


def save_trace_text(path: str | Path, header: Mapping[str, object], events: Sequence[str]) -> None:
    """Writes what `trace_text` gave, as `write_trace` does."""
    target = Path(path)
    # A reader that looks for the last "]" of the file must find that of traceEvents.
    name = target.name.replace("]", "_")
    try:
        # HTA finds a file's rank by a pattern with a space after the colon; events need none.
        head = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TraceError(f"The trace for {target} is not plain JSON: {error}.") from error
    start = f'{head[:-1]}{", " if header else ""}"traceEvents": ['
    following = (f",{text}" for text in events[1:])
    texts = chain([start, *events[:1]], following, [f'], "traceName": {json.dumps(name)}}}\n'])
    data = map(str.encode, texts)
    try:
        write_atomically(target, b"".join(_packed(data) if name.endswith(".gz") else data))
    except OSError as error:
        raise TraceError(
            f"Cannot write the trace to {target}: {error.strerror or error}. "
            "Choose a folder that can be written to."
        ) from error


#: zlib's level: 6 makes files a twentieth smaller and takes half as long again.
_COMPRESSION = 5
#: zlib's number of windows that are written with gzip's header; that has no date.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def _packed(data: Iterable[bytes]) -> Iterator[bytes]:
    """Gzipped, without a date: equal data are equal bytes."""
    # Numbers that count up match what came before by chance alone: short matches are left out.
    packer = zlib.compressobj(_COMPRESSION, wbits=_GZIP_WINDOW, strategy=zlib.Z_FILTERED)
    yield from map(packer.compress, data)
    yield packer.flush()
