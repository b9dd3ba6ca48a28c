"""Public scripts are listed, given their data, run and judged."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from places import ROOT


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/covered/scripts.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("covered.scripts")


def test_scripts_are_called_by_different_names_and_say_where_they_come_from(
    scripts: ModuleType,
) -> None:
    listed = scripts.SCRIPTS

    assert len({script.name for script in listed}) == len(listed)
    assert all(script.source.address and script.source.version for script in listed)


def test_a_script_that_is_not_there_is_skipped_with_where_it_is_to_be_had(
    scripts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(scripts.PROGRAMS_VARIABLE, str(tmp_path))
    script = next(script for script in scripts.SCRIPTS if script.name == "nanoGPT/train")

    with pytest.raises(scripts.CannotTry, match=r"nanoGPT \(github.com/karpathy/nanoGPT\)"):
        scripts.tried(script)


def test_a_script_without_its_package_is_skipped(scripts: ModuleType) -> None:
    script = scripts.Script("own", scripts.SCRIPTS[0].source, "own.py", needs=("no_such_module",))

    with pytest.raises(scripts.CannotTry, match="needs the package no_such_module"):
        scripts.tried(script)


@pytest.mark.parametrize(
    ("limit", "code", "stated", "num_kernels", "status"),
    [
        ("", 0, "fits", 3, "ok"),
        ("", 0, "fits", 0, "failed"),
        ("", 3, "KeyError: 'x'", 3, "failed"),
        ("init_rpc", 3, "torch.distributed.rpc.init_rpc calls others", 0, "refused"),
        ("init_rpc", 3, "KeyError: 'x'", 0, "failed"),
        ("init_rpc", 0, "init_rpc", 3, "failed"),
    ],
)
def test_a_script_is_judged_by_its_exit_its_kernels_and_the_limit_that_it_is_to_meet(
    scripts: ModuleType,
    tmp_path: Path,
    limit: str,
    code: int,
    stated: str,
    num_kernels: int,
    status: str,
) -> None:
    figures = tmp_path / "forecast.json"
    figures.write_text(json.dumps({"num_kernels": num_kernels}))
    script = scripts.Script("own", scripts.SCRIPTS[0].source, "own.py", limit=limit)

    assert scripts.judged(script, code, stated, figures, "1.0").status == status


def test_a_traceback_of_ours_is_a_failure_and_one_that_a_package_logs_is_none(
    scripts: ModuleType, tmp_path: Path
) -> None:
    figures = tmp_path / "forecast.json"
    figures.write_text(json.dumps({"num_kernels": 1}))
    script = scripts.Script("own", scripts.SCRIPTS[0].source, "own.py")
    theirs = 'Traceback (most recent call last):\n  File "/site/other.py", line 1'
    ours = f'Traceback (most recent call last):\n  File "{scripts._own_folders()[0]}/forecast.py"'

    found = [scripts.judged(script, 0, stated, figures, "").status for stated in (theirs, ours)]

    assert found == ["ok", "failed"]


def test_a_script_runs_beside_its_data(
    scripts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "own"
    program.mkdir()
    (program / "COMMIT").write_text("0123456789abcdef\n")
    (program / "train.py").write_text("assert open('words.txt').read()")
    monkeypatch.setenv(scripts.PROGRAMS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(
        scripts, "command", lambda script, figures: [sys.executable, *script.command.split()]
    )
    monkeypatch.setattr(
        scripts, "judged", lambda script, code, stated, *rest: (code, stated, rest[1])
    )
    source = type(scripts.SCRIPTS[0].source)("own", "example.org/own", "0123456")
    text = partial(importlib.import_module("covered.script_data").text, path="words.txt")

    found = scripts.tried(scripts.Script("own", source, "train.py", data=(text,)))

    assert found == (0, "", "example.org/own 0123456")
    assert not (program / "words.txt").exists()


def test_digits_are_in_the_format_of_mnist(scripts: ModuleType, tmp_path: Path) -> None:
    importlib.import_module("covered.script_data").digits(tmp_path, "data", num_train=5)

    raw = tmp_path / "data" / "MNIST" / "raw"
    found = (raw / "train-images-idx3-ubyte").read_bytes()

    assert len(found) == 16 + 5 * 28 * 28
    assert [int.from_bytes(found[i : i + 4], "big") for i in (0, 4, 8, 12)] == [0x803, 5, 28, 28]
    shutil.rmtree(raw)
