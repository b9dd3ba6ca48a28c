"""`neusight measure`: from a bare clone, and what it says of wrong use."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.integrations.cli.commands.measurements.measure import add_arguments
from neusight.integrations.cli.main import main
from neusight.predictors.measuring.folder import read_measured
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
