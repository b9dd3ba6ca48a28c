"""Operators in the traces of programs that fail, nest, run threads, or profile themselves."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import neusight
from neusight.recording.recording import OpCall

Event = dict[str, Any]


def operators(program: Callable[[], object], tmp_path: Path, steps: int = 2) -> list[Event]:
    """The operators and annotations of the last step in the trace of a program, in order, each
    with the names around it; all of them nest."""
    with neusight.forecast_on("H100") as forecast:
        for _ in range(steps):
            program()
            forecast.step()
    forecast.export_chrome_trace(tmp_path / "trace.json")
    events = all_events(tmp_path)
    begin = max(event["ts"] for event in events if event["name"].startswith("ProfilerStep#"))
    found = [
        event
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation") and event["ts"] >= begin
    ]
    open_: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(found, key=lambda event: (event["ts"], -event["dur"])):
        stack = open_[event["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        event["around"] = [other["name"] for other in stack]
        if stack:
            assert event["ts"] + event["dur"] <= stack[-1]["ts"] + stack[-1]["dur"], event["name"]
        stack.append(event)
    return sorted(found, key=lambda event: event["ts"])


def all_events(tmp_path: Path) -> list[Event]:
    found: list[Event] = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    return found


def around(events: list[Event], name: str) -> list[list[str]]:
    """What lies around each event of a name on its thread, outermost first, without the step."""
    return [
        [other for other in event["around"] if not other.startswith("ProfilerStep#")]
        for event in events
        if event["name"] == name
    ]


def test_a_step_that_fails_in_the_middle_and_goes_on(tmp_path: Path) -> None:
    model = nn.Linear(8, 2)

    def program() -> None:
        model.cuda()
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        with pytest.raises(KeyError), torch.profiler.record_function("that fails"):
            model(x)
            raise KeyError("in the middle")
        functional.layer_norm(x, (8,)).sum().backward()

    events = operators(program, tmp_path)

    assert around(events, "aten::linear") == [["that fails"]]
    assert around(events, "aten::layer_norm") == [[]]


def test_an_error_in_backward_ends_its_nodes(tmp_path: Path) -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise KeyError("in backward")

    def program() -> None:
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        hidden = functional.gelu(x)
        hidden.register_hook(refuse)
        with pytest.raises(KeyError):
            hidden.relu().sum().backward()
        functional.layer_norm(x, (8,)).sum().backward()

    events = operators(program, tmp_path)

    (outer,) = around(events, "aten::native_layer_norm_backward")
    assert outer[-1] == "NativeLayerNormBackward0"
    assert "GeluBackward0" not in [event["name"] for event in events]


def test_record_functions_nest_as_they_were_entered(tmp_path: Path) -> None:
    def program() -> None:
        with torch.profiler.record_function("outer"):
            x = torch.ones(4, 8, device="cuda")
            with torch.profiler.record_function("inner"), torch.profiler.record_function("inner"):
                functional.linear(x, x)
            functional.layer_norm(x, (8,))

    events = operators(program, tmp_path)

    assert around(events, "aten::linear") == [["outer", "inner", "inner"]]
    assert around(events, "aten::layer_norm") == [["outer"]]


def test_threads_leave_the_operators_of_the_main_thread_as_they_are(tmp_path: Path) -> None:
    def elsewhere() -> None:
        for _ in range(50):
            functional.layer_norm(torch.ones(4, 8), (8,))

    def program() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        x = torch.ones(4, 8, device="cuda")
        functional.linear(x, x)
        thread.join()

    events = operators(program, tmp_path)

    assert around(events, "aten::linear") == [[]]
    assert around(events, "aten::layer_norm") == []


def test_ops_are_on_the_thread_that_runs_them(tmp_path: Path) -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    side: list[torch.cuda.Stream] = []

    def elsewhere() -> None:
        with torch.cuda.stream(side[-1]), torch.no_grad():
            torch.ones(4, 8).to("cuda").relu().sum().item()
            torch.cuda.current_stream().synchronize()

    def program() -> None:
        on_gpu = weight.cuda()
        side.append(torch.cuda.Stream())
        thread = threading.Thread(target=elsewhere)
        with torch.profiler.record_function("mine"):
            thread.start()
            result = functional.linear(torch.ones(4, 8, device="cuda"), on_gpu)
            thread.join()
        result.sum().backward()

    events = operators(program, tmp_path)

    lanes = {name: {e["tid"] for e in events if e["name"] == name} for name in _BY_THREAD}
    main, backward, other = (lanes[name] for name in ("mine", "MmBackward0", "aten::relu"))
    assert len({*main, *backward, *other}) == 3
    assert lanes == {
        "mine": main, "aten::linear": main, "aten::mm": {*main, *backward},
        "MmBackward0": backward, "aten::relu": other, "aten::clamp_min": other,
        "aten::_local_scalar_dense": other,
    }  # fmt: skip
    assert around(events, "aten::linear") == [["mine"]]
    assert around(events, "aten::relu") == [[]]
    assert around(events, "aten::_local_scalar_dense") == [["aten::item"]]
    assert ["aten::to", "aten::_to_copy"] in around(events, "aten::copy_")
    written = all_events(tmp_path)
    calls = [e for e in written if e.get("cat") == "cuda_runtime"]
    waits = [e["tid"] for e in calls if e["name"] == "cudaStreamSynchronize"]
    assert sum(tid in other for tid in waits) == 2 * 3  # to(), item() and synchronize()
    kernels = {e["args"]["External id"]: e for e in written if e.get("cat") == "kernel"}
    streams = {
        e["tid"] in other: kernels[e["args"]["External id"]]["tid"]
        for e in events
        if e["args"]["External id"] in kernels
    }
    assert streams[False] == 7 != streams[True]  # a thread's current stream is its own


_BY_THREAD = (
    "mine", "aten::linear", "aten::mm", "MmBackward0", "aten::relu", "aten::clamp_min",
    "aten::_local_scalar_dense",
)  # fmt: skip


def test_modules_are_numbered_within_their_class(tmp_path: Path) -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    pair = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 8))

    def program() -> None:
        for module in (first, second, *pair):
            module.cuda()(torch.ones(4, 8, device="cuda"))

    operators(program, tmp_path)

    modules = [e for e in all_events(tmp_path) if e["name"].startswith("nn.Module: ")]
    names = [f"{e['name'].removeprefix('nn.Module: ')}" for e in modules]
    assert names == 2 * [
        "Linear_0", "Linear_1", "Sequential_0", "Linear_2", "ReLU_0", "Sequential_1", "Linear_3",
    ]  # fmt: skip
    assert [e["args"]["Python module id"] for e in modules[:7]] == [0, 1, 0, 2, 0, 1, 3]


def test_a_program_that_trains_in_a_thread_has_steps_and_nodes(tmp_path: Path) -> None:
    def train() -> None:
        weight = torch.ones(8, 8, device="cuda", requires_grad=True)
        for _ in range(4):
            (torch.ones(4, 8, device="cuda") @ weight).sum().backward()
            weight.grad = None

    with neusight.forecast_on("H100") as forecast:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    steps = [step for step in forecast.recording.steps if step.kind == "train"]
    assert sum(step.count for step in steps) >= 3
    last = steps[-1]
    numbers = {call.sequence_nr for call in last.entries if isinstance(call, OpCall)}
    assert {0, 1} <= numbers


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("is_made_there", [True, False])
def test_the_thread_that_steps_an_optimizer_is_followed(
    is_made_there: bool, tmp_path: Path
) -> None:
    def program(run: Callable[[Callable[[], None]], None]) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        made = None if is_made_there else torch.optim.AdamW(model.parameters())

        def train() -> None:
            optimizer = made or torch.optim.AdamW(model.parameters())
            for _ in range(6):
                model(torch.ones(4, 8, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        run(train)

    steps = []
    for run in (in_thread, lambda work: work()):
        with neusight.forecast_on("H100") as forecast:
            program(run)
        steps.append([step for step in forecast.recording.steps if step.kind == "train"])

    found, wanted = steps
    first = 0 if is_made_there else -1  # what was done before the first update was of a thread
    assert found[first:] == wanted[first:]
    assert tuple(found[-1].operators) == tuple(wanted[-1].operators) != ()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_region_that_backward_calls_again(tmp_path: Path) -> None:
    torch.compiler.reset()
    inside: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        lambda x: functional.gelu(x) * 2.0
    )

    def program() -> None:
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        result = checkpoint(inside, functional.layer_norm(x, (8,)), use_reentrant=False)
        result.sum().backward()

    events = operators(program, tmp_path)

    forward, again = around(events, "CompiledFunction")
    assert forward == ["Torch-Compiled Region: 0/0"]
    assert again[1:] == ["CompiledFunctionBackward", "Torch-Compiled Region: 0/0"]
    assert around(events, "triton_poi_fused_gelu_mul_0") == [
        [*forward, "CompiledFunction"],
        [*again, "CompiledFunction"],
    ]


def test_a_program_that_profiles_itself_has_its_file_and_its_forecast(tmp_path: Path) -> None:
    profilers: list[torch.profiler.profile] = []

    def program() -> None:
        with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
            x = torch.ones(4, 8, device="cuda")
            functional.linear(x, x)
        profilers.append(profiler)

    events = operators(program, tmp_path)

    own = tmp_path / "own.json"
    profilers[-1].export_chrome_trace(str(own))
    names = {event["name"] for event in json.loads(own.read_text())["traceEvents"]}
    assert {"aten::linear", "cudaLaunchKernel"} <= names
    assert around(events, "aten::linear") == [[]]
    assert around(events, "aten::addmm") or around(events, "aten::mm")
