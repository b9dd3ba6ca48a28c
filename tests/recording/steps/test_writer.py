"""Entries of the tape become those of a step: numbers count from its start."""

from __future__ import annotations

import pytest
import torch

from neusight.recording.attribution import Attribution
from neusight.recording.recorder import Recorder
from neusight.recording.recording import (
    Alloc,
    EventRecord,
    EventWait,
    Free,
    MathMode,
    OpCall,
    OpSignature,
    Phase,
    StorageRef,
    Synchronize,
)
from neusight.recording.steps.writer import StepWriter
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import Tape, TapedAlloc, TapedFree, TapedOp, TapeEntry
from neusight.recording.tensor import ForecastTensor

SIGNATURE = OpSignature("aten::add", "Tensor", (), ())
MATH = MathMode()


@pytest.fixture
def writer() -> StepWriter:
    return StepWriter(StorageWatch(Tape(), Attribution()))


def op(sequence: int | None, node: str = "", phase: Phase = "forward") -> TapedOp:
    return TapedOp(SIGNATURE, MATH, "Net", phase, 0, sequence, node)


def call(sequence: int | None, node: str = "", phase: Phase = "forward") -> OpCall:
    return OpCall(SIGNATURE, MATH, "Net", phase, 0, sequence, node)


def on_gpu() -> ForecastTensor:
    """A tensor of 64 bytes."""
    return Recorder().mode.new_tensor((16,), (1,), torch.float32, torch.device("cuda", 0))


def test_sequence_numbers_count_from_the_first_forward_op(writer: StepWriter) -> None:
    taped: list[TapeEntry] = [
        op(40), op(41), op(None), op(41, "AddBackward0", "backward"), op(7, "Old", "backward"),
    ]  # fmt: skip

    assert writer.write(taped) == (
        call(0), call(1), call(None), call(1, "AddBackward0", "backward"),
        call(-33, "Old", "backward"),
    )  # fmt: skip


def test_equal_calls_are_one_object(writer: StepWriter) -> None:
    first, second = writer.write([op(5)]) + writer.write([op(9)])

    assert first is second


def test_storages_are_named_by_the_age_of_their_step(writer: StepWriter) -> None:
    first = writer.write([TapedAlloc(0, 512, op="aten::empty"), TapedAlloc(1, 1024)])
    second = writer.write([TapedAlloc(2, 2048), TapedFree(1), op(None), TapedFree(2)])

    assert first == (Alloc(0, 512, op="aten::empty"), Alloc(1, 1024))
    assert second == (
        Alloc(0, 2048), Free(StorageRef(1, 1)), call(None), Free(StorageRef(0, 0)),
    )  # fmt: skip


def test_storages_that_are_freed_together_go_in_one_order(writer: StepWriter) -> None:
    made: list[TapeEntry] = [TapedAlloc(number, 512) for number in range(3)]

    entries = writer.write([*made, TapedFree(2), TapedFree(0), TapedFree(1)])

    assert entries[3:] == tuple(Free(StorageRef(0, ordinal)) for ordinal in range(3))


def test_a_storage_that_never_was_is_not_freed(writer: StepWriter) -> None:
    assert writer.write([TapedFree(3)]) == ()


def test_events_count_from_the_start_of_the_step(writer: StepWriter) -> None:
    writer.write([EventRecord(1, 0), EventRecord(2, 0)])

    entries = writer.write([EventRecord(3, 0), EventWait(2, 1), Synchronize("event", event=3)])

    assert entries == (EventRecord(1, 0), EventWait(0, 1), Synchronize("event", event=1))


def test_a_step_that_is_taken_back_is_written_again_as_it_was(writer: StepWriter) -> None:
    writer.write([TapedAlloc(0, 512)])
    entries = writer.write([TapedAlloc(1, 512), TapedFree(0), EventRecord(1, 0)])

    taped = writer.take_back()

    assert writer.index == 1
    assert writer.write(taped) == entries
    assert entries[1] == Free(StorageRef(1, 0))


def test_what_a_storage_is_for_may_be_known_only_after_its_step() -> None:
    tape = Tape()
    storages = StorageWatch(tape, Attribution())
    writer = StepWriter(storages)
    tensor = on_gpu()
    storages.follow(tensor, op(None))

    entries = writer.write(tape.cut())
    storages.mark(tensor, "parameter")

    assert entries == (Alloc(0, 64, "Net", "aten::add"),)
    assert writer.late_kinds == {(0, 0): "parameter"}


def test_a_storage_that_an_optimizer_keeps_is_its_state() -> None:
    tape = Tape()
    storages = StorageWatch(tape, Attribution())
    tensors = [on_gpu(), on_gpu()]
    for tensor in tensors:
        storages.follow(tensor, op(None, phase="optimizer"))
    tape.is_open = True
    tensor = tensors.pop()
    del tensor

    entries = StepWriter(storages).write(tape.cut())

    assert [entry.kind for entry in entries if isinstance(entry, Alloc)] == [
        "optimizer_state",
        "activation",
    ]
