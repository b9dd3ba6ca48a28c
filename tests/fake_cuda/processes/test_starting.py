"""Processes that a program starts: the one that does the work is the one that is forecast."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import HangError
from neusight.recording.steps.cutter import StepCutter
from neusight.session import NoCudaWorkWarning

FORK = multiprocessing.get_context("fork")

WORK = """
import torch

def train(steps, model=None):
    model = torch.nn.Linear(64, 64).cuda() if model is None else model
    assert model.weight.is_cuda and isinstance(model.weight, torch.nn.Parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    return torch.cuda.get_device_name()

if __name__ == "__main__":
    print(train(4), flush=True)
"""


def work(times: int) -> int:
    for _ in range(times):
        torch.ones(8, device="cuda").relu_()
    return times


def fail(text: str) -> None:
    raise ValueError(text)


def ops_of(forecast: neusight.Forecast) -> int:
    return forecast.recording.num_ops


def warned(forecast: neusight.Forecast, words: str) -> list[str]:
    return [text for text in forecast.warnings if words in text]


def run_forked(function: Callable[..., Any], *args: Any) -> None:
    child = FORK.Process(target=function, args=args)
    child.start()
    child.join()


def test_a_forked_child_that_does_all_the_work_is_forecast() -> None:
    environment = dict(os.environ)
    with neusight.forecast_on("H100") as forecast:
        run_forked(work, 3)

    assert ops_of(forecast) == 6  # ones and relu_
    (reported,) = warned(forecast, "figures are those of")
    assert reported.startswith("the figures are those of work, a process that test_starting.py:")
    assert not warned(forecast, "no CUDA work")
    assert dict(os.environ) == environment


def test_the_child_that_does_most_is_forecast_and_the_others_are_named() -> None:
    with neusight.forecast_on("H100") as forecast:
        for times in (1, 4, 2):
            run_forked(work, times)

    assert ops_of(forecast) == 8
    (reported,) = warned(forecast, "used the GPU as well and 1 more")
    assert reported.startswith("work, a process that")


def test_a_child_that_is_forked_after_the_gpu_was_used_fails_as_on_a_gpu() -> None:
    with neusight.forecast_on("H100") as forecast:
        work(1)
        run_forked(work, 3)

    assert ops_of(forecast) == 2
    assert warned(forecast, "failed: RuntimeError: Cannot re-initialize CUDA in forked subprocess")


def test_a_child_forked_after_the_gpu_was_used_finds_cuda_as_torch_leaves_it() -> None:
    def look() -> None:
        answers.put((torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()))
        try:
            torch.cuda.current_device()
        except RuntimeError as error:
            answers.put(str(error))

    answers: Any = FORK.SimpleQueue()
    with neusight.forecast_on("H100"):
        work(1)
        run_forked(look)

    assert answers.get() == (False, True)
    assert answers.get() == (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method"
    )


@pytest.mark.parametrize("is_open", [False, True])
def test_workers_of_a_pool_report_when_it_ends_and_where_it_goes_on(is_open: bool) -> None:
    with neusight.forecast_on("H100") as forecast:
        pool = FORK.Pool(1)
        assert pool.map(work, [2, 3]) == [2, 3]
        if not is_open:
            pool.terminate()
    pool.terminate()
    pool.join()

    assert ops_of(forecast) == 10


def test_a_child_that_is_ended_while_it_reports_reports_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, program = StepCutter.finish, os.getpid()
    begun: list[StepCutter] = []

    def finish(cutter: StepCutter) -> None:
        if os.getpid() == program:
            whole(cutter)
        elif not begun:
            begun.append(cutter)
            os.kill(os.getpid(), signal.SIGTERM)
            whole(cutter)

    monkeypatch.setattr(StepCutter, "finish", finish)
    with neusight.forecast_on("H100") as forecast:
        run_forked(work, 3)

    assert ops_of(forecast) == 6


def test_workers_of_an_executor_report() -> None:
    with neusight.forecast_on("H100") as forecast, ProcessPoolExecutor(1, FORK) as pool:
        assert list(pool.map(work, [2, 3])) == [2, 3]

    assert ops_of(forecast) == 10


def test_workers_of_loaders_and_other_programs_are_not_mentioned() -> None:
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").relu_()
        subprocess.run(["true"], check=True)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        assert len(list(torch.utils.data.DataLoader(rows, 4, num_workers=1))) == 2

    assert not warned(forecast, " process")


def test_a_child_that_fails_explains_why_there_is_no_work() -> None:
    with (
        pytest.warns(NoCudaWorkWarning, match=r"fail, a process that .* failed: Value"),
        neusight.forecast_on("H100") as forecast,
    ):
        run_forked(fail, "bad data")

    assert warned(forecast, "failed: ValueError: bad data")


def test_a_child_that_is_killed_is_named() -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        pytest.warns(NoCudaWorkWarning),
        neusight.forecast_on("H100") as forecast,
    ):
        run_forked(die)

    assert warned(forecast, "killed before it could report")


def test_a_pool_whose_workers_all_fail_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(HangError, match=r"workers of a multiprocessing pool failed .* bad device"),
        neusight.forecast_on("H100"),
        FORK.Pool(1, fail, ("bad device",)) as pool,
    ):
        pool.map(work, [1])

    assert "bad device" in capfd.readouterr().err


def test_what_torch_starts_for_itself_takes_no_part() -> None:
    worker = types.ModuleType("torch._inductor.a_worker_of_a_test")
    code = (
        "import subprocess\n"
        "def start(program):\n"
        "    code = 'import os; print(os.environ.get(\"NEUSIGHT_RUN\"))'\n"
        "    return subprocess.check_output([program, '-c', code], text=True)"
    )
    exec(code, worker.__dict__)
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda").relu_()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        printed = worker.start(sys.executable)

    assert printed == "None\n"


def test_a_program_with_an_environment_of_its_own_takes_part(tmp_path: Path) -> None:
    code = "import os, sys; print('NEUSIGHT_RUN' in os.environ, sys.path[-1:] != [], __name__)"
    with pytest.warns(NoCudaWorkWarning), neusight.forecast_on("H100"):
        printed = subprocess.check_output(
            [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, text=True
        )

    assert printed == "True True __main__\n"


# One script for all that starts Python again: each imports torch.
SCRIPT = """
import multiprocessing, subprocess, sys
import neusight, torch
from work import train

if __name__ == "__main__":
    with neusight.forecast_on("H100") as forecast:
        worker = subprocess.Popen([sys.executable, "work.py"])
        sent = 2, torch.nn.Linear(64, 64).cuda()
        process = multiprocessing.get_context("spawn").Process(target=train, args=sent)
        process.start()
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            print(pool.map(train, [3]), flush=True)
        process.join()
        print(worker.wait(), process.exitcode)
    print(forecast.recording.num_ops, len(forecast.steps))
    print(*forecast.warnings, sep="\\n")
"""


@pytest.mark.slow
def test_spawned_children_find_the_target_and_are_forecast(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "main.py").write_text(SCRIPT)

    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) == ["NVIDIA H100 80GB HBM3", "['NVIDIA H100 80GB HBM3']"]
    assert lines[2] == "0 0"
    assert lines[4] == "the figures are those of work.py, a process that main.py:8 starts"
    assert lines[5].startswith("train, a process that main.py:11 starts, used the GPU as well")
