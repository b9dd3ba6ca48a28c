"""Which tensor an allocation is."""

from __future__ import annotations

import neusight
from neusight.advice.tensors import parameter_shapes, tensors_of
from neusight.recording.recording import Alloc, Entry, MathMode, OpCall, Step, TensorSpec
from op_calls import call, spec
from timelines import recording_of


def test_shapes_of_what_was_allocated_are_known(plain: neusight.Forecast) -> None:
    specs = tensors_of(plain.recording)

    named = {specs[id(alloc)].shape for alloc in plain.memory.alive_at_peak if id(alloc) in specs}
    assert {(2048, 1000), (16, 128, 1024), (1000, 256), (1024, 256)} <= named


def test_an_allocation_is_the_output_that_needs_as_many_bytes() -> None:
    """A view with gaps needs those up to its last element; an empty tensor none."""
    gaps = TensorSpec((2, 3), (10, 2), "float16")
    outputs = (spec(4, 8), spec(3, dtype="int64"), gaps, spec(4, 8), spec(0, 5))
    sizes = (24, 128, 30, 64, 0, 128, 128)
    allocs = [Alloc(at, size, op="aten::some") for at, size in enumerate(sizes)]
    other = Alloc(9, 24, op="aten::other")
    entries: tuple[Entry, ...] = (
        Alloc(8, 24, op=""),
        OpCall(call("some", *outputs), MathMode()),
        *allocs,
        other,
    )

    found = tensors_of(recording_of(Step("train", entries)))

    assert [found.get(id(entry)) for entry in entries] == [
        None, None, outputs[1], outputs[0], gaps, None, outputs[4], outputs[3], None, None,
    ]  # fmt: skip


def test_shapes_of_parameters_are_known_transposed_too() -> None:
    kinds = ("parameter", "gradient", "buffer", "activation")
    entries = [Alloc(at, 512, kind=kind) for at, kind in enumerate(kinds)]  # type: ignore[arg-type]
    specs = {id(entry): spec(entry.ordinal, 7) for entry in entries}
    unknown = Alloc(9, 512, kind="parameter")

    found = parameter_shapes(recording_of(Step("train", (*entries, unknown))), specs)

    assert found == {(0, 7), (7, 0), (1, 7), (7, 1), (2, 7), (7, 2)}
