"""A script's own error is shown by its own lines; what is not its own is distinguished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neusight.exit_codes import ExitCode
from neusight.fake_cuda import session
from neusight.integrations.cli import main as cli
from neusight.recording.handlers import HANDLERS
from neusight.recording.recorder import Recorder

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 7)

    def forward(self, x):
        return self.inner(x)

net = Net().cuda()
torch.ones(1, device="cuda") + 1
"""
SHAPES = f"{NET}net(torch.randn(4, 5, device='cuda'))\n"
WORDS = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)"


def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    (folder / "train.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return cli.main(["run", "--gpu", "H100", "--quiet", "train.py"])


def test_a_mistake_is_shown_by_the_scripts_own_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEUSIGHT_DEBUG", raising=False)

    assert run(SHAPES, tmp_path, monkeypatch) == ExitCode.SCRIPT_FAILED

    lines = capsys.readouterr().err.splitlines()
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert lines[0] == "Traceback (most recent call last):"
    assert files == [str(tmp_path / "train.py")] * 2
    assert lines.index(WORDS) < 8
    assert f"neusight: the script failed: {WORDS} (train.py:11)" in lines


def test_debugging_shows_every_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEUSIGHT_DEBUG", "1")

    assert run(SHAPES, tmp_path, monkeypatch) == ExitCode.SCRIPT_FAILED

    assert "recorder.py" in capsys.readouterr().err


def test_what_a_script_chains_is_shown_and_what_torch_caught_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = "net(torch.randn(4, 5, device='cuda'))"
    text = f"{NET}try:\n    {call}\nexcept RuntimeError as e:\n    raise ValueError(1) from e\n"

    assert run(text, tmp_path, monkeypatch) == ExitCode.SCRIPT_FAILED

    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 2
    assert shown.index(WORDS) < shown.index("direct cause") < shown.index("ValueError: 1")


def test_an_error_in_the_depths_is_neusights_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEUSIGHT_DEBUG", raising=False)
    nobody: Any = None
    broken = dict.fromkeys(HANDLERS, lambda *call: Recorder.wait(nobody, "copy"))
    monkeypatch.setattr(session, "HANDLERS", broken)

    assert run(SHAPES, tmp_path, monkeypatch) == ExitCode.NEUSIGHT_FAILED

    shown = capsys.readouterr().err
    assert "neusight itself failed: AttributeError: 'NoneType' object has no" in shown
    assert "(recorder.py:" in shown
    assert "Traceback" not in shown


def test_a_session_that_does_not_open_is_no_failure_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neusight.fake_cuda import core
    from neusight.predictors.errors import SlowMachineError

    def is_slow() -> None:
        raise SlowMachineError("too slow just now")

    monkeypatch.setattr(core, "self_check", is_slow)

    assert run(SHAPES, tmp_path, monkeypatch) == ExitCode.NEUSIGHT_FAILED
    assert capsys.readouterr().err == "neusight: too slow just now\n"
