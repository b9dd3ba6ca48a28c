"""What torch.compile made of a program, of a recording written down by hand."""

from __future__ import annotations

import json
from typing import Any

from neusight.memory.placement import memory_of
from neusight.output.compiled import (
    Break,
    Recompile,
    compilation_of,
    compiled_json,
    compiled_lines,
    resumed_frames,
)
from neusight.output.figures import Row
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    COMPILED_CODE,
    Alloc,
    CompiledFrame,
    Entry,
    Free,
    GraphBreak,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    StorageRef,
    Synchronize,
)
from neusight.timeline.compiled_calls import compiled_call_ns
from neusight.timeline.host import PLAIN
from neusight.timeline.steps import schedule

INFERENCE, FORWARD, BACKWARD = COMPILED_CODE
FUSED = OpCall(OpSignature("inductor::triton_poi_fused_0", "default", (), ()), MathMode())
PLAIN_OP = OpCall(OpSignature("aten::relu", "default", (), ()), MathMode())
PRINTED = GraphBreak("net.py:5", "train.py:15", "Failed to trace builtin operator: print")
READ = GraphBreak("train.py:12", "train.py:12", "Unsupported Tensor.item() call")
FRAMES = (
    CompiledFrame("0/0", "step", "train.py:10", 6, breaks=(READ,)),
    CompiledFrame("1/0", "torch_dynamo_resume_in_step_at_12", "train.py:12", 2, breaks=(PRINTED,)),
    CompiledFrame("2/0", "torch_dynamo_resume_in_step_at_15", "train.py:15", 1),
    CompiledFrame("0/1", "step", "train.py:10", 6, "size mismatch", "train.py:10", (READ,)),
    CompiledFrame("3/0", "looping", "train.py:30", 0, breaks=(GraphBreak("a:1", "a:1", "loop"),)),
)


def region(name: str, frame_id: str, *entries: Entry) -> tuple[Entry, ...]:
    detail = f"3 {frame_id}"
    return (Mark("compiled_begin", name, detail), *entries, Mark("compiled_end", name, detail))


STEP = (
    *region(FORWARD, "0/1", Alloc(0, 2048, op="inductor::empty_strided_cuda"), FUSED),
    Synchronize("item", "train.py:12"),
    *region(FORWARD, "1/0", FUSED),
    PLAIN_OP,
    *region(BACKWARD, "1/0", FUSED),
    Free(StorageRef(0, 0)),
)


def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    microseconds = 30.0 if call is FUSED else 10.0
    estimate = Estimate(microseconds, microseconds, microseconds, "memory", "physics", "test")
    return ((Kernel.elementwise("relu", 1024, dtype="float32"), estimate),)


def compilation(*steps: Step, frames: tuple[CompiledFrame, ...] = FRAMES) -> Any:
    recording = Recording(steps, "H100", "2.13", compiled=frames)
    timeline = schedule(recording, price, PLAIN)
    return compilation_of(recording, timeline, memory_of(recording), PLAIN)


def test_nothing_is_reported_of_a_program_that_compiles_nothing() -> None:
    assert compilation(Step("train", (PLAIN_OP,), 3), frames=()) is None
    assert compiled_json(None) is None


def test_a_break_costs_the_calls_after_it_and_the_waits_on_its_line() -> None:
    found = compilation(Step("train", STEP, 3))
    read, printed, loop = found.breaks
    calls = [mark for mark in STEP if isinstance(mark, Mark) and mark.kind == "compiled_begin"]
    host_us = sum(compiled_call_ns(mark, PLAIN) for mark in calls[1:]) / 1000

    assert (read.line, read.reason) == READ[::2]
    assert (read.num_calls, read.host_us, read.num_waits) == (2, host_us, 1)
    assert read.wait_us > 0
    assert printed == Break(PRINTED.line, PRINTED.reason)  # what follows it does not run any more
    assert loop.line == "a:1"


def test_breaks_of_a_program_without_steps_cost_nothing_known() -> None:
    assert compilation().breaks == tuple(
        Break(*stop[::2]) for stop in (READ, PRINTED, GraphBreak("a:1", "a:1", "loop"))
    )


def test_functions_that_go_on_after_a_break_are_known_by_its_line() -> None:
    assert resumed_frames(FRAMES, Break(*READ[::2])) == {"1/0"}
    assert resumed_frames(FRAMES, Break(*PRINTED[::2])) == {"2/0"}


def test_graphs_calls_fusion_and_buffers_are_counted() -> None:
    found = compilation(Step("train", STEP, 3))

    assert (found.num_graphs, found.num_calls) == (4, 2)
    assert found.fused == Row("fused", 3, 90.0, 0.9)
    assert found.buffer_bytes == 2048
    assert found.recompiles == (Recompile("train.py:10", "step", "size mismatch"),)


def test_it_is_reported_in_lines_and_as_plain_values() -> None:
    found = compilation(Step("train", STEP, 3))
    first, *rest = compiled_lines(found)

    assert first.startswith("  compiled  4 graphs, 2 calls a step; 3 fused kernels (90.0 µs, 90.0%")
    assert "graph break at train.py:12: Unsupported Tensor.item() call; costs" in rest[0]
    assert "(2 more calls) and 1 wait for the GPU" in rest[0]
    assert rest[1].endswith("graph break at net.py:5: Failed to trace builtin operator: print")
    assert rest[-1].strip() == "recompiled for train.py:10: size mismatch"
    document = compiled_json(found)
    assert document == json.loads(json.dumps(document))
    assert document is not None
    assert document["breaks"][0]["line"] == "train.py:12"
