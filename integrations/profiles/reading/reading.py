"""Reads a profile: the trace file that torch.profiler wrote on a real GPU, or one of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from neusight.integrations.profiles.reading.builder import Builder, used_events
from neusight.integrations.profiles.reading.fields import integer_of, number_of
from neusight.integrations.profiles.reading.notes import Notes
from neusight.integrations.profiles.reading.parser import Parser, text_of
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile
from neusight.integrations.profiles.reading.steps import steps_of
from neusight.predictors.errors import TraceError

#: Unpacked bytes of a trace that are read at most; ten steps of a large model take some 500 MB.
MAX_TRACE_BYTES = 2 * 2**30

#: Times above this are microseconds since 1970, as profiles before torch 2.4 wrote them.
_ABSOLUTE_US = 1e14

#: A double of that size has steps of a quarter of a microsecond.
_ABSOLUTE_STEP_US = 0.25

_CUDA_DEVICE_TYPE = 1


def read_profile(
    path: str | Path, *, max_bytes: int = MAX_TRACE_BYTES, keep_arguments: bool = False
) -> Profile:
    """Reads a trace of torch.profiler (torch 1.8 to 2.13, CUDA or ROCm; also gzipped) or of ours.

    The file is read as a stream; of one larger than `max_bytes` unpacked only that much is used.
    `keep_arguments` keeps what each operator was called with, which takes memory.
    A file that was cut off, or holds events that cannot be read, gives what can be read, and
    `Profile.notes` says so. TraceError for what is no trace at all.
    """
    target = Path(path)
    notes = Notes()
    try:
        with target.open("rb") as file:
            parser = Parser(text_of(file, max_bytes, notes), notes)
            events = used_events(parser.events())
    except OSError as error:
        raise TraceError(f"Cannot read {target}: {error.strerror or error}.") from error
    if not parser.found_events:
        raise TraceError(
            f"{target} is not a trace: it holds no list of traceEvents. Give a file that "
            "torch.profiler's export_chrome_trace (or tensorboard_trace_handler) wrote."
        )
    return _profile(str(target), parser.metadata, events, notes, keep_arguments)


def read_profile_events(
    trace: Mapping[str, object], *, source: str = "trace", keep_arguments: bool = False
) -> Profile:
    """The same from a trace in memory: the loaded JSON of a trace file."""
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        raise TraceError(f"{source} is not a trace: it holds no list of traceEvents.")
    metadata = {key: value for key, value in trace.items() if key != "traceEvents"}
    return _profile(source, metadata, used_events(events), Notes(), keep_arguments)


def _profile(
    source: str,
    metadata: dict[str, object],
    events: list[dict[str, object]],
    notes: Notes,
    keep_arguments: bool,
) -> Profile:
    timed = [event for event in events if event.get("ph") == "X"]
    if not timed:
        raise TraceError(
            f"{source} holds no operator, runtime call or kernel with a time: it is no profile of "
            "torch.profiler."
        )
    base = min(number_of(event["ts"]) for event in timed)
    if base > _ABSOLUTE_US:
        notes.add(
            "times are microseconds since 1970: whole, or in steps of "
            f"{_ABSOLUTE_STEP_US} µs where they have decimals"
        )
    builder = Builder(base, keep_arguments)
    for event in timed:
        builder.add(event)
    builder.finish(notes)
    peaks = _memory_peaks(events)
    steps = steps_of(builder, notes)
    own = metadata.get("neusight")
    return Profile(
        source=source,
        device_name=_device_name(metadata, builder.events, notes),
        is_forecast=isinstance(own, dict) and own.get("forecast") is True,
        is_complete=notes.is_complete,
        steps=steps,
        ops=tuple(builder.ops),
        events=tuple(builder.events),
        calls=tuple(builder.calls),
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        notes=tuple(notes.texts),
        metadata=metadata,
    )


def _memory_peaks(events: Iterable[dict[str, object]]) -> tuple[int | None, int | None]:
    """Most bytes allocated and reserved on a GPU, where memory was profiled."""
    allocated: int | None = None
    reserved: int | None = None
    for event in events:
        args = event.get("args")
        if event.get("name") != "[memory]" or not isinstance(args, dict):
            continue
        if integer_of(args.get("Device Type")) != _CUDA_DEVICE_TYPE:
            continue
        now, held = integer_of(args.get("Total Allocated")), integer_of(args.get("Total Reserved"))
        allocated = now if allocated is None else max(allocated, now or 0)
        reserved = held if reserved is None else max(reserved, held or 0)
    return allocated, reserved


def _device_name(metadata: dict[str, object], events: list[DeviceEvent], notes: Notes) -> str:
    properties = metadata.get("deviceProperties")
    devices = Counter(event.device for event in events)
    if len(devices) > 1:
        notes.add(f"kernels of {len(devices)} devices: {', '.join(map(str, sorted(devices)))}")
    rows = [row for row in properties if isinstance(row, dict)] if isinstance(
        properties, list
    ) else []  # fmt: skip
    if not rows:
        notes.add("no deviceProperties: which GPU it was is not known")
        return ""
    used = devices.most_common(1)[0][0] if devices else 0
    named = {integer_of(row.get("id")): str(row.get("name", "")) for row in rows}
    return named.get(used) or str(rows[0].get("name", ""))
