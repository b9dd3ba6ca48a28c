"""Recording a program: guarded where asked, and nothing known where its process was lost."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from neusight.failure import failure_of
from neusight.integrations.program.guard.landlock import is_available
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.recorded import Recorded, forecast_options_for
from neusight.integrations.program.recording import _with_failure_of_others, recorded
from neusight.integrations.program.runner import Outcome
from neusight.predictors.gpu import find_gpu
from neusight.session import Session

H100, OPTIONS = find_gpu("H100"), ProgramOptions(quiet=True, tokens=512)
guarded = pytest.mark.skipif(
    not is_available(), reason="this kernel has no Landlock of ABI 2 or later"
)


def program(folder: Path, text: str) -> Program:
    path = folder / "train.py"
    path.write_text(text)
    return Program(str(path), ("--fast",))


def test_what_was_recorded_knows_the_program(tmp_path: Path) -> None:
    text = "import torch\ntorch.ones(64, device='cuda').sum()\n"

    found = recorded(program(tmp_path, text), H100, OPTIONS)

    assert found.recording is not None
    assert found.recording.script == "train.py --fast"
    assert found.recording.gpu == H100.name
    assert OPTIONS.stated.items() <= found.recording.options.items()
    assert found.outcome == Outcome()


def test_the_program_reads_which_gpus_its_user_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed takes the variable apart, and an empty one is no list of numbers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    text = "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '2,3'\n"

    assert recorded(program(tmp_path, text), H100, OPTIONS).outcome == Outcome()


def test_the_programs_clock_runs_as_the_version_of_torch_that_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """import torch
words = torch.zeros(2048, dtype=torch.long, device="cuda")
table = torch.nn.Embedding(64, 4096, device="cuda").half()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for _ in range(20):
    table(words)
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
"""
    times = []
    for version in ("2.6", "2.8"):
        recorded(program(tmp_path, text), H100, ProgramOptions(quiet=True, torch=version))
        times.append(float(capsys.readouterr().out))

    assert times[0] > 2 * times[1]


def test_an_error_of_a_program_that_was_ended_is_none_of_its_own(tmp_path: Path) -> None:
    text = """import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
with torch.profiler.profile():
    for step in range(1000):
        model(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
    finished = True
print(finished)
"""

    found = recorded(program(tmp_path, text), H100, replace(OPTIONS, steps=2))

    assert found.outcome == Outcome(stopped_early=True)
    assert found.recording is not None
    assert failure_of(found.recording) == ""


def test_kernels_are_those_of_the_version_of_torch_that_is_stated(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "words = torch.zeros(2048, dtype=torch.long, device='cuda')\n"
        "torch.nn.Embedding(64, 4096, device='cuda').half()(words)\n"
    )

    def gather_us(version: str | None) -> float:
        options = ProgramOptions(quiet=True, torch=version)
        found = recorded(program(tmp_path, text), H100, options)
        assert found.recording is not None
        notes = [line for line in found.recording.warnings if "kernels are those of" in line]
        assert len(notes) == (version is not None)
        forecast = found.forecast(program(tmp_path, text), H100, options)
        return sum(
            kernel.duration_ns / 1e3
            for kernel in forecast.timeline.kernels
            if kernel.kernel.name == "embedding"
        )

    assert gather_us("2.6") > 3 * gather_us("2.8")  # wide loads since 2.8
    assert gather_us(None) == gather_us("2.13")


FAILED = Outcome("ValueError: no", exit_code=1)
INTERRUPTED = Outcome("interrupted", exit_code=130)


@pytest.mark.parametrize(
    ("outcome", "of_other", "has_work", "expected"),
    [
        (Outcome(), "rank 1 failed", False, Outcome("rank 1 failed", exit_code=1)),
        (Outcome(), "rank 1 failed", True, Outcome()),
        (FAILED, "rank 1 failed", True, replace(FAILED, failure="ValueError: no; rank 1 failed")),
        (FAILED, "", False, FAILED),
        (INTERRUPTED, "rank 1 failed", False, INTERRUPTED),
        (Outcome(stopped_early=True), "rank 1 failed", False, Outcome(stopped_early=True)),
    ],
)
def test_a_failure_of_a_process_that_it_started_explains_its_own(
    outcome: Outcome, of_other: str, has_work: bool, expected: Outcome
) -> None:
    session = SimpleNamespace(processes=SimpleNamespace(failure=of_other), has_cuda_work=has_work)

    assert _with_failure_of_others(outcome, cast("Session", session)) == expected


@guarded
def test_behind_the_guard_it_is_another_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "import os, torch\nprint(os.getpid())\ntorch.ones(64, device='cuda').sum()\n"
    options = ProgramOptions(quiet=True, is_guarded=True)

    found = recorded(program(tmp_path, text), H100, options)

    assert capfd.readouterr().out != f"{os.getpid()}\n"
    assert found.recording is not None
    assert found.recording.num_ops == 2


@guarded
def test_behind_the_guard_nobody_waits_for_processes_of_this_one(tmp_path: Path) -> None:
    text = "import torch\ntorch.ones(64, device='cuda').sum()\n"
    options = ProgramOptions(quiet=True, is_guarded=True)
    held, stay = multiprocessing.get_context("fork").Pipe(duplex=False)
    other = multiprocessing.get_context("fork").Process(target=held.recv)
    other.start()
    try:
        found = recorded(program(tmp_path, text), H100, options)
    finally:
        stay.send("go")
        other.join()

    assert found.recording is not None
    assert found.recording.num_ops == 2


@guarded
def test_of_a_process_that_is_lost_only_its_name_is_known(tmp_path: Path) -> None:
    lost = program(tmp_path, "import os\nos._exit(7)\n")
    options = ProgramOptions(quiet=True, is_guarded=True)

    found = recorded(lost, H100, options)
    recording = found.forecast(lost, H100, options).recording

    assert found == Recorded(found.outcome)
    assert found.outcome.is_lost
    assert (recording.steps, recording.script) == ((), "train.py --fast")


def test_a_forecast_is_made_with_what_the_options_say() -> None:
    made = forecast_options_for(H100, ProgramOptions(host="profiled", predictor="roofline"))

    assert (made.gpu, made.host.name, made.predictor.name) == (H100, "profiled", "roofline")
