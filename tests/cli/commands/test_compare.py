"""neusight compare: recordings, a recording beside a profile, revisions; its exit code is 0."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import neusight
from neusight.integrations.cli.main import main

TRAIN = """
import torch
from size import WIDTH
a = torch.ones(WIDTH, WIDTH, device="cuda")
for _ in range(3):
    a @ a
"""


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with neusight.forecast_on("H100") as forecast:
        for _ in range(3):
            torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    forecast.save("a.json.gz")
    forecast.export_chrome_trace("trace.json")
    return "a.json.gz"


def git(*words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


def test_two_recordings_are_compared_and_written(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["compare", recording, recording, "--json", "o.json", "--markdown", "o.md"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "a step, the same" in printed
    assert "written to  o.json" in printed
    assert json.loads(Path("o.json").read_text())["first"]["gpu"] == "H100-SXM5-80GB"
    assert "a step, the same" in Path("o.md").read_text()


def test_two_recordings_stand_side_by_side_in_a_report(
    recording: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    with neusight.forecast_on("H100") as other:
        for _ in range(3):
            torch.softmax(torch.ones(512, 512, device="cuda"), -1)
    other.save("b.json.gz")

    code = main(["compare", recording, "b.json.gz", "--html", "o.html"])

    assert code == 0
    assert "written to  o.html" in capsys.readouterr().out
    page = Path("o.html").read_text()
    assert "<h2>a.json.gz</h2>" in page and "<h2>b.json.gz</h2>" in page
    assert "neusight compare a.json.gz b.json.gz --html o.html" in page
    assert "1970-01-02" in page
    warning = page.index("These are not the same program")
    assert warning < page.index("A step of each")


def test_both_may_be_priced_on_another_gpu(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--gpu", "A100", recording, recording]) == 0
    assert "H100" not in capsys.readouterr().out


def test_a_recording_stands_beside_a_trace_as_a_forecast(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", recording, "trace.json"]) == 0
    assert "By kernel class" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["trace.json", "a.json.gz"], "neusight compare a.json.gz trace.json"),
        (["absent.json", "a.json.gz"], "absent.json: there is no such file"),
        (["a.json.gz"], "compare takes two files"),
        (["--link", "x", "a.json.gz", "a.json.gz"], "--link is for revisions"),
        (["--git", "main..", "--gpu", "H100"], "give the script to compare"),
        (["--git", "main..", "train.py"], "Say which GPU"),
        (["--html", "o.html", "a.json.gz", "trace.json"], "--html is for two forecasts"),
        (["--gpu", "H101", "a.json.gz", "a.json.gz"], "Unknown GPU 'H101'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_compared_is_exit_code_2(
    recording: str, words: list[str], stated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text(TRAIN)

    assert main(["compare", *words]) == 2
    assert stated in capsys.readouterr().err


@pytest.mark.slow
def test_each_revision_runs_from_its_own_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main", ".")
    Path("train.py").write_text(TRAIN)
    Path("size.py").write_text("WIDTH = 1024\n")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    Path("size.py").write_text("WIDTH = 2048\n")

    code = main(["compare", "--git", "HEAD", "--gpu", "H100", "train.py"])

    printed = capsys.readouterr().out
    assert code == 0
    assert "B  the working tree: train.py on H100-SXM5-80GB" in printed
    assert "1 file not committed" in printed
    assert "3 x gemm 1024x1024x1024 fp32 → 3 x gemm 2048x2048x2048 fp32" in printed
    assert "train.py:6  a @ a" in printed
