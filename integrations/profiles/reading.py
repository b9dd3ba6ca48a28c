"""Reads a profile: the trace file that torch.profiler wrote on a real GPU, or one of our own."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import BinaryIO, Literal, NamedTuple

from neusight.predictors.errors import TraceError

__all__ = [
    "MAX_TRACE_BYTES",
    "DeviceEvent",
    "HostOp",
    "Profile",
    "ProfileStep",
    "RuntimeCall",
    "read_profile",
    "read_profile_events",
]

#: Unpacked bytes of a trace that are read at most; ten steps of a large model take some 500 MB.
MAX_TRACE_BYTES = 2 * 2**30

#: Bytes taken from the file at once.
_CHUNK = 1 << 20
#: The same of a gzip file: what a damaged piece would have given is lost, so they are small.
_PACKED_CHUNK = 1 << 12
#: A single event longer than this is damage, not data (the longest real one: 60 kB of stack).
_MAX_EVENT_CHARS = 1 << 24
#: Characters that are read in vain, all damaged places together; a damaged place counts as this
#: many at least, and what lies before it in memory as one in so many (2 to the power of).
_MOST_TRIED_CHARS = 1 << 26
_LEAST_TRIED_CHARS = 1 << 12
_LINES_SHIFT = 8
#: Times above that, microseconds, are damage: thirty thousand years.
_MOST_US = 1e18
#: Lists within each other in the shapes of an operator: lists of tensors have 3.
_MOST_DEPTH = 4
#: Notes that name examples name this many.
_EXAMPLES = 3
#: Times above this are microseconds since 1970, as profiles before torch 2.4 wrote them.
_ABSOLUTE_US = 1e14
#: A double of that size has steps of a quarter of a microsecond.
_ABSOLUTE_STEP_US = 0.25

#: Identities, sizes and bytes beyond that are damage.
_LARGEST_INTEGER = 2**63
#: Characters of a text that may hold a number, such as "stream 7".
_LONG_TEXT = 64

EventKind = Literal["kernel", "memcpy", "memset"]

#: Categories of torch 1.8 to 2.13, in lower case; the older ones are the shorter ones.
_DEVICE: dict[str, EventKind] = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
_RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime")
_OPERATORS = ("cpu_op", "operator")
_ANNOTATIONS = ("user_annotation", *_OPERATORS)
_STEP = "ProfilerStep#"
_LOADER = "enumerate(DataLoader)#"
_CUDA_DEVICE_TYPE = 1


class HostOp(NamedTuple):
    """An operator on the host. `shapes` are those of its tensors, lists of tensors flattened;
    `arguments` is all that the trace says of it, where `read_profile` was asked to keep that."""

    name: str
    start_ns: int
    duration_ns: int
    thread: str
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    external_id: int | None = None
    sequence_nr: int | None = None
    arguments: Mapping[str, object] | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


class RuntimeCall(NamedTuple):
    """A call of the CUDA or HIP runtime or driver."""

    name: str
    start_ns: int
    duration_ns: int
    thread: str
    correlation: int | None = None
    external_id: int | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


class DeviceEvent(NamedTuple):
    """A kernel, copy or memset; `op` and `launch` are positions in `Profile.ops` and `.calls`.

    Each is -1 where the trace does not tell. `kernel_class` is what a forecast trace says.
    """

    kind: EventKind
    name: str
    start_ns: int
    duration_ns: int
    device: int
    stream: int
    correlation: int | None = None
    op: int = -1
    launch: int = -1
    num_bytes: int = 0
    kernel_class: str = ""

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """One step: from its start on the host to the end of its last kernel.

    `latency_ns` is what a loop of such steps costs each; `host_ns` the annotation's own duration,
    of which the main thread waited `loader_ns` for its DataLoader.
    """

    name: str
    start_ns: int
    host_ns: int
    latency_ns: int
    events: tuple[DeviceEvent, ...]
    loader_ns: int = 0

    @property
    def kernel_ns(self) -> int:
        """Sum of what its kernels, copies and memsets take."""
        return sum(event.duration_ns for event in self.events)

    @property
    def busy_ns(self) -> int:
        """Time in which at least one of them runs."""
        return _union_ns(self.events)


@dataclass(frozen=True)
class Profile:
    """What a trace file says; times in whole nanoseconds from its first event.

    `events` are in order of start. `notes` tell, in words, what was missing or repaired.
    """

    source: str
    device_name: str
    is_forecast: bool
    is_complete: bool
    steps: tuple[ProfileStep, ...]
    ops: tuple[HostOp, ...]
    events: tuple[DeviceEvent, ...]
    calls: tuple[RuntimeCall, ...]
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict, repr=False)

    def median_step(self) -> ProfileStep | None:
        """The step of median kernel time among those that have kernels (the first, if alone)."""
        found = [step for step in self.steps if step.events]
        if not found:
            return None
        middle = median(step.kernel_ns for step in found)
        return min(found, key=lambda step: (abs(step.kernel_ns - middle), step.start_ns))

    def launch_of(self, event: DeviceEvent) -> RuntimeCall | None:
        """The call that launched it, if the trace tells."""
        return self.calls[event.launch] if event.launch >= 0 else None

    def op_of(self, event: DeviceEvent) -> HostOp | None:
        """The innermost operator that launched it, if the trace tells."""
        return self.ops[event.op] if event.op >= 0 else None


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
    notes = _Notes()
    try:
        with target.open("rb") as file:
            parser = _Parser(_text(file, max_bytes, notes), notes)
            events = _used(parser.events())
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
    return _profile(source, metadata, _used(events), _Notes(), keep_arguments)


@dataclass
class _Notes:
    """What is told beside the profile; `is_complete` falls when the file was cut."""

    texts: list[str] = field(default_factory=list)
    is_complete: bool = True

    def add(self, text: str) -> None:
        self.texts.append(text)

    def cut(self, text: str) -> None:
        self.is_complete = False
        self.texts.append(text)


# -- from bytes to events ------------------------------------------------------------------------


def _text(file: BinaryIO, max_bytes: int, notes: _Notes) -> Iterator[str]:
    """The file's text in pieces, unpacked, at most `max_bytes` of it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    total = 0
    for data in _unpacked(file, notes):
        room = max_bytes - total
        total += len(data)
        yield decoder.decode(data[:room])
        if total > max_bytes:
            notes.cut(
                f"the trace unpacks to more than {max_bytes / 2**20:,.0f} MiB; only that much was "
                "read. Profile fewer steps, or without stacks."
            )
            return
    yield decoder.decode(b"", final=True)


def _unpacked(file: BinaryIO, notes: _Notes) -> Iterator[bytes]:
    head = file.read(2)
    file.seek(0)
    if head != b"\x1f\x8b":
        while data := file.read(_CHUNK):
            yield data
        return
    unpacker = zlib.decompressobj(wbits=31)
    rest = b""
    try:
        while data := rest or file.read(_PACKED_CHUNK):
            yield unpacker.decompress(data, _CHUNK)
            rest = unpacker.unconsumed_tail
            if unpacker.eof:  # gzip files may follow one another
                rest = unpacker.unused_data
                if not rest.strip(b"\0"):
                    return
                unpacker = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        notes.cut(f"the gzip data is damaged ({error}); what lies before that was read")
        return
    yield unpacker.flush()
    notes.cut("the gzip file is cut off; what could be unpacked was read")


class _Parser:
    """Takes a trace apart as it comes: an object with "traceEvents", or a bare list of events."""

    def __init__(self, pieces: Iterator[str], notes: _Notes) -> None:
        self.metadata: dict[str, object] = {}
        self.found_events = False
        self._pieces = pieces
        self._notes = notes
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder(strict=False)
        self._unreadable = 0
        self._tried_chars = 0
        self._is_too_deep = False

    def events(self) -> Iterator[object]:
        """Every event; the other keys of the file go to `metadata`."""
        first = self._next_char()
        if first == "[":
            self._at += 1
            yield from self._list()
        elif first == "{":
            self._at += 1
            yield from self._object()
        if self._unreadable:
            self._notes.add(f"{self._unreadable} damaged events were left out")

    def _object(self) -> Iterator[object]:
        while True:
            char = self._next_char()
            if char == ",":
                self._at += 1
                continue
            if char == "}":
                return
            key = self._value()
            if char != '"' or not isinstance(key, str) or self._next_char() != ":":
                if self.found_events:
                    self._notes.cut("the trace is cut off after its events")
                return
            self._at += 1
            if key == "traceEvents" and self._next_char() == "[":
                self._at += 1
                yield from self._list()
                continue
            value = self._value()
            if value is _NOTHING:
                if self.found_events:
                    self._notes.cut(f"the trace is cut off in its key {key!r}")
                return
            self.metadata[key] = value

    def _list(self) -> Iterator[object]:
        self.found_events = True
        while True:
            char = self._next_char()
            if char == ",":
                self._at += 1
                continue
            if char == "]":
                self._at += 1
                return
            if not char:
                self._notes.cut("the trace is cut off within its events; what lies before was read")
                return
            value = self._value()
            if value is not _NOTHING:
                yield value
            elif not self._skip():
                self._notes.cut("the trace is cut off within an event; what lies before was read")
                return

    def _past_nesting(self) -> bool:
        """Goes on behind a value that is nested too deep; False where its end is not there."""
        self._more(_MAX_EVENT_CHARS)
        depth, is_text = 0, False
        for token in _TOKENS.finditer(self._text, self._at):
            sign = token[0]
            if sign == '"':
                is_text = not is_text
            elif len(sign) == 1 and not is_text:
                depth += 1 if sign in "{[" else -1
                if depth == 0:
                    self._at = token.end()
                    self._unreadable += 1
                    return True
        return False

    def _skip(self) -> bool:
        """Goes on at the next event after a damaged one; False where there is none, or where so
        much was tried in vain that the file is no trace any more."""
        if self._is_too_deep:
            return self._past_nesting()
        while self._tried_chars < _MOST_TRIED_CHARS:
            found = self._text.find("{", self._at + 1)
            if found < 0:
                self._at = max(self._at, len(self._text) - 1)
                if not self._more():
                    return False
                continue
            self._at = found
            value = self._value()
            if isinstance(value, dict) and "ph" in value:
                self._at = found
                self._unreadable += 1
                return True
            self._at = found
        return False

    def _value(self) -> object:
        """The JSON value here, or _NOTHING; reads on while it might only be incomplete."""
        self._next_char()
        self._is_too_deep = False
        wanted = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # Incomplete, not wrong: the error lies at the end, or in a string that runs there.
                open_string = error.msg.startswith("Unterminated string")
                if not open_string and error.pos < len(self._text) - 8:
                    return self._nothing(error.pos)
            except RecursionError:
                self._is_too_deep = True
                return self._nothing(self._at)
            except ValueError:  # a number of thousands of digits
                return self._nothing(self._at)
            else:
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value
                continue
            if len(self._text) - self._at > _MAX_EVENT_CHARS or not self._more(wanted):
                return self._nothing(len(self._text))
            wanted *= 2  # so that a long value is not parsed again for every chunk

    def _nothing(self, end: int) -> object:
        """Counts what was tried in vain, up to `end`. A failure costs more than its characters:
        Python counts the lines before it."""
        self._tried_chars += end - self._at + (self._at >> _LINES_SHIFT) + _LEAST_TRIED_CHARS
        return _NOTHING

    def _next_char(self) -> str:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space is not None else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self, wanted: int = 1) -> bool:
        """Reads on; what was used is dropped."""
        parts = [self._text[self._at :]]
        got = 0
        for piece in self._pieces:
            parts.append(piece)
            got += len(piece)
            if got >= wanted:
                break
        self._text, self._at = "".join(parts), 0
        return got > 0


_NOTHING = object()
#: What opens and closes values and texts; a backslash takes what follows with it.
_TOKENS = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
_SPACE = re.compile("[ \t\r\n\ufeff]*")


# -- from events to a profile --------------------------------------------------------------------


def _used(events: Iterable[object]) -> list[dict[str, object]]:
    """The events that a profile is made of; stacks, arrows and names, most of a file, are not."""
    return [event for event in events if isinstance(event, dict) and _is_used(event)]


def _is_used(event: dict[str, object]) -> bool:
    if event.get("ph") == "X":
        category = str(event.get("cat", "")).lower()
        known = category in _DEVICE or category in _RUNTIME or category in _ANNOTATIONS
        return known and _is_timed(event)
    return event.get("name") == "[memory]"


def _profile(
    source: str,
    metadata: dict[str, object],
    events: list[dict[str, object]],
    notes: _Notes,
    keep_arguments: bool,
) -> Profile:
    timed = [event for event in events if event.get("ph") == "X"]
    if not timed:
        raise TraceError(
            f"{source} holds no operator, runtime call or kernel with a time: it is no profile of "
            "torch.profiler."
        )
    base = min(_number(event["ts"]) for event in timed)
    if base > _ABSOLUTE_US:
        notes.add(
            "times are microseconds since 1970: whole, or in steps of "
            f"{_ABSOLUTE_STEP_US} µs where they have decimals"
        )
    builder = _Builder(base, keep_arguments)
    for event in timed:
        builder.add(event)
    builder.finish(notes)
    peaks = _memory_peaks(events)
    steps = _steps(builder, notes)
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


class _Builder:
    """Sorts events by kind, then ties kernels to their launches and operators."""

    def __init__(self, base_us: float, keep_arguments: bool) -> None:
        self.ops: list[HostOp] = []
        self.calls: list[RuntimeCall] = []
        self.events: list[DeviceEvent] = []
        self.marks: list[HostOp] = []
        self.loads: list[HostOp] = []
        self._base_us = base_us
        self._keep_arguments = keep_arguments
        self._external: list[int | None] = []
        #: Positions of the events that were launched before the trace begins.
        self.early: frozenset[int] = frozenset()

    def add(self, event: dict[str, object]) -> None:
        category = str(event.get("cat", "")).lower()
        name = str(event.get("name", ""))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        start_ns = round((_number(event["ts"]) - self._base_us) * 1000)
        duration_ns = max(0, round(_number(event["dur"]) * 1000))
        external = _integer(args.get("External id", args.get("external id")))
        thread = f"{event.get('pid')}/{event.get('tid')}"
        if category in _DEVICE:
            self._external.append(external)
            self.events.append(
                DeviceEvent(
                    kind=_DEVICE[category],
                    name=name,
                    start_ns=start_ns,
                    duration_ns=duration_ns,
                    device=_integer(args.get("device", event.get("pid"))) or 0,
                    stream=_integer(args.get("stream", event.get("tid"))) or 0,
                    correlation=_integer(args.get("correlation")),
                    num_bytes=_integer(args.get("bytes")) or 0,
                    kernel_class=str(args.get("kernel class", "")),
                )
            )
        elif category in _RUNTIME:
            correlation = _integer(args.get("correlation"))
            self.calls.append(
                RuntimeCall(name, start_ns, duration_ns, thread, correlation, external)
            )
        elif category in _ANNOTATIONS and name.startswith(_STEP):
            self.marks.append(HostOp(name, start_ns, duration_ns, thread))
        elif category in _ANNOTATIONS and name.startswith(_LOADER):
            self.loads.append(HostOp(name, start_ns, duration_ns, thread))
        elif category in _OPERATORS:
            number = _integer(args.get("Sequence number", args.get("Fwd sequence number")))
            self.ops.append(
                HostOp(
                    name=name,
                    start_ns=start_ns,
                    duration_ns=duration_ns,
                    thread=thread,
                    shapes=tuple(_shapes(args.get("Input Dims", args.get("Input dims")))),
                    types=_types(args.get("Input type")),
                    external_id=external,
                    sequence_nr=number,
                    arguments=args if self._keep_arguments else None,
                )
            )

    def finish(self, notes: _Notes) -> None:
        """Ties what belongs together, once all events are there."""
        self.calls.sort(key=lambda call: call.start_ns)
        self.ops.sort(key=lambda op: (op.start_ns, -op.duration_ns))
        order = sorted(range(len(self.events)), key=lambda i: (self.events[i].start_ns, i))
        self._external = [self._external[i] for i in order]
        self.events = [self.events[i] for i in order]
        launches = self._launches(notes)
        owners = self._owners(launches, notes)
        self.events = [
            event._replace(launch=launch, op=op)
            for event, launch, op in zip(self.events, launches, owners, strict=True)
        ]
        self.early = self._launched_before()
        if self.early:
            early_ms = sum(self.events[i].duration_ns for i in self.early) / 1e6
            notes.add(
                f"{len(self.early)} of {len(launches)} kernels and copies ({early_ms:,.2f} ms) "
                "were launched before the trace begins: they are left out of its steps"
            )
        untied = sum(launch < 0 for launch in launches) - len(self.early)
        if untied:
            notes.add(f"{untied} of {len(launches)} kernels and copies have no launch call")
        unowned = sum(op < 0 for op in owners)
        if unowned:
            notes.add(f"{unowned} of {len(owners)} kernels and copies have no operator")
        if self.ops and not any(op.shapes for op in self.ops):
            notes.add(
                "operators have no shapes (record_shapes=True records them): kernels can be "
                "matched by class and order only"
            )

    def _launched_before(self) -> frozenset[int]:
        """The events without a launch call that the GPU still had to do: a stream runs in order,
        so they lie before the first one that the trace saw launched there, or before any call."""
        seen: dict[tuple[int, int], int] = {}
        for event in self.events:
            if event.launch >= 0:
                seen.setdefault((event.device, event.stream), event.start_ns)
        if not seen:
            return frozenset()
        begin_ns = self.calls[0].start_ns
        return frozenset(
            position
            for position, event in enumerate(self.events)
            if event.launch < 0
            and event.start_ns < seen.get((event.device, event.stream), begin_ns)
        )

    def _launches(self, notes: _Notes) -> list[int]:
        """For each device event the last call of its correlation id that had begun before it."""
        known: dict[int, list[int]] = defaultdict(list)
        for position, call in enumerate(self.calls):
            if call.correlation is not None:
                known[call.correlation].append(position)
        # cudaGraphLaunch and its kernels share one id; two calls must not.
        double = [number for number, found in known.items() if number and len(found) > 1]
        if double:
            notes.add(
                f"{len(double)} correlation ids name several calls ({_named(double)}): kernels "
                "were tied to the latest one before them"
            )
        found = []
        for event in self.events:
            calls = known.get(event.correlation, []) if event.correlation is not None else []
            # Calls are in order of start.
            before = bisect_right(calls, event.start_ns, key=lambda i: self.calls[i].start_ns)
            found.append(calls[max(0, before - 1)] if calls else -1)
        return found

    def _owners(self, launches: list[int], notes: _Notes) -> list[int]:
        """For each device event its operator: by id, or the innermost around its launch."""
        known: dict[int, list[int]] = defaultdict(list)
        for position, op in enumerate(self.ops):
            if op.external_id:
                known[op.external_id].append(position)
        double = [number for number, found in known.items() if len(found) > 1]
        if double:
            notes.add(
                f"{len(double)} external ids name several operators ({_named(double)}): kernels "
                "were tied to the one around their launch"
            )
        owners: list[int] = []
        asked: list[_Question] = []
        for event, launch, external in zip(self.events, launches, self._external, strict=True):
            call = self.calls[launch] if launch >= 0 else None
            time_ns = call.start_ns if call is not None else event.start_ns
            if external is None and call is not None:
                external = call.external_id
            named = known.get(external, []) if external else []
            before = bisect_right(named, time_ns, key=lambda i: self.ops[i].start_ns)
            if not before and call is not None:
                asked.append(_Question(call.start_ns, call.thread, len(owners)))
            owners.append(named[before - 1] if before else -1)
        for question, position in _innermost(self.ops, asked):
            owners[question.number] = position
        return owners


class _Question(NamedTuple):
    """Which operator runs at a time on a thread; `number` says who asks."""

    time_ns: int
    thread: str
    number: int


def _innermost(ops: list[HostOp], asked: Iterable[_Question]) -> Iterator[tuple[_Question, int]]:
    """The innermost operator for each question, -1 where none runs; all in one pass over time."""
    open_ops: dict[str, list[int]] = defaultdict(list)
    begun = 0
    for question in sorted(asked):
        while begun < len(ops) and ops[begun].start_ns <= question.time_ns:
            stack = open_ops[ops[begun].thread]
            while stack and ops[stack[-1]].end_ns <= ops[begun].start_ns:
                stack.pop()
            stack.append(begun)
            begun += 1
        stack = open_ops[question.thread]
        while stack and ops[stack[-1]].end_ns < question.time_ns:
            stack.pop()
        yield question, stack[-1] if stack else -1


def _steps(builder: _Builder, notes: _Notes) -> tuple[ProfileStep, ...]:
    """The ProfilerStep annotations with what was launched in each; else all as one step."""
    events = [event for i, event in enumerate(builder.events) if i not in builder.early]
    marks = _numbered(builder.marks)
    if not marks:
        notes.add(f"no {_STEP}N annotations: the whole trace counts as one step")
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
        if end_ns > done_ns > mark.start_ns:
            latency_ns = end_ns - done_ns
        first, end = bisect_left(starts, mark.start_ns), bisect_left(starts, mark.end_ns)
        loader_ns = spent[max(first, end)] - spent[first]
        steps.append(
            ProfileStep(
                mark.name, mark.start_ns, mark.duration_ns, latency_ns, tuple(events), loader_ns
            )
        )
        done_ns = max(done_ns, end_ns)
    return tuple(steps)


def _memory_peaks(events: Iterable[dict[str, object]]) -> tuple[int | None, int | None]:
    """Most bytes allocated and reserved on a GPU, where memory was profiled."""
    allocated: int | None = None
    reserved: int | None = None
    for event in events:
        args = event.get("args")
        if event.get("name") != "[memory]" or not isinstance(args, dict):
            continue
        if _integer(args.get("Device Type")) != _CUDA_DEVICE_TYPE:
            continue
        now, held = _integer(args.get("Total Allocated")), _integer(args.get("Total Reserved"))
        allocated = now if allocated is None else max(allocated, now or 0)
        reserved = held if reserved is None else max(reserved, held or 0)
    return allocated, reserved


def _device_name(metadata: dict[str, object], events: list[DeviceEvent], notes: _Notes) -> str:
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
    named = {_integer(row.get("id")): str(row.get("name", "")) for row in rows}
    return named.get(used) or str(rows[0].get("name", ""))


# -- pieces --------------------------------------------------------------------------------------


def _is_timed(event: dict[str, object]) -> bool:
    return all(abs(_number(event.get(key))) < _MOST_US for key in ("ts", "dur"))


def _number(value: object) -> float:
    """As a float; NaN, which no comparison holds for, where it is none."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("nan")


def _integer(value: object) -> int | None:
    """A whole number, also out of a text such as "stream 7"."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return int(value) if abs(value) < _LARGEST_INTEGER else None
    if isinstance(value, str) and len(value) < _LONG_TEXT:
        digits = value.split()[-1] if value.split() else ""
        return int(digits) if digits.isascii() and digits.isdigit() else None
    return None


def _shapes(dims: object, depth: int = 0) -> Iterator[tuple[int, ...]]:
    """The shapes of tensors; a list of tensors gives one each, scalars and lists give ()."""
    if not isinstance(dims, list) or depth >= _MOST_DEPTH:
        return
    for item in dims:
        if isinstance(item, list) and item and isinstance(item[0], list):
            yield from _shapes(item, depth + 1)
        elif isinstance(item, list) and all(_is_size(size) for size in item):
            yield tuple(item)
        else:
            yield ()


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _LARGEST_INTEGER


def _types(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _named(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_EXAMPLES])
    return shown + (", …" if len(numbers) > _EXAMPLES else "")


def _union_ns(events: Iterable[DeviceEvent]) -> int:
    total_ns = reached_ns = 0
    for start_ns, end_ns in sorted((event.start_ns, event.end_ns) for event in events):
        if end_ns > reached_ns:
            total_ns += end_ns - max(start_ns, reached_ns)
            reached_ns = end_ns
    return total_ns
