"""What the code that Inductor wrote calls: kernels, allocations, views."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from compiled_net import ops, torch_compile

import neusight
from neusight.fake_cuda.compiling.fused_kernel import FusedKernel, TouchedBuffer
from neusight.fake_cuda.compiling.launching import KernelLauncher
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Alloc, Free, OpCall
from recorded_programs import entries_of

#: Compiled for 64 elements, of which it reads half of a larger buffer in three loops, and a table
#: as a whole.
KERNEL = FusedKernel(
    "triton_poi_fused_add_0",
    "pointwise",
    (("x", 64),),
    (
        TouchedBuffer("in_ptr0", 32, 3),
        TouchedBuffer("in_ptr1", None),
        TouchedBuffer("out_ptr0", 64),
    ),
)


def recorder_of(forecast: neusight.Forecast) -> Recorder:
    found = forecast._recorder  # type: ignore[attr-defined]
    assert isinstance(found, Recorder)
    return found


def test_bytes_are_those_of_the_call() -> None:
    with neusight.forecast_on("H100") as forecast:
        launcher = KernelLauncher(recorder_of(forecast), KERNEL)
        table = torch.empty(10, device="cuda")
        for size in (64, 128, 128):
            x, out = torch.empty(1000, device="cuda"), torch.empty(size, device="cuda")
            launcher.run(x, table, out, size, stream=0)
    launches = [
        entry.signature.by_name
        for entry in entries_of(forecast, OpCall)
        if entry.signature.op == "inductor::triton_poi_fused_add_0"
    ]

    assert [(call["bytes_read"], call["bytes_written"]) for call in launches] == [
        (4 * (32 + 10), 4 * 64), (4 * (64 + 10), 4 * 128), (4 * (64 + 10), 4 * 128),
    ]  # fmt: skip
    assert [call["bytes_read_again"] for call in launches] == [2 * 4 * 32, 2 * 4 * 64, 2 * 4 * 64]
    assert launches[1] is launches[2]


def test_buffers_come_and_go_without_ops(compiled: neusight.Forecast) -> None:
    step = [step for step in compiled.recording.steps if step.kind == "train"][-1]
    made = [entry for entry in step.entries if isinstance(entry, Alloc)]
    freed = [entry for entry in step.entries if isinstance(entry, Free)]

    assert any(entry.op == "inductor::empty_strided_cuda" for entry in made)
    assert len(made) == len(freed)
    assert not [name for name in ops(step) if "empty_strided" in name or "as_strided" in name]


def test_an_input_that_begins_between_is_copied_first() -> None:
    with neusight.forecast_on("H100") as forecast:
        function = torch_compile(lambda x: torch.relu(x) + 1)
        function(torch.randn(64, device="cuda"))
        function(torch.randn(65, device="cuda")[1:])

    assert ops(*forecast.recording.steps)["aten::clone"] == 1


def test_compiled_code_stages_copies_in_pinned_memory() -> None:
    guards: Any = import_module("torch._C._dynamo.guards")

    with neusight.forecast_on("H100"):
        torch_compile(lambda x: x + 1)(torch.ones(4, device="cuda"))
        staged = guards._empty_strided_cpu_pinned((2, 3), (3, 1), torch.float32)

        assert (staged.shape, staged.is_pinned()) == ((2, 3), True)
