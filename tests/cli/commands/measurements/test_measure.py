"""`neusight measure`: from a bare clone, and what it says of wrong use."""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.cli.commands.measurements import measure as measure_command
from neusight.integrations.cli.commands.measurements.measure import (
    _Progress,
    _report,
    add_arguments,
)
from neusight.integrations.cli.main import main
from neusight.integrations.profiles.measuring import MeasuringResult, read_settings
from neusight.predictors.measuring.folder import Environment, read_measured
from neusight.predictors.measuring.stopwatch import Refusal
from places import ROOT

#: Also where neusight is installed without its source tree.
MEASURE = ["measure", "--workloads-from", str(ROOT / "benchmarks" / "workloads")]


@pytest.mark.slow
def test_all_of_it_is_rehearsed_from_a_bare_clone(tmp_path: Path) -> None:
    words = ["--rehearse", "H100", "--quick", "--only", "lstm_bf16", "--out", "h100"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "measure.py"), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )

    assert done.returncode == 0, done.stderr
    assert "a rehearsal: all times are forecasts for H100, none is measured" in done.stdout
    assert "of 8 min, 0 samples, 0 workloads: constants" in done.stderr
    found = read_measured(tmp_path / "h100")
    assert found.environment.gpu == "forecast of H100-SXM5-80GB"
    assert found.quick is not None
    assert 0.5 < found.quick.constants["gemm_utilization"]["bf16"] < 1.0
    (workload,) = found.workloads
    assert workload.command == ("lstm.py",)
    assert (workload.mode, workload.host_bound) == ("train", False)
    assert 0.5 * workload.step_us["median"] < workload.gpu_busy_us < workload.step_us["median"]
    assert sum(row["count"] for row in workload.kernels) == workload.num_kernels
    assert (tmp_path / "h100" / "workloads" / workload.trace).stat().st_size < 400_000


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*MEASURE, "--out", str(tmp_path / "here")])

    shown = capsys.readouterr().err
    assert code == 2
    assert "There is no GPU to measure" in shown
    assert "--rehearse H100" in shown
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Say where to write"),
        (("--out", "x", "--minutes", "0"), "--minutes is 0; it must be above 0"),
        (("--out", "x", "--only", "gpt2_bf"), "no workload 'gpt2_bf'.* Did you mean 'gpt2_bf16'"),
        (("--out", "x", "--rehearse", "H10"), "Unknown GPU 'H10'"),
    ],
)
def test_wrong_use_is_explained(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*MEASURE, *arguments])

    assert code == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_run_has_eight_minutes_where_none_are_stated() -> None:
    parser = argparse.ArgumentParser()

    add_arguments(parser)

    assert parser.parse_args(["--out", "x"]).minutes == 8.0


HERE = Environment(
    "a GPU", "9.0", 132, 0, "550", "2.13.0", "12.8", "3.11", "2026", "0.1.0", "a CPU"
)


@pytest.mark.parametrize(
    ("words", "parts", "workloads"),
    [
        ([], ["quick", "workloads", "kernels"], None),
        (["--quick"], ["quick"], []),
        (["--kernels", "--quick"], ["quick", "kernels"], []),
        (["--only", "lstm_bf16"], ["workloads"], ["lstm_bf16"]),
    ],
)
def test_what_is_asked_for_is_measured(
    words: list[str],
    parts: list[str],
    workloads: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: dict[str, Any] = {}

    def measured(*_: object, **options: Any) -> MeasuringResult:
        asked.update(options)
        return MeasuringResult(HERE, samples=1)

    monkeypatch.setattr(measure_command, "measure", measured)

    assert main([*MEASURE, "--out", str(tmp_path), *words]) == 0

    assert asked["parts"] == parts
    every = [one.name for one in read_settings(ROOT / "benchmarks" / "workloads")]
    assert [one.name for one in asked["settings"]] == (every if workloads is None else workloads)
    assert capsys.readouterr().out.startswith(f"a GPU, torch 2.13.0, in {tmp_path}:")


def test_an_interrupt_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object, **options: object) -> MeasuringResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure_command, "measure", measured)

    assert main([*MEASURE, "--out", str(tmp_path), "--quick"]) == 130

    assert capsys.readouterr().err == (
        f"neusight: interrupted; what was measured is in {tmp_path}, and the same command "
        "continues from there\n"
    )


class Screen(io.StringIO):
    """Standard error, on a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (
            True,
            "\r\x1b[K[------------------------]   0% 0.0 of 8 min, 3 samples, 1 workloads: first"
            "\r\x1b[K[######------------------]  25% 1.5 of 8 min, 3 samples, 1 workloads: first"
            "\r\x1b[K[########################] 100% 3.0 of 8 min, 3 samples, 1 workloads: last"
            "\n",
        ),
        (
            False,
            "  0% 0.0 of 8 min, 3 samples, 1 workloads: first\n"
            "100% 3.0 of 8 min, 3 samples, 1 workloads: last\n",
        ),
    ],
)
def test_progress_is_a_bar_on_a_terminal_and_a_line_for_each_stretch_elsewhere(
    is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, clock = Screen(is_terminal=is_terminal), iter((100.0, 100.0, 190.0, 280.0))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    outcome = MeasuringResult(HERE, samples=3, workloads=1)

    show = _Progress(8.0)
    show("first", 0.0, outcome)
    show("first", 0.25, outcome)
    show("last", 1.5, outcome)
    show.end()
    show.end()

    assert screen.getvalue() == shown


def test_what_could_not_be_measured_is_named_five_times_at_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = [Refusal(f"probe {n}", "no memory") for n in range(6)]

    _report(MeasuringResult(HERE, 7, 2, refusals, left=1, notes=["warm"]), tmp_path)

    assert capsys.readouterr().out.splitlines() == [
        f"a GPU, torch 2.13.0, in {tmp_path}:",
        "  7 samples of kernels, 2 workloads",
        "  the time was up before all was measured; run the same command again to continue",
        f"  6 could not be measured ({tmp_path / 'refused.jsonl'}):",
        *(f"    probe {n}: no memory" for n in range(5)),
        "  note: warm",
        f"  next: neusight calibrate {tmp_path} --out calibration.json",
    ]
