"""What the traces of small programs hold, as a table; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from small_programs import recorded

from neusight.output.trace.arguments import shape_arguments
from neusight.output.trace.composite_inputs import composite_arguments
from neusight.output.trace.events import compact_json
from neusight.output.trace.file import trace_events
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import OpSignature
from op_calls import call, spec
from places import require_golden

#: Arguments that count, or say to what an event belongs.
NUMBERS = (
    "External id", "Ev Idx", "Python id", "Python parent id", "correlation", "Sequence number",
    "Fwd thread id", "Addr", "Bytes", "Total Allocated", "Total Reserved", "Python module id",
)  # fmt: skip
SHAPES = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")


def test_traces_hold_what_the_golden_table_has() -> None:
    """How many events of each name there are and the sums of their starts and times, with the
    inputs of the first; then the sums of the numbers that tie events to each other."""
    lines = []
    for name in ("training", "streams", "graphs"):
        forecast = recorded(name)
        trace = trace_events(forecast.timeline, forecast.memory, find_gpu("H100"))
        del trace["neusight"]["version"]  # type: ignore[attr-defined]
        lines += [name, *rows(trace.pop("traceEvents")), f"  {compact_json(trace)}"]

    require_golden("traces.txt", lines)


def rows(events: Any) -> Iterator[str]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    inputs: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for event in events:
        args = event.get("args") or {}
        for number in NUMBERS:
            numbers[f"{event.get('cat')} {number}"] += args.get(number, 0) or 0
        if event["ph"] in "sf":
            numbers[f"{event['ph']} {event['cat']}"] += event["id"]
        where = f"{event['pid']}/{event['tid']}"
        row = (
            f"{event['ph']} {event.get('cat', 'name')} {event['name'].partition('<')[0]} on {where}"
        )
        shapes = [args[name] for name in SHAPES if name in args]
        inputs.setdefault(row, f" {compact_json(shapes)}" if shapes else "")
        for at, value in enumerate((1, 1000 * event.get("ts", 0), 1000 * event.get("dur", 0))):
            sums[row][at] += round(value)
    for row, (count, start, time) in sums.items():
        yield f"  {count} {row} from {start} for {time}{inputs[row]}"
    yield f"  {compact_json({name: total for name, total in numbers.items() if total})}"


X, W, B = spec(4, 8), spec(8, 16), spec(16)
HALF = spec(4, 8, dtype="float16")
CAST = call("aten::_to_copy", HALF, self=X, dtype="float16", device=None)
VIEWED = call("aten::view", spec(32), self=X, size=(32,))


@pytest.mark.parametrize(
    ("name", "ops", "arguments"),
    [
        ("aten::linear", [call("aten::addmm", self=B, mat1=X, mat2=W)], (X, W, B)),
        ("aten::linear", [call("aten::mm", self=X, mat2=W)], (X, W, None)),
        ("aten::linear", [CAST, call("aten::mm", self=HALF, mat2=W)], (X, W, None)),
        ("aten::matmul", [call("aten::mv", self=W, vec=B)], (W, B)),
        ("aten::reshape", [VIEWED], (X, (32,))),
        ("aten::flatten", [VIEWED], (X, "?", "?")),
        ("aten::softmax", [call("aten::_softmax", self=X, dim=1)], (X, 1, None)),
        ("aten::linear", [VIEWED], ()),
        ("aten::unheard_of", [VIEWED], ()),
    ],
)
def test_an_operator_around_ops_has_their_arguments(
    name: str, ops: list[OpSignature], arguments: tuple[object, ...]
) -> None:
    assert composite_arguments(name, ops) == arguments


def test_a_dtype_is_shown_by_its_number_in_c10() -> None:
    """Those of c10::ScalarType before the quantized ones, in its order."""
    names = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
             "complex32", "complex64", "complex128", "bool")  # fmt: skip

    numbers = shape_arguments((*names, "bfloat16", "float8_e5m2", "float8_e4m3fn"))

    assert numbers["Concrete Inputs"] == [*map(str, range(12)), "15", "23", "24"]
