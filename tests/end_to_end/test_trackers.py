"""Experiment trackers, the real packages, offline: a forecast goes into them, and scripts that log
to them are forecast."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

#: No server is contacted.
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # mlflow-skinny has no database.
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[trackers]'")


def python(folder: Path, *words: str, **environment: str) -> str:
    """What a run of Python in that folder prints, all of it."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_example_puts_a_forecast_into_wandb(tmp_path: Path) -> None:
    require("wandb")

    python(tmp_path, str(ROOT / "examples" / "log_to_wandb.py"), **OFFLINE)

    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged = log.read_bytes()
    assert b"H100-SXM5-80GB" in logged
    assert [name for name in (b"step_latency_us", b"gpu_time_us/gemm") if name not in logged] == []


def test_the_example_puts_a_forecast_into_mlflow(tmp_path: Path) -> None:
    require("mlflow")

    reported = python(tmp_path, str(ROOT / "examples" / "log_to_mlflow.py"), **OFFLINE)

    (metrics,) = tmp_path.glob("mlruns/0/*/metrics")
    _, latency_us, _ = (metrics / "step_latency_us").read_text().split()
    assert f"H100-SXM5-80GB: {float(latency_us):.1f} µs per training step" in reported
    assert (metrics / "gpu_time_us" / "gemm").is_file()
    assert (metrics.parent / "params" / "gpu").read_text() == "H100-SXM5-80GB"


TRAIN = """
import mlflow, torch, wandb

wandb.init(project="mine")
mlflow.start_run()
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    wandb.log({"loss": loss.item()})
    mlflow.log_metric("loss", loss.item(), step=step)
wandb.finish()
mlflow.end_run()
"""


def test_a_script_that_logs_to_both_is_forecast_and_leaves_nothing(tmp_path: Path) -> None:
    require("wandb")
    require("mlflow")
    (tmp_path / "train.py").write_text(TRAIN)

    reported = python(tmp_path, "-m", "neusight", "run", "--gpu", "H100", "train.py")

    assert "H100-SXM5-80GB: fits" in reported
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
