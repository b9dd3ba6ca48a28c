"""The program's own lines are distinguished from torch's, by names without a machine's paths."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neusight
from neusight.forecast import Forecast, forecast_options
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import run_program
from neusight.recording.call_stack import (
    CallStacks,
    ProgramThreads,
    call_site,
    is_elsewhere,
    program_line,
    program_variable,
)
from neusight.recording.recording import (
    Alloc,
    EventRecord,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Synchronize,
)
from neusight.session import Session, SessionOptions
from places import ROOT
from recorded_programs import entries_of

HERE = Path(__file__).name


def program(stacks: CallStacks) -> list[tuple[str, ...]]:
    return [stacks.here() for _ in range(2)]


def train() -> None:
    layer = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(layer.parameters())
    loss = forward(layer).sum()
    loss.backward()
    optimizer.step()
    loss.item()


def forward(layer: torch.nn.Module) -> torch.Tensor:
    out: torch.Tensor = layer(torch.ones(8, 8, device="cuda"))
    return out


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{HERE}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def recorded(*, with_stack: bool = True) -> Recording:
    with neusight.forecast_on("H100", with_stack=with_stack) as forecast:
        train()
    return forecast.recording


def calls(recording: Recording) -> list[OpCall]:
    return entries_of(recording, OpCall)


def test_a_stack_ends_at_the_caller_and_names_files_relative_to_the_folder() -> None:
    caller = sys._getframe().f_code
    stacks = CallStacks(folder=ROOT, caller=caller)

    first, second = program(stacks)

    assert len(first) == 1 or sys.version_info < (3, 12)  # before, a comprehension is a frame
    assert all(line.startswith(f"tests/recording/{HERE}:") for line in first)
    assert first is second


def test_a_file_elsewhere_goes_by_its_name_alone(tmp_path: Path) -> None:
    stacks = CallStacks(folder=tmp_path)

    assert stacks.here()[0].startswith(f"{HERE}:")


def test_the_call_site_is_the_innermost_line_of_the_program() -> None:
    assert call_site().startswith(f"{HERE}:")


def test_the_call_site_in_a_package_names_the_package() -> None:
    name = "/usr/lib/python3/site-packages/transformers/models/llama/modeling_llama.py"
    space: dict[str, object] = {"call_site": call_site}
    exec(compile("\n\nsite = call_site()", name, "exec"), space)

    assert space["site"] == "transformers/models/llama/modeling_llama.py:3"


def test_a_forward_op_knows_every_line_that_led_to_it() -> None:
    addmm = next(call for call in calls(recorded()) if call.signature.op == "aten::addmm")

    lines = [place.rpartition("/")[2] for place in addmm.stack]
    assert lines[:2] == [line_of("out: torch.Tensor ="), line_of("loss = forward(layer)")]


def test_a_backward_op_knows_the_lines_of_its_forward_op() -> None:
    found = calls(recorded())
    forward_op = next(call for call in found if call.signature.op == "aten::addmm")

    backward = [call for call in found if call.signature.op == "aten::mm"]

    assert backward
    assert {call.stack for call in backward} == {forward_op.stack}


def test_allocations_and_waits_know_their_lines() -> None:
    entries = [entry for step in recorded().steps for entry in step.entries]

    waits = [entry for entry in entries if isinstance(entry, Synchronize)]
    made = [e for e in entries if isinstance(e, Alloc) and e.op == "aten::addmm"]

    assert waits[-1].stack[0].rpartition("/")[2] == line_of("loss.item()")
    assert made[0].stack[0].rpartition("/")[2] == line_of("out: torch.Tensor =")


def test_without_stacks_the_recording_is_the_same() -> None:
    plain, with_stack = recorded(with_stack=False), recorded()

    assert {call.stack for call in calls(plain)} == {()}
    assert plain == with_stack


def test_a_module_knows_the_line_that_made_it() -> None:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8),  # made here
        ).cuda()
        model(torch.ones(8, 8, device="cuda"))

    [place, *_] = forecast.recording.made["Sequential.0"]
    assert place.rpartition("/")[2] == line_of("model = torch.nn.Sequential(")


def test_a_script_that_is_run_is_where_stacks_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.ones(3, device='cuda')\n")
    options = SessionOptions(forecast_options("H100", predictor="roofline"), with_stack=True)
    session = Session(options, folder=tmp_path)

    run_program(Program(str(script), ()), session)

    [call] = calls(session.forecast.recording)
    assert call.stack == ("script.py:2",)


CELL = """
def make():
    return torch.nn.Linear(8, 8).cuda()

def run():
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        layer = make()
        loss = layer(torch.randn(4, 8, device="cuda")).sum()
        loss.backward()
        loss.item()
    return forecast

forecast = run()
"""


def forecast_of_cell(filename: str) -> Forecast:
    """What a notebook forecasts whose cell is compiled under that name."""
    names: dict[str, Any] = {"torch": torch, "neusight": neusight}
    exec(compile(CELL, filename, "exec"), names)
    made = names["forecast"]
    assert isinstance(made, Forecast)
    return made


@pytest.mark.parametrize(
    "filename", ["<ipython-input-3-0123456789ab>", "/tmp/ipykernel_1234/987654321.py"]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_lines_of_a_notebook_are_those_of_its_cells(
    filename: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {filename: ("Cell", "In[3]")} if is_known else {}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    cell = "In[3]" if is_known or filename.startswith("<ipython-input-3-") else "cell"

    forecast = forecast_of_cell(filename)

    recording = forecast.recording
    waits = entries_of(recording, Synchronize)
    stacks = {call.stack for call in calls(recording)}
    assert {wait.source for wait in waits} == {f"{cell}:3", f"{cell}:10"}
    assert (f"{cell}:8",) in {stack[:1] for stack in stacks}
    assert (f"{cell}:3", f"{cell}:7") in {stack[:2] for stack in stacks}
    assert all(line.startswith(f"{cell}:") for stack in stacks for line in stack)
    assert any(f"invented at: {cell}:10" in text for text in forecast.warnings)


def test_timed_cells_are_named_by_their_magic() -> None:
    assert any(
        "invented at: %%time:10" in text for text in forecast_of_cell("<timed exec>").warnings
    )


def test_a_folder_that_looks_like_a_kernels_is_not_one() -> None:
    forecast = forecast_of_cell("/home/me/ipykernel_notes/train.py")

    assert any("invented at: train.py:10" in text for text in forecast.warnings)


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_ipython_states_lines_of_its_cells() -> None:
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('import torch, neusight', store_history=True)\n"
        f"shell.run_cell({CELL.strip()!r}, store_history=True)\n"
        "print(shell.user_ns['forecast'].warnings)\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )

    assert "invented at: In[2]:9" in done.stdout


def test_the_program_s_line_is_not_that_of_a_package_it_uses() -> None:
    source = "def where(line): return line()\n"
    package: dict[str, Any] = {"__name__": "loader"}
    exec(compile(source, "/lib/site-packages/loader.py", "exec"), package)

    line = package["where"](program_line)  # here

    assert line == line_of('package["where"](program_line)  # here')


class Value:
    """What a variable may hold."""


ONE_FOR_ALL = Value()


def test_a_value_is_named_as_the_function_that_runs_calls_it() -> None:
    mine, other = Value(), SimpleNamespace(held=Value())

    assert program_variable(mine) == "mine"
    assert program_variable(ONE_FOR_ALL) == "ONE_FOR_ALL"
    assert program_variable(other.held) == ""


def test_naming_a_value_keeps_no_other_alive_and_leaves_what_locals_gave() -> None:
    def look(*, keeps_locals: bool) -> tuple[bool, bool]:
        value, large = Value(), Value()
        seen = weakref.ref(large)
        given = locals() if keeps_locals else {}
        program_variable(value)
        is_whole = not keeps_locals or "value" in given
        del large, given
        return seen() is None, is_whole

    assert look(keeps_locals=False) == (True, True)
    assert look(keeps_locals=True)[1]


# -- threads ---------------------------------------------------------------------------------------

SIGNATURE = OpSignature("aten::mm", "default", (), ())


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_threads_that_run_at_once_have_numbers_of_their_own_and_later_ones_those_again() -> None:
    threads = ProgramThreads()
    numbers = [threads.number()]

    def outer() -> None:
        numbers.append(threads.number())
        in_thread(lambda: numbers.append(threads.number()))
        numbers.append(threads.number())

    in_thread(outer)
    in_thread(outer)

    assert numbers == [0, 1, 2, 1, 1, 2, 1]


def test_the_thread_that_counts_may_be_any() -> None:
    numbers: list[int] = []

    def work() -> None:
        threads = ProgramThreads()
        numbers.append(threads.number())
        in_thread(lambda: numbers.append(threads.number()))

    in_thread(work)

    assert numbers == [0, 1]


def test_backward_is_of_no_thread_of_the_program() -> None:
    calls = [OpCall(SIGNATURE, MathMode(), phase="backward", thread=1), EventRecord(1, 0, thread=1),
             OpCall(SIGNATURE, MathMode(), thread=1), OpCall(SIGNATURE, MathMode())]  # fmt: skip

    assert [is_elsewhere(call) for call in calls] == [False, True, True, False]
