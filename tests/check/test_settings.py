"""What pyproject.toml says is read whole, and what means nothing in it is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neusight.integrations.check.settings import (
    DEFAULT_BASELINE,
    CaseSettings,
    Settings,
    read_settings,
)
from neusight.predictors.errors import OptionError

ALL = """
[project]
name = "x"
[tool.neusight]
gpu = ["H100", "L40S"]
baseline = "figures.json"
steps = 3
host = "plain"
predictor = "roofline"
[tool.neusight.tolerance]
step_latency = "1 %"
num_kernels = 2
[tool.neusight.cases]
small = "train.py --name 'a b'"
module = ["-m", "pkg.train", "--fast"]
large = { command = "train.py", steps = "all", calibration = "h100.json" }
"""


def settings_of(folder: Path, text: str) -> Settings:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return read_settings(folder)


def test_everything_that_is_said_is_read(tmp_path: Path) -> None:
    found = settings_of(tmp_path, ALL)

    assert found == Settings(
        gpus=("H100", "L40S"),
        baseline="figures.json",
        cases={
            "small": CaseSettings(("train.py", "--name", "a b")),
            "module": CaseSettings(("-m", "pkg.train", "--fast")),
            "large": CaseSettings(("train.py",), {"steps": "all", "calibration": "h100.json"}),
        },
        tolerance={"step_latency": "1 %", "num_kernels": 2},
        stated={"host": "plain", "predictor": "roofline", "steps": "3"},
    )


@pytest.mark.parametrize("text", [None, "", "[tool.other]\nx = 1\n", "[tool.neusight]\n"])
def test_where_nothing_is_said_there_are_defaults(text: str | None, tmp_path: Path) -> None:
    found = read_settings(tmp_path) if text is None else settings_of(tmp_path, text)

    assert found == Settings(baseline=DEFAULT_BASELINE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.neusight\n", "is no TOML"),
        ("[tool]\nneusight = 3\n", r"\[tool.neusight\] must be a table"),
        ("[tool.neusight]\nspeed = 1\n", "unknown setting 'speed'.*known: baseline, "),
        ("[tool.neusight]\ngpu = 3\n", "tool.neusight.gpu is 3"),
        ("[tool.neusight]\ngpu = ['']\n", "tool.neusight.gpu is ''"),
        ("[tool.neusight]\nsteps = true\n", "tool.neusight.steps is True"),
        ("[tool.neusight]\nbaseline = 3\n", "tool.neusight.baseline is 3"),
        ("[tool.neusight]\ncases = 'train.py'\n", r"\[tool.neusight.cases\] must be a table"),
        ("[tool.neusight.cases]\na = ''\n", "tool.neusight.cases.a is ''"),
        ("[tool.neusight.cases]\na = ' '\n", "tool.neusight.cases.a names no script"),
        ("[tool.neusight.cases]\na = '-m'\n", "names no script"),
        ("[tool.neusight.cases.a]\nsteps = 3\n", "tool.neusight.cases.a.command is None"),
        ("[tool.neusight.cases.a]\ncommand = 'a.py'\ngpu = 'T4'\n", "unknown setting 'gpu'"),
        ("[tool.neusight.cases.a]\ncommand = 'a.py'\nhost = 3\n", "cases.a.host is 3"),
        ("""[tool.neusight.cases]\na = "it's"\n""", "No closing quotation"),
        ("[tool.neusight]\ntolerance = 1\n", r"\[tool.neusight.tolerance\] must be a table"),
    ],
)
def test_what_means_nothing_is_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        settings_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.neusight]\nx = " + "[" * 50_000, "is nested too deep"),
        ("[tool.neusight]\n" + "a." * 50_000 + "a = 1", "a name has more than 64 parts"),
        ("[tool.neusight" + ".a" * 100 + "]", "a name has more than 64 parts"),
        ("[tool.neusight]\nsteps = 0x" + "f" * 4000, "steps is a number of thousands of digits"),
        ("[tool.neusight]\ngpu = " + "9" * 5000, "is no TOML"),
        ("# neusight\n" + "#" * 2**20, "holds more than 1 MiB"),
    ],
    ids=range(6),
)
def test_settings_that_nobody_wrote_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        settings_of(tmp_path, text)

    assert "pyproject.toml" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_settings_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(OptionError, match=r"pyproject.toml cannot be read: Is a directory\.$"):
        read_settings(tmp_path)

    (tmp_path / "pyproject.toml").rmdir()
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=r"has no reader for pyproject\.toml: pip install tomli"):
        settings_of(tmp_path, ALL)


def test_a_case_may_be_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.neusight.cases]\n"
        'pipe = { command = "train.py", world_size = 8, gpus_per_node = 4, ranks = "0,3" }\n'
    )

    assert read_settings(tmp_path).cases["pipe"].stated == {
        "gpus_per_node": "4",
        "ranks": "0,3",
        "world_size": "8",
    }
