"""A recording as JSON: equal signatures and entries are written once; never pickle."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from neusight.predictors.errors import RecordingError
from neusight.predictors.files import (
    MAX_DOCUMENT_BYTES,
    Fields,
    is_count,
    is_number,
    read_json_document,
    shown,
    write_atomically,
)
from neusight.recording.recording import (
    Alloc,
    Argument,
    Batch,
    BatchSource,
    CompiledFrame,
    EmptyCache,
    Entry,
    EventRecord,
    EventWait,
    Free,
    GraphBreak,
    HostWork,
    Mark,
    MarkKind,
    MathMode,
    ModelInput,
    OpCall,
    Operator,
    OpSignature,
    Phase,
    Recording,
    Step,
    StepKind,
    StorageKind,
    StorageRef,
    Synchronize,
    TensorSpec,
    release_of,
)

#: Raised when the form of the file changes.
SCHEMA_VERSION = 2

_VERSION_FIELD = "neusight_recording"
#: Recordings of other ranks that were run side by side with this one.
_BESIDE_FIELD = "beside"

#: What of a call's `MathMode` is its own; the release of torch is the whole recording's, and the
#: library of convolutions the GPU's.
_NOT_SAVED = ("torch", "miopen", "half_dtypes")
_SWITCHES = tuple(one.name for one in fields(MathMode) if one.name not in _NOT_SAVED)

#: Which of how many processes it is, and how many of them are on a host.
_RANK_FIELDS = ("world_size", "rank", "gpus_per_node")

#: Elements of a tensor: a petabyte of floats is in no GPU.
_MOST_ELEMENTS = 2**48

#: Equal steps in a row: a step a microsecond for ten days.
_MOST_STEPS = 10**12

#: Entries run through because a storage of equal steps lives for many of them.
_MOST_REPLAYED = 2_000_000

T = TypeVar("T")

#: A `ModelInput` of drafted tokens, with what is 0 of others; one with a cache, with all.
_VERIFIED, _CONTINUED = "verified_input", "continued_input"

_PLAIN: dict[str, type] = {
    "empty_cache": EmptyCache,
    "event_record": EventRecord,
    "event_wait": EventWait,
    "host_work": HostWork,
    "mark": Mark,
    "model_input": ModelInput,
    _VERIFIED: ModelInput,
    _CONTINUED: ModelInput,
}
#: Fields of entries that are mostly 0 and saved apart.
_BESIDE_ENTRIES = ("thread", "instance")
_NAME_OF = {kind: name for name, kind in _PLAIN.items() if name not in (_VERIFIED, _CONTINUED)}
#: Their other fields.
_SAVED = {
    kind: [field.name for field in fields(kind) if field.name not in _BESIDE_ENTRIES]
    for kind in _NAME_OF
}
_ENTRIES = frozenset({"a", "p", "f", "s", *_PLAIN})


def save_recording(
    recording: Recording, path: str | Path, *, beside: Sequence[Recording] = (), **extra: str
) -> None:
    """Writes a recording (gzip where the name ends in .gz), equal ones to equal bytes; `beside` are
    those of other ranks that were run with it."""
    path = Path(path)
    data = recording_bytes(recording, beside=beside, **extra)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    write_atomically(path, data)


def recording_bytes(
    recording: Recording, *, beside: Sequence[Recording] = (), **extra: str
) -> bytes:
    """What `save_recording` writes, not compressed; RecordingError where it is unreadable."""
    document = {**_encode(recording), "extra": extra}
    if beside:
        document[_BESIDE_FIELD] = [_encode(one) for one in beside]
    data = json.dumps(document, separators=(",", ":")).encode()
    if len(data) > MAX_DOCUMENT_BYTES:
        raise RecordingError(
            f"The recording is too large to be saved: {len(data) >> 20} MiB, "
            f"{MAX_DOCUMENT_BYTES >> 20} MiB can be read again. Record fewer steps."
        )
    return data


def load_recording(path: str | Path) -> tuple[Recording, dict[str, str]]:
    """Reads what `save_recording` wrote; RecordingError where that is damaged or foreign. Of
    several ranks it is the first."""
    recordings, extra = load_recordings(path)
    return recordings[0], extra


def load_recordings(path: str | Path) -> tuple[tuple[Recording, ...], dict[str, str]]:
    """Reads what `save_recording` wrote, and those of ranks beside the first; RecordingError."""
    document = read_json_document(
        path,
        kind="saved forecast",
        error=RecordingError,
        remedy="Record the program again.",
        version=SCHEMA_VERSION,
        version_field=_VERSION_FIELD,
    )
    try:
        has_more = bool(document.items(_BESIDE_FIELD, default=[]))
        beside = document.rows(_BESIDE_FIELD) if has_more else []
        recordings = tuple(_decode(one) for one in (document, *beside))
        return recordings, document.text_by_name("extra", default={})
    except _Damage as error:
        raise RecordingError(
            f"The saved forecast {path} is damaged: {error}. Record the program again."
        ) from error


class _Table:
    """Values written once and named by their number."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self.rows: list[Any] = []
        self._encode = encode
        self._numbers: dict[int, int] = {}
        self._keep: list[Any] = []

    def number(self, value: Any) -> int:
        found = self._numbers.get(id(value))
        if found is None:
            found = self._numbers[id(value)] = len(self.rows)
            self._keep.append(value)
            self.rows.append(self._encode(value))
        return found


def _encode(recording: Recording) -> dict[str, Any]:
    signatures = _Table(_encode_signature)
    modes = _Table(lambda mode: [getattr(mode, name) for name in _SWITCHES])
    stacks = _Table(list)
    calls = _Table(
        lambda call: [
            signatures.number(call.signature),
            modes.number(call.math),
            call.module,
            call.phase,
            call.stream,
            call.sequence_nr,
            call.node,
            stacks.number(call.stack),
        ]
    )

    def encode_entry(entry: Entry) -> Any:
        if isinstance(entry, OpCall):
            return calls.number(entry)
        if isinstance(entry, Alloc):
            stack = stacks.number(entry.stack)
            row = [entry.num_bytes, entry.module, entry.op, entry.phase, entry.kind, stack]
            return ["p", *row, entry.pool] if entry.pool else ["a", *row]
        if isinstance(entry, Free):
            return ["f", entry.storage.age, entry.storage.ordinal]
        if isinstance(entry, Synchronize):
            stack = stacks.number(entry.stack)
            return ["s", entry.reason, entry.source, entry.stream, entry.event, stack]
        values = [getattr(entry, name) for name in _SAVED[type(entry)]]
        if isinstance(entry, ModelInput):
            if entry.has_cache:
                return [_CONTINUED, *values]
            return (
                [_VERIFIED, *values[:-1]] if entry.drafted else [_NAME_OF[ModelInput], *values[:3]]
            )
        return [_NAME_OF[type(entry)], *values]

    steps = [
        [step.kind, step.count, [encode_entry(entry) for entry in step.entries]]
        for step in recording.steps
    ]
    made = {module: stacks.number(stack) for module, stack in sorted(recording.made.items())}
    return {
        _VERSION_FIELD: SCHEMA_VERSION,
        "gpu": recording.gpu,
        "torch_version": recording.torch_version,
        "script": recording.script,
        **{name: getattr(recording, name) for name in _RANK_FIELDS},
        "questions": [list(device_query) for device_query in recording.queries],
        "warnings": list(recording.warnings),
        "options": dict(sorted(recording.options.items())),
        "signatures": signatures.rows,
        "modes": modes.rows,
        "stacks": stacks.rows,
        "made": made,
        "compiled": [_encode_frame(frame) for frame in recording.compiled],
        "calls": calls.rows,
        "steps": steps,
        "batches": [
            [at, *(getattr(step.batch, field.name) for field in fields(Batch))]
            for at, step in enumerate(recording.steps)
            if step.batch
        ],
        **_encode_operators(recording.steps),
        **{name: rows for name in _BESIDE_ENTRIES if (rows := _numbers(recording.steps, name))},
    }


def _numbers(steps: Sequence[Step], name: str) -> list[list[int]]:
    """The entries of which that field is not 0: step, position, its number."""
    return [
        [at, position, number]
        for at, step in enumerate(steps)
        for position, entry in enumerate(step.entries)
        if (number := getattr(entry, name, 0))
    ]


def _encode_operators(steps: Sequence[Step]) -> dict[str, Any]:
    """The operators of each step by its number, and their names, which they give by number."""
    numbers: dict[tuple[str, bool, bool], int] = {}
    rows = [
        [
            at,
            [
                [
                    numbers.setdefault((name, is_node, is_function), len(numbers)),
                    first, last, depth, sequence,
                ]
                for name, first, last, depth, is_node, sequence, is_function in step.operators
            ],
        ]
        for at, step in enumerate(steps)
        if step.operators
    ]  # fmt: skip
    names = {"operator_names": [list(name[:2]) for name in numbers], "operators": rows}
    functions = [number for (*_, is_function), number in numbers.items() if is_function]
    return {**names, "python_functions": functions} if rows else {}


def _encode_signature(signature: OpSignature) -> Any:
    return [
        signature.op,
        signature.overload,
        [[name, _encode_argument(value)] for name, value in signature.arguments],
        [_encode_argument(value) for value in signature.outputs],
    ]


def _encode_frame(frame: CompiledFrame) -> Any:
    values = [getattr(frame, field.name) for field in fields(CompiledFrame)]
    return [*values[:-1], [list(item) for item in frame.breaks]]


def _encode_argument(value: Argument) -> Any:
    if isinstance(value, TensorSpec):
        flags = [value.is_pinned, value.is_repeated]
        while flags and not flags[-1]:
            flags.pop()
        return {"t": [list(value.shape), list(value.stride), value.dtype, value.device, *flags]}
    if isinstance(value, tuple):
        return [_encode_argument(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"x": repr(value)}
    return value


# -- reading: every value is checked here, so that what prices a recording can trust it -----------


class _Damage(ValueError):
    """A value is wrong; names the row of the recording."""


_Check = Callable[[Any], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return is_count(abs(value)) if isinstance(value, int) else False


def _is_duration(value: object) -> bool:
    return is_number(value) and value >= 0  # type: ignore[operator]  # it is a number


def _is_none_or(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _is_one_of(literal: object) -> _Check:
    options = frozenset(get_args(literal))
    return lambda value: isinstance(value, str) and value in options


_is_phase = _is_one_of(Phase)

#: What the values of each kind of row must be, in order.
_ROWS: dict[str, tuple[_Check, ...]] = {
    "signature": (_is_text, _is_text, lambda value: True, lambda value: True),
    "argument": (_is_text, lambda value: True),
    "mode": (_is_flag,) * len(_SWITCHES),
    "call": (is_count, is_count, _is_text, _is_phase, is_count, _is_none_or(_is_whole), _is_text,
             is_count),
    "a": (_is_text, is_count, _is_text, _is_text, _is_phase, _is_one_of(StorageKind), is_count),
    "p": (_is_text, is_count, _is_text, _is_text, _is_phase, _is_one_of(StorageKind), is_count,
          is_count),
    "f": (_is_text, is_count, is_count),
    "s": (_is_text, _is_text, _is_text, _is_none_or(is_count), _is_none_or(_is_whole), is_count),
    "empty_cache": (_is_text,),
    "event_record": (_is_text, _is_whole, is_count),
    "event_wait": (_is_text, _is_whole, is_count),
    "host_work": (_is_text, _is_text, _is_duration, is_count),
    "mark": (_is_text, _is_one_of(MarkKind), _is_text, _is_text),
    "model_input": (_is_text, is_count, is_count, _is_flag),
    _VERIFIED: (_is_text, is_count, is_count, _is_flag, is_count, is_count),
    _CONTINUED: (_is_text, is_count, is_count, _is_flag, is_count, is_count, _is_flag),
    "step": (_is_one_of(StepKind), is_count, lambda value: isinstance(value, list)),
    "batch": (is_count, _is_none_or(is_count), _is_none_or(is_count), _is_text,
              _is_one_of(BatchSource)),
    **dict.fromkeys(_BESIDE_ENTRIES, (is_count, is_count, is_count)),
    "operator_name": (_is_text, _is_flag),
    "operators": (is_count, lambda value: isinstance(value, list)),
    "operator": (is_count, is_count, is_count, is_count, _is_none_or(_is_whole)),
    "question": (_is_text, _is_text),
    "frame": (_is_text, _is_text, _is_text, is_count, _is_text, _is_text,
              lambda value: isinstance(value, list)),
    "break": (_is_text, _is_text, _is_text),
}  # fmt: skip


def _row(kind: str, row: Any) -> list[Any]:
    """The row, if it is one of that kind."""
    checks = _ROWS[kind]
    if not isinstance(row, list) or len(row) != len(checks):
        raise _Damage(f"{shown(row)} is no row of the kind {kind!r}")
    for check, value in zip(checks, row, strict=True):
        if not check(value):
            raise _Damage(f"{shown(row)} is no row of the kind {kind!r}: {shown(value)} is wrong")
    return row


def _at(rows: Sequence[T], number: Any) -> T:
    if not is_count(number) or number >= len(rows):
        raise _Damage(f"it names row {shown(number)} of {len(rows)}")
    return rows[int(number)]


def _decode_argument(value: Any) -> Argument:
    if isinstance(value, list):
        return tuple(_decode_argument(item) for item in value)
    if isinstance(value, dict):
        return _decode_tensor(value["t"]) if "t" in value else _decode_special(value.get("x"))
    assert value is None or isinstance(value, (bool, int, float, str))
    return value


def _decode_special(text: Any) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise _Damage(f"{shown(text)} is given where a number is expected")
    return float(text)


def _decode_tensor(row: Any) -> TensorSpec:
    if not isinstance(row, list) or len(row) not in (4, 5, 6):
        raise _Damage(f"{shown(row)} is no tensor")
    shape, stride, dtype, device, *flags = row
    if not (
        isinstance(shape, list)
        and isinstance(stride, list)
        and len(shape) == len(stride)
        and all(map(is_count, [*shape, *stride]))
        and math.prod(shape) <= _MOST_ELEMENTS
        and isinstance(dtype, str)
        and isinstance(device, str)
        and all(map(_is_flag, flags))
    ):
        raise _Damage(f"{shown(row)} is no tensor")
    return TensorSpec(tuple(shape), tuple(stride), dtype, device, *flags)


def _decode_signature(row: Any) -> OpSignature:
    op, overload, arguments, outputs = _row("signature", row)
    if not isinstance(arguments, list) or not isinstance(outputs, list):
        raise _Damage(f"the arguments of {shown(op)} are no list")
    named = [_row("argument", argument) for argument in arguments]
    return OpSignature(
        op,
        overload,
        tuple((name, _decode_argument(value)) for name, value in named),
        tuple(_decode_argument(value) for value in outputs),
    )


def _decode(document: Fields) -> Recording:
    signatures = [_decode_signature(row) for row in document.items("signatures")]
    torch_version = document.text("torch_version", default="")
    torch = release_of(torch_version)
    modes = [replace(MathMode(*_row("mode", row)), torch=torch) for row in document.items("modes")]
    stacks = [_decode_stack(row) for row in document.items("stacks")]
    calls = [_decode_call(row, signatures, modes, stacks) for row in document.items("calls")]
    made = document.mapping("made", default={})
    return Recording(
        steps=_decode_steps(document, calls, stacks),
        gpu=document.text("gpu"),
        torch_version=torch_version,
        queries=tuple(
            (device_query, answer)
            for device_query, answer in (
                _row("question", row) for row in document.items("questions")
            )
        ),
        warnings=document.texts("warnings"),
        script=document.text("script", default=""),
        **_decode_rank(document),
        options=document.text_by_name("options", default={}),
        made={module: _at(stacks, number) for module, number in made.items()},
        compiled=tuple(map(_decode_frame, document.items("compiled", default=[]))),
    )


def _decode_rank(document: Fields) -> dict[str, int]:
    least = {"world_size": 1, "rank": 0, "gpus_per_node": 1}
    found = {name: document.count(name, default=least[name]) for name in _RANK_FIELDS}
    for name, number in found.items():
        if number < least[name]:
            document.refuse(name, f"at least {least[name]}")
    if found["rank"] >= found["world_size"]:
        document.refuse("rank", "below the world size")
    return found


def _decode_frame(row: Any) -> CompiledFrame:
    *values, breaks = _row("frame", row)
    found = tuple(GraphBreak(*_row("break", item)) for item in breaks)
    return replace(CompiledFrame(*values), breaks=found)


def _decode_stack(row: Any) -> tuple[str, ...]:
    if not isinstance(row, list) or not all(map(_is_text, row)):
        raise _Damage(f"{shown(row)} is no list of lines of code")
    return tuple(row)


def _decode_call(
    row: Any,
    signatures: Sequence[OpSignature],
    modes: Sequence[MathMode],
    stacks: Sequence[tuple[str, ...]],
) -> OpCall:
    signature, mode, *rest, stack = _row("call", row)
    return OpCall(_at(signatures, signature), _at(modes, mode), *[*rest, _at(stacks, stack)])


def _decode_steps(
    document: Fields, calls: Sequence[OpCall], stacks: Sequence[tuple[str, ...]]
) -> tuple[Step, ...]:
    steps = []
    for row in document.items("steps"):
        kind, count, rows = _row("step", row)
        if not 0 < count <= _MOST_STEPS:
            raise _Damage(f"a step is there {count} times")
        entries = tuple(_decode_entries(rows, calls, stacks))
        _require_short_replay(entries, count)
        steps.append(Step(kind, entries, count))
    for row in document.items("batches", default=[]):  # older files have none
        at, *batch = _row("batch", row)
        steps[at] = replace(_at(steps, at), batch=Batch(*batch))
    for name in _BESIDE_ENTRIES:
        numbers: dict[int, dict[int, int]] = {}
        for row in document.items(name, default=[]):  # as above
            at, position, number = _row(name, row)
            numbers.setdefault(at, {})[position] = number
        for at, of_entries in numbers.items():
            entries = _with_numbers(_at(steps, at).entries, name, of_entries)
            steps[at] = replace(steps[at], entries=entries)
    names = [_row("operator_name", row) for row in document.items("operator_names", default=[])]
    functions = document.items("python_functions", default=[])
    names = [[*name, number in functions] for number, name in enumerate(names)]
    for row in document.items("operators", default=[]):  # as above
        at, rows = _row("operators", row)
        operators = tuple(_decode_operators(rows, names, len(_at(steps, at).entries)))
        steps[at] = replace(steps[at], operators=operators)
    return tuple(steps)


def _with_numbers(
    entries: Sequence[Entry], name: str, numbers: dict[int, int]
) -> tuple[Entry, ...]:
    """The entries of a step, those at these positions with a field; equal ones as one."""
    found, known = list(entries), dict[tuple[int, int], Entry]()
    for position, number in numbers.items():
        entry = _at(entries, position)
        if not hasattr(entry, name):
            raise _Damage(f"entry {position} has no {name}")
        key = (id(entry), number)
        if key not in known:
            changed: Any = {name: number}
            known[key] = replace(entry, **changed)
        found[position] = known[key]
    return tuple(found)


def _decode_operators(
    rows: list[Any], names: Sequence[list[Any]], num_entries: int
) -> Iterator[Operator]:
    around: list[int] = []  # where those end that enclose the next one
    begun = 0
    for row in rows:
        number, first, last, depth, sequence = _row("operator", row)
        name, is_node, is_function = _at(names, number)
        if depth > len(around) or not begun <= first <= last <= num_entries:
            raise _Damage(f"{shown(row)} is no operator of {num_entries} entries")
        del around[depth:]
        if around and last > around[-1]:
            raise _Damage(f"{shown(row)} ends after the operator around it")
        around.append(last)
        begun = first
        yield Operator(name, first, last, depth, is_node, sequence, is_function)


def _require_short_replay(entries: Sequence[Entry], count: int) -> None:
    """Of equal steps as many are run through as the oldest storage of them is old."""
    ages = (entry.storage.age for entry in entries if isinstance(entry, Free))
    oldest = max(ages, default=0)
    if oldest < count and oldest * len(entries) > _MOST_REPLAYED:
        raise _Damage(f"a storage lives for {oldest} equal steps")


def _decode_entries(
    rows: list[Any], calls: Sequence[OpCall], stacks: Sequence[tuple[str, ...]]
) -> Iterator[Entry]:
    ordinal = 0
    for row in rows:
        if not isinstance(row, list):
            yield _at(calls, row)
            continue
        tag = row[0] if row and isinstance(row[0], str) else ""
        if tag not in _ENTRIES:
            raise _Damage(f"{shown(row)} is no entry")
        values = _row(tag, row)[1:]
        if tag == "a":
            yield Alloc(ordinal, *[*values[:-1], _at(stacks, values[-1])])
            ordinal += 1
        elif tag == "p":
            yield Alloc(ordinal, *[*values[:-2], _at(stacks, values[-2]), values[-1]])
            ordinal += 1
        elif tag == "s":
            yield Synchronize(*[*values[:-1], _at(stacks, values[-1])])
        elif tag == "f":
            yield Free(StorageRef(*values))
        else:
            yield _PLAIN[tag](*values)
