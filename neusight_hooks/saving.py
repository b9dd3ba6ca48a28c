"""A recording as JSON: equal signatures and entries are written once; never pickle."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neusight.predictors.errors import RecordingError
from neusight.predictors.files import write_atomically
from neusight.recording import (
    Alloc,
    Argument,
    EmptyCache,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    StorageRef,
    Synchronize,
    TensorSpec,
)

__all__ = ["SCHEMA_VERSION", "load_recording", "save_recording"]

#: Raised when the form of the file changes.
SCHEMA_VERSION = 2

#: Unpacked size above which a file is refused: no recording of a training script comes near.
MAX_UNPACKED_BYTES = 2**31

_PLAIN: dict[str, type] = {
    "empty_cache": EmptyCache,
    "event_record": EventRecord,
    "event_wait": EventWait,
    "host_work": HostWork,
    "mark": Mark,
}
_NAME_OF = {kind: name for name, kind in _PLAIN.items()}


def save_recording(recording: Recording, path: str | Path, **extra: str) -> None:
    """Writes a recording (gzip where the name ends in .gz), equal ones to equal bytes."""
    path = Path(path)
    text = json.dumps({**_encode(recording), "extra": extra}, separators=(",", ":"))
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    write_atomically(path, data)


def load_recording(path: str | Path) -> tuple[Recording, dict[str, str]]:
    """Reads what `save_recording` wrote; RecordingError where that is damaged or foreign."""
    path = Path(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(MAX_UNPACKED_BYTES + 1)
        else:
            data = path.read_bytes()
        if len(data) > MAX_UNPACKED_BYTES:
            raise RecordingError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES} bytes.")
        document = json.loads(data)
    except (OSError, EOFError, ValueError) as error:
        raise RecordingError(f"{path} cannot be read as a saved forecast: {error}.") from error
    if not isinstance(document, dict) or "neusight_recording" not in document:
        raise RecordingError(f"{path} is not a forecast saved by neusight.")
    version = document["neusight_recording"]
    if version != SCHEMA_VERSION:
        raise RecordingError(
            f"{path} has schema version {version}, this neusight reads {SCHEMA_VERSION}. "
            "Record the program again."
        )
    try:
        return _decode(document), dict(document.get("extra", {}))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is damaged: {error!r}.") from error


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
    modes = _Table(lambda mode: list(vars(mode).values()))
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
            return ["a", entry.num_bytes, entry.module, entry.op, entry.phase, entry.kind, stack]
        if isinstance(entry, Free):
            return ["f", entry.storage.age, entry.storage.ordinal]
        if isinstance(entry, Synchronize):
            stack = stacks.number(entry.stack)
            return ["s", entry.reason, entry.source, entry.stream, entry.event, stack]
        names = type(entry).__slots__
        return [_NAME_OF[type(entry)], *(getattr(entry, name) for name in names)]

    steps = [
        [step.kind, step.count, [encode_entry(entry) for entry in step.entries]]
        for step in recording.steps
    ]
    made = {module: stacks.number(stack) for module, stack in sorted(recording.made.items())}
    return {
        "neusight_recording": SCHEMA_VERSION,
        "gpu": recording.gpu,
        "torch_version": recording.torch_version,
        "script": recording.script,
        "questions": [list(question) for question in recording.questions],
        "warnings": list(recording.warnings),
        "options": dict(sorted(recording.options.items())),
        "signatures": signatures.rows,
        "modes": modes.rows,
        "stacks": stacks.rows,
        "made": made,
        "calls": calls.rows,
        "steps": steps,
    }


def _encode_signature(signature: OpSignature) -> Any:
    return [
        signature.op,
        signature.overload,
        [[name, _encode_argument(value)] for name, value in signature.arguments],
        [_encode_argument(value) for value in signature.outputs],
    ]


def _encode_argument(value: Argument) -> Any:
    if isinstance(value, TensorSpec):
        pinned = [True] if value.is_pinned else []
        return {"t": [list(value.shape), list(value.stride), value.dtype, value.device, *pinned]}
    if isinstance(value, tuple):
        return [_encode_argument(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"x": repr(value)}
    return value


def _decode_argument(value: Any) -> Argument:
    if isinstance(value, dict):
        if "x" in value:
            return float(value["x"])
        shape, stride, dtype, device, *pinned = value["t"]
        return TensorSpec(tuple(shape), tuple(stride), dtype, device, *pinned)
    if isinstance(value, list):
        return tuple(_decode_argument(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"unexpected {value!r}")


def _decode(document: dict[str, Any]) -> Recording:
    signatures = [
        OpSignature(
            op,
            overload,
            tuple((name, _decode_argument(value)) for name, value in arguments),
            tuple(_decode_argument(value) for value in outputs),
        )
        for op, overload, arguments, outputs in document["signatures"]
    ]
    modes = [MathMode(*row) for row in document["modes"]]
    stacks = [tuple(row) for row in document["stacks"]]
    calls = [
        OpCall(signatures[row[0]], modes[row[1]], *[*row[2:-1], stacks[row[-1]]])
        for row in document["calls"]
    ]
    steps = tuple(
        Step(kind, tuple(_decode_entries(rows, calls, stacks)), count)
        for kind, count, rows in document["steps"]
    )
    return Recording(
        steps=steps,
        gpu=document["gpu"],
        torch_version=document["torch_version"],
        questions=tuple((question, answer) for question, answer in document["questions"]),
        warnings=tuple(document["warnings"]),
        script=document["script"],
        options={str(key): str(value) for key, value in document.get("options", {}).items()},
        made={module: stacks[number] for module, number in document.get("made", {}).items()},
    )


def _decode_entries(
    rows: list[Any], calls: list[OpCall], stacks: list[tuple[str, ...]]
) -> list[Entry]:
    entries: list[Entry] = []
    ordinal = 0
    for row in rows:
        if isinstance(row, int):
            entries.append(calls[row])
        elif row[0] == "a":
            entries.append(Alloc(ordinal, *[*row[1:-1], stacks[row[-1]]]))
            ordinal += 1
        elif row[0] == "s":
            entries.append(Synchronize(*[*row[1:-1], stacks[row[-1]]]))
        elif row[0] == "f":
            entries.append(Free(StorageRef(row[1], row[2])))
        else:
            entries.append(_PLAIN[row[0]](*row[1:]))
    return entries
