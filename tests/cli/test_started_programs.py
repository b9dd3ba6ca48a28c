"""`neusight run` of scripts that leave the work to processes they start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from warm_python import run_python

#: Trains until it is ended, and saves over a file of the user's.
WORK = """
import sys, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.save(model.state_dict(), "model.pt")
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
LAUNCH = """
import subprocess, sys
subprocess.run([sys.executable, "work.py", *sys.argv[1:]])
print("never reached")
"""
FORKED = """
import multiprocessing, runpy, sys
process = multiprocessing.get_context("fork").Process(target=runpy.run_path, args=("work.py",))
process.start()
process.join()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "launch.py").write_text(LAUNCH)
    (tmp_path / "forked.py").write_text(FORKED)
    (tmp_path / "model.pt").write_text("the user's")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "neusight", "run", "--gpu", "H100", "--quiet", *words, cwd=folder)


def test_a_program_that_a_script_starts_is_forecast_as_if_run_alone(folder: Path) -> None:
    alone = run(folder, "work.py", "1000000000")
    launched = run(folder, "launch.py", "1000000000")
    forked = run(folder, "forked.py", "1000000000")

    assert "per training step" in alone.stdout
    assert [each.returncode for each in (alone, launched, forked)] == [0, 0, 0]
    assert launched.stdout == forked.stdout == alone.stdout
    assert launched.stderr == forked.stderr == alone.stderr
    assert (folder / "model.pt").read_text() == "the user's"


def test_a_program_whose_child_fails_is_a_failed_one(folder: Path) -> None:
    (folder / "work.py").write_text("raise ValueError('bad data')")

    done = run(folder, "launch.py")

    assert done.returncode == 3
    words = "neusight: the script failed before any CUDA work: work.py, a process that launch.py:3 "
    assert done.stderr.splitlines()[-1] == words + "starts, failed: ValueError: bad data"
    assert "put nothing on the GPU" not in done.stderr
