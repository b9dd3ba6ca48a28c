"""What is held when, where the peak is and what is alive there."""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from neusight.memory.placement import (
    ALLOCATOR_OPTION,
    FRACTION_OPTION,
    MemoryEvent,
    MemoryTimeline,
    memory_of,
    memory_on,
)
from neusight.memory.workspaces import CUBLAS_BYTES, Workspaces
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import (
    Alloc,
    EmptyCache,
    Entry,
    Free,
    MathMode,
    OpCall,
    OpSignature,
    Phase,
    Recording,
    Step,
    StepKind,
    StorageRef,
    TensorSpec,
)
from places import ROOT, TRACES, needs_traces

MIB = 2**20

EXAMPLE = ROOT / "examples" / "compare_with_profile.py"


def recording(*steps: tuple[Entry, ...], count: int = 1, kind: StepKind = "train") -> Recording:
    return Recording(
        steps=tuple(Step(kind, entries, count) for entries in steps),
        gpu="H100",
        torch_version="2.13.0",
    )


def product(phase: Phase = "forward") -> OpCall:
    matrix = TensorSpec((512, 512), (512, 1), "float32")
    signature = OpSignature("aten::mm", "default", (("self", matrix), ("mat2", matrix)), (matrix,))
    return OpCall(signature, MathMode(), "net", phase)


def test_workspace_of_the_first_product_is_kept_and_one_for_each_thread() -> None:
    forward, backward = product(), product("backward")
    made, gone = Alloc(0, MIB, "net", "aten::mm"), Free(StorageRef(0, 0))
    entries = (forward, made, forward, backward, backward, gone)

    memory = memory_on(recording(entries, count=3), find_gpu("H100"))

    assert memory.by_category["workspaces"] == 64 * MIB
    assert memory.peak_allocated == 65 * MIB
    assert [(event.num_bytes, event.source.kind) for event in memory.events[:5]] == [
        (MIB, "activation"),
        (32 * MIB, "workspace"),
        (32 * MIB, "workspace"),
        (-MIB, "activation"),
        (MIB, "activation"),
    ]
    assert memory.steps[-1].end_allocated == 64 * MIB
    first, second = memory.events[:2]
    assert first == MemoryEvent(0, 0, MIB, 0x7F0000000000, MIB, 2 * MIB, entries[1])
    workspace = Alloc(-1, 32 * MIB, "(cuBLAS)", "aten::mm", "forward", "workspace")
    assert second == MemoryEvent(
        0, 0, 32 * MIB, 0x7F0000000000 + 2 * MIB, 33 * MIB, 34 * MIB, workspace
    )


def test_a_passing_workspace_lies_beside_what_its_op_returns() -> None:
    """cuBLASLt's of torch 2.6, which every call gave back."""
    bias = TensorSpec((512,), (1,), "float32")
    call = product()
    arguments = (("self", bias), ("mat1", TensorSpec((512, 512), (512, 1), "float32")))
    call = replace(call, signature=replace(call.signature, op="aten::addmm", arguments=arguments))
    program = recording((call, Alloc(0, 2 * MIB, "net", "aten::addmm")))

    memory = memory_on(replace(program, torch_version="2.6.0"), find_gpu("A100"))

    assert [event.num_bytes for event in memory.events] == [2 * MIB, CUBLAS_BYTES, MIB, -MIB]
    assert memory.peak_allocated == 3 * MIB + CUBLAS_BYTES


def test_a_convolution_runs_without_the_workspace_that_there_is_no_room_for() -> None:
    """Image and result are 98 MiB each, cuDNN's copies of them in NHWC as much again."""
    image = TensorSpec((16, 64, 224, 224), (3211264, 50176, 224, 1), "bfloat16")
    weight = TensorSpec((64, 64, 3, 3), (576, 9, 3, 1), "bfloat16")
    arguments = (
        ("input", image), ("weight", weight), ("bias", None), ("stride", (1, 1)),
        ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False), ("groups", 1),
    )  # fmt: skip
    signature = OpSignature("aten::convolution", "default", arguments, (image,))
    call = OpCall(signature, MathMode(), "net", "forward")
    result = Alloc(1, image.num_bytes, "net", "aten::convolution")
    held = (Alloc(0, image.num_bytes, "net"), call, result)
    gpu, room = find_gpu("H100"), 300 * MIB
    workspaces = Workspaces(gpu, "2.13.0")

    ample = memory_of(recording(held), capacity_bytes=2 * room, workspaces=workspaces)
    scarce = memory_of(recording(held), capacity_bytes=room, workspaces=workspaces)

    assert ample.peak_allocated > 4 * image.num_bytes
    assert ample.most_left_out == 0
    assert scarce.fits
    assert scarce.peak_allocated == 2 * image.num_bytes
    assert scarce.most_left_out > 2 * image.num_bytes


def test_emptied_cache_gives_memory_back_for_good() -> None:
    held: tuple[Entry, ...] = (Alloc(0, 40 * MIB), Free(StorageRef(0, 0)))
    later = Alloc(1, 64 * MIB)

    kept = memory_of(recording((*held, later)))
    emptied = memory_of(recording((*held, EmptyCache(), later)))

    assert (kept.peak_reserved, emptied.peak_reserved) == (104 * MIB, 64 * MIB)


def test_settings_and_fraction_of_the_program_count() -> None:
    entries: tuple[Entry, ...] = (Alloc(0, 30 * MIB), Free(StorageRef(0, 0)), Alloc(1, 41 * MIB))
    target = find_gpu("H100")

    plain = memory_on(recording(entries), target)
    expandable = memory_on(
        replace(recording(entries), options={ALLOCATOR_OPTION: "expandable_segments:True"}), target
    )
    limited = memory_on(replace(recording(entries), options={FRACTION_OPTION: "0.0004"}), target)

    assert (plain.peak_reserved, expandable.peak_reserved) == (72 * MIB, 60 * MIB)
    assert plain.fits
    assert not limited.fits


def test_storages_are_for_the_stream_of_the_op_that_makes_them() -> None:
    """What the side stream freed does not serve the default stream."""
    aside = replace(product(), stream=33, signature=replace(product().signature, op="aten::relu"))
    here = replace(aside, stream=0)
    made = Alloc(0, 30 * MIB, "net", "aten::relu")
    entries = (aside, made, Free(StorageRef(0, 0)), here, replace(made, ordinal=1))

    assert memory_of(recording(entries)).peak_reserved == 60 * MIB


def test_categories_are_those_people_speak_of() -> None:
    kinds: list[Entry] = [
        Alloc(0, 512, kind="parameter"),
        Alloc(1, 1024, kind="gradient", phase="backward"),
        Alloc(2, 1536, kind="optimizer_state", phase="optimizer"),
        Alloc(3, 2048),
        Alloc(4, 2560, phase="backward"),
        Alloc(5, 3072, kind="buffer"),
    ]

    memory = memory_of(recording(tuple(kinds)))

    assert memory.by_category == {
        "parameters": 512,
        "gradients": 1024,
        "optimizer_state": 1536,
        "activations": 2048,
        "workspaces": 0,
        "other": 5632,
    }
    assert sum(memory.by_category.values()) == memory.peak_allocated


def test_peak_and_who_is_alive_at_it() -> None:
    weight = Alloc(0, 4 * MIB, "net", "aten::empty", "forward", "parameter")
    first = Alloc(1, 8 * MIB, "net.a", "aten::relu", "forward")
    second = Alloc(2, 2 * MIB, "net.b", "aten::relu", "forward")
    entries: tuple[Entry, ...] = (weight, first, Free(StorageRef(0, 1)), second)

    memory = memory_of(recording(entries))

    assert (memory.peak_allocated, memory.peak_reserved) == (12 * MIB, 20 * MIB)
    assert memory.peak_event is not None
    assert memory.peak_event.source is first
    assert [(row.module, row.kind, row.num_bytes) for row in memory.alive] == [
        ("net.a", "activation", 8 * MIB),
        ("net", "parameter", 4 * MIB),
    ]
    assert [event.mark for event in memory.events] == [0, 1, 2, 3]
    assert memory.fits


def test_storages_freed_one_step_later_do_not_pile_up() -> None:
    """A loop that holds the loss of the step before."""
    entries: tuple[Entry, ...] = (Alloc(0, 4 * MIB), Free(StorageRef(1, 0)))

    memory = memory_of(recording(entries, count=1000))

    assert memory.peak_allocated == 8 * MIB
    assert memory.steps[-1].end_allocated == 4 * MIB


@pytest.mark.parametrize("count", [2, 3, 4, 100, 5000])
def test_what_each_of_equal_steps_keeps_adds_up(count: int) -> None:
    """A program that appends a tensor of 4 MiB to a list in each step, beside a passing one."""
    entries: tuple[Entry, ...] = (
        Alloc(0, 4 * MIB, "net", "aten::mm"),
        Alloc(1, 2 * MIB),
        Free(StorageRef(0, 1)),
    )

    memory = memory_of(recording(entries, count=count))

    assert memory.peak_allocated == (4 * count + 2) * MIB
    assert memory.growth == (4 * MIB if count > 2 else 0)


def test_what_comes_before_the_steps_is_no_growth() -> None:
    setup = Step("setup", (Alloc(0, 4 * MIB),), 5)

    memory = memory_of(Recording((setup,), gpu="H100", torch_version="2.13"), capacity_bytes=10**9)

    assert (memory.growth, memory.steps_left) == (0, None)


def test_a_program_that_keeps_something_of_each_step_runs_out_in_the_step_that_is_too_much() -> (
    None
):
    entries: tuple[Entry, ...] = (Alloc(0, 40 * MIB, "net", "aten::mm"),)

    failure = memory_of(recording(entries, count=100), capacity_bytes=1000 * MIB).out_of_memory

    assert failure is not None
    assert (failure.step, failure.op, failure.num_bytes) == (25, "aten::mm", 40 * MIB)
    assert memory_of(recording(entries, count=25), capacity_bytes=1000 * MIB).fits


@pytest.mark.parametrize(
    ("capacity_mib", "left"),
    [(100 + 10 + 4 * 12, 2), (100 + 10 + 4 * 10, 0), (100, 0), (100 + 10 + 4 * 15 - 1, 4)],
)
def test_steps_that_keep_something_are_left_as_long_as_there_is_room(
    capacity_mib: int, left: int
) -> None:
    """Ten steps of 4 MiB each, beside 10 MiB for a moment, and a context of 100."""
    entries = (Alloc(0, 4 * MIB), Alloc(1, 10 * MIB), Free(StorageRef(0, 1)))
    program = recording(entries, count=10)

    found = memory_of(program, capacity_bytes=capacity_mib * MIB, context_bytes=100 * MIB)

    assert found.steps_left == left
    assert memory_of(program).steps_left is None


def test_of_many_folded_steps_what_they_leave_is_a_thousand_blocks() -> None:
    found = {
        count: [
            event.num_bytes
            for event in memory_of(recording((Alloc(0, 4 * MIB),), count=count)).events
        ]
        for count in (6, 2002, 3003)
    }

    assert {count: (len(sizes), max(sizes)) for count, sizes in found.items()} == {
        6: (6, 4 * MIB),
        2002: (1003, 8 * MIB),
        3003: (1003, 12 * MIB),
    }


def test_running_out_names_the_op_and_the_module() -> None:
    entries: tuple[Entry, ...] = (
        Alloc(0, 30 * MIB, "net.a", "aten::mm"),
        Alloc(1, 30 * MIB, "net.b", "aten::relu", "backward"),
    )

    memory = memory_of(recording(entries), capacity_bytes=64 * MIB, context_bytes=10 * MIB)

    failure = memory.out_of_memory
    assert failure is not None
    assert not memory.fits
    assert (failure.op, failure.module, failure.phase) == ("aten::relu", "net.b", "backward")
    assert (failure.num_bytes, failure.allocated, failure.reserved) == (
        30 * MIB,
        30 * MIB,
        30 * MIB,
    )
    assert memory_of(recording(entries), capacity_bytes=70 * MIB, context_bytes=10 * MIB).fits


# -- public profiles -----------------------------------------------------------------------------


def memory_as_profiled(
    model: str, torch_version: str, monkeypatch: pytest.MonkeyPatch
) -> MemoryTimeline:
    """The forecast with the workspaces that the profiled torch took."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the program switches it on
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("compare_with_profile", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    forecast = module.forecast_of(model)
    return memory_on(replace(forecast.recording, torch_version=torch_version), forecast.gpu)


def profiled(pattern: str) -> list[dict[str, Any]]:
    """The allocations and frees on the GPU, in order, and the profiler's steps."""
    with gzip.open(next(TRACES.glob(pattern)), "rt") as file:
        events = json.load(file)["traceEvents"]
    return sorted(
        (
            event
            for event in events
            if str(event.get("name")).startswith("ProfilerStep#")
            or (event.get("name") == "[memory]" and event["args"]["Device Type"] == 1)
        ),
        key=lambda event: float(event["ts"]),
    )


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "pattern", "error"),
    [("bert-small", "h100__gaunernst*", 0.001), ("vit-base", "h100__Falconsai*", 0.006)],
)
def test_inference_takes_what_public_profiles_of_an_h100_show(
    model: str, pattern: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [event["args"] for event in profiled(pattern) if event["name"] == "[memory]"]

    memory = memory_as_profiled(model, "2.6.0", monkeypatch)

    peak = max(event["Total Allocated"] for event in measured)
    assert memory.peak_allocated == pytest.approx(peak, error)
    assert memory.peak_reserved == max(event["Total Reserved"] for event in measured)


@needs_traces
@pytest.mark.slow
def test_a_training_step_grows_as_a_public_profile_of_a_v100_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 1.9 did not show what is allocated in all, only by how much it changed. Both peaks are
    reached by the same workspace of the same convolution."""
    events = profiled("v100__resnet50*")
    step = next(event for event in events if event["name"] != "[memory]" and event["ph"] == "X")
    changes = [
        event["args"]["Bytes"]
        for event in events
        if event["name"] == "[memory]" and 0 <= event["ts"] - step["ts"] <= step["dur"]
    ]

    memory = memory_as_profiled("resnet50", "1.9.0", monkeypatch)

    before, last = memory.steps[-2:]
    grown = last.peak_allocated - before.end_allocated
    totals = list(accumulate(changes))
    assert grown == pytest.approx(max(totals), 0.01)
    assert memory.peak_event is not None
    assert memory.peak_event.num_bytes == changes[totals.index(max(totals))]
    assert memory.peak_event.source.kind == "workspace"
