"""What Dynamo compiled, where it broke off and why, is recorded in torch's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_net import quiet, torch_compile

import neusight
from neusight.fake_cuda.compiling.frames import break_reason, guard_reason
from neusight.recording.recording import CompiledFrame, GraphBreak

HERE = "tests/fake_cuda/compiling/test_frames.py"


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + offset}"


def reported(y: torch.Tensor) -> torch.Tensor:
    print("told")
    return y + 1


def stopping(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    if y.sum().item() > 0:
        y = y + 1
    return reported(y)


def looping(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + 1
        print("again")
    return x


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@pytest.fixture(scope="module")
def frames() -> tuple[CompiledFrame, ...]:
    with quiet(), neusight.forecast_on("H100") as forecast:
        stops: Any = torch_compile(stopping)
        loops: Any = torch_compile(looping)
        scales: Any = torch_compile(scaled)
        for size in (64, 32):
            stops(torch.ones(size, device="cuda"))
        loops(torch.ones(4, device="cuda"))
        scales(torch.ones(4, device="cuda"), 0.5)
        scales(torch.ones(4, device="cuda"), 1.5)
    return forecast.recording.compiled


def of(frames: tuple[CompiledFrame, ...], function: str) -> list[CompiledFrame]:
    return [frame for frame in frames if frame.function == function]


def test_a_function_is_named_by_torch_and_its_line(frames: tuple[CompiledFrame, ...]) -> None:
    first, second = of(frames, "stopping")

    assert (first.frame_id, second.frame_id) == ("0/0", "0/1")
    assert first.line == line_of(stopping, 0)
    assert (first.num_ops, first.recompiled, first.resumes_at) == (3, "", "")


def test_a_break_has_the_line_that_torch_could_not_trace(
    frames: tuple[CompiledFrame, ...],
) -> None:
    item, printed = line_of(stopping, 2), line_of(reported, 1)

    assert of(frames, "stopping")[0].breaks == (
        GraphBreak(item, item, "Unsupported Tensor.item() call with capture_scalar_outputs=False"),
    )
    [rest, *_] = [frame for frame in frames if frame.resumes_at == item]
    assert rest.breaks == (
        GraphBreak(printed, line_of(stopping, 4), "Failed to trace builtin operator: print"),
    )


def test_a_break_in_a_loop_leaves_all_of_the_function_as_it_is(
    frames: tuple[CompiledFrame, ...],
) -> None:
    [frame] = of(frames, "looping")

    assert frame.num_ops == 0
    assert [found.line for found in frame.breaks] == [line_of(looping, 3)]


def test_a_recompile_has_torchs_reason_and_its_line(frames: tuple[CompiledFrame, ...]) -> None:
    assert of(frames, "stopping")[1].recompiled == (
        "tensor 'x' size mismatch at index 0. expected 64, actual 32"
    )
    again = of(frames, "scaled")[1]
    assert (again.recompiled, again.recompiled_at) == ("by == 0.5", line_of(scaled, 1))


def test_nothing_of_neusight_or_python_counts_as_compiled(
    frames: tuple[CompiledFrame, ...],
) -> None:
    assert {frame.line.partition(":")[0] for frame in frames} == {HERE}


def test_addresses_are_left_out_of_reasons() -> None:
    assert guard_reason("3/1: ___check_type_id(k, 140044046531808), type=<class 'int'>  # k")[
        0
    ] == ("___check_type_id(k, …), type=<class 'int'>")


def test_what_is_named_already_is_not_named_twice() -> None:
    text = "Unsupported Tensor.item() call\n  Explanation: no `Tensor.item()` here\n"

    assert break_reason(text) == "Unsupported Tensor.item() call"
