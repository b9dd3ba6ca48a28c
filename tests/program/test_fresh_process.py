"""A program in a fresh process: it is recorded as here, and the process is gone afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from neusight.integrations.program import fresh_process
from neusight.integrations.program.fresh_process import FreshProcess, recorded_apart
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.progress import reporting
from neusight.integrations.program.progress.reporting import ReportInterval
from neusight.integrations.program.recording import recorded
from neusight.predictors.errors import CalibrationError
from neusight.predictors.gpu import find_gpu
from terminal_screen import settled_terminal
from warm_python import WarmProcess

TRAIN = """
import sys, torch
print("hello from the script")
torch.ones(int(sys.argv[1]), device="cuda").sum()
"""
H100, QUIET = find_gpu("H100"), ProgramOptions(quiet=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a temporary one of its own beside it."""
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "work"


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has torch loaded when it begins."""
    monkeypatch.setattr(fresh_process, "subprocess", WarmProcess.MODULE)


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_it_records_what_this_process_would(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = Program(str(script(folder, TRAIN)), ("1024",))
    (folder / "elsewhere").mkdir()

    found = recorded_apart(program, H100, QUIET, folder=folder / "elsewhere")

    assert capfd.readouterr() == ("", "")
    here = recorded(program, H100, QUIET)
    assert found.recording is not None
    assert here.recording is not None
    assert found.recording.steps == here.recording.steps
    assert (found.outcome, found.files) == (here.outcome, here.files)
    assert list((folder.parent / "tmp").glob("neusight-*/request")) == []


def test_what_the_program_prints_is_shown_where_that_is_wanted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = Program(str(script(folder, TRAIN)), ("8",))

    recorded_apart(program, H100, QUIET, is_shown=True)

    assert capfd.readouterr().out == "hello from the script\n"


def test_a_program_that_fails_says_why_in_its_last_line(folder: Path, warm: None) -> None:
    text = "import sys\nprint('usage\\nno such size', file=sys.stderr)\nsys.exit(2)\n"
    program = Program(str(script(folder, text)), ())

    found = recorded_apart(program, H100, QUIET)

    assert found.outcome.failure == "no such size"
    assert found.outcome.exit_code == 2


def test_a_process_that_is_lost_is_a_failure(folder: Path, warm: None) -> None:
    program = Program(str(script(folder, "import os\nos._exit(7)\n")), ())

    found = recorded_apart(program, H100, QUIET)

    assert found.recording is None
    assert found.outcome.is_lost
    assert "ended its process at once, with status 7" in found.outcome.failure


def test_what_is_raised_there_is_raised_here(folder: Path, warm: None) -> None:
    options = ProgramOptions(quiet=True, calibration="gone.json")

    with pytest.raises(CalibrationError, match=r"gone\.json"):
        recorded_apart(Program(str(script(folder, TRAIN)), ("8",)), H100, options)


def test_one_that_is_no_longer_wanted_is_gone(folder: Path) -> None:
    endless = "import threading\nthreading.Event().wait()\n"
    program = Program(str(script(folder, endless)), ())

    with FreshProcess(program, H100, QUIET) as process:
        late = process.result(timeout_s=0.0)

    assert late.outcome.failure == "it did not end within 0 s"
    assert process.has_ended
    assert list((folder.parent / "tmp").iterdir()) == []


def test_who_waits_is_shown_what_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "REWRITTEN", ReportInterval(0.0, 0.0))

    program = Program(str(script(folder, TRAIN)), ("1024",))

    with settled_terminal(monkeypatch) as screen:
        found = recorded_apart(program, H100, QUIET, doing="trying")

    assert found.recording is not None
    assert "neusight: trying, 0 s" in screen.written
    assert screen.lines == [""]
