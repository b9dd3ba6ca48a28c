"""The doctor says what works here, what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import platform
import shutil
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from neusight.compatibility import torch_internals
from neusight.integrations.cli.commands import doctor
from neusight.integrations.cli.commands.doctor import Finding, examine, report
from neusight.integrations.cli.main import main
from neusight.integrations.program.guard import guarded_process, landlock
from neusight.integrations.program.guard.guarded_process import FILES_VARIABLE, why_no_view


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    """All but the names of torch, for which a new process loads all of it."""
    looks = {name: look for name, look in doctor._EXAMINATIONS.items() if name != "torch names"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "_EXAMINATIONS", looks)
        return {item.name: item for item in examine()}


def test_an_environment_that_runs_the_tests_can_forecast(findings: dict[str, Finding]) -> None:
    assert [item for item in findings.values() if item.state == "problem"] == []
    assert "passes as CUDA" in findings["torch"].text
    assert "GPUs known" in findings["predictor"].text
    assert findings["pytest"].state == "ok"


def test_the_repair_of_tensorboard_is_found(findings: dict[str, Finding]) -> None:
    assert findings["TensorBoard"].text.endswith("repaired for traces of today")


def test_it_says_what_guards_the_users_files(
    findings: dict[str, Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = why_no_view()
    text = findings["your files"].text
    assert text.startswith("guarded by the overlay" if refusal else "a copy-on-write view")
    assert refusal in text

    monkeypatch.setenv(FILES_VARIABLE, "overlay")
    monkeypatch.setattr(landlock, "landlock_abi", lambda: 0)
    found = doctor._EXAMINATIONS["your files"]("your files")

    assert (found.state, found.text) == (
        "absent",
        "guarded by the overlay alone: this kernel has no Landlock, or it is off (Linux 5.19 or "
        "later has what it takes); no copy-on-write view: NEUSIGHT_FILES says so",
    )


def test_without_supervision_it_says_what_is_missing_and_what_would_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not landlock.is_available():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setenv(FILES_VARIABLE, "overlay")
    monkeypatch.setattr(guarded_process, "why_unsupervised", lambda: "Invalid argument")

    found = doctor._EXAMINATIONS["your files"]("your files")

    assert found.state == "absent"
    assert found.text == (
        "guarded by the overlay alone: the kernel lets no process supervise another: Invalid "
        "argument; no copy-on-write view: NEUSIGHT_FILES says so"
    )
    assert "the capability SYS_ADMIN" in found.line.splitlines()[1]


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)

    found = doctor._EXAMINATIONS["Trainer"]("Trainer")

    assert (found.state, found.remedy) == ("absent", "pip install transformers accelerate")
    assert "transformers, accelerate not installed" in found.text


def test_another_package_of_the_same_name_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "packages_distributions",
        lambda: {"neusight": ["neusight-hooks", "NeuSight"]},
    )  # fmt: skip

    found = doctor._EXAMINATIONS["neusight"]("neusight")

    assert found.state == "problem"
    assert found.remedy.startswith("pip uninstall NeuSight")


def test_a_torch_that_fails_the_self_check_is_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = "neusight.predictors.errors.UnsupportedTorchError: no proven way; install torch 2.13"
    failed = subprocess.CompletedProcess([], 1, "", f"Traceback …\n{error}\n")
    monkeypatch.setattr(doctor, "_run_python", lambda program, **environment: failed)

    found = doctor._EXAMINATIONS["torch"]("torch")

    assert found.state == "problem"
    assert found.remedy == "UnsupportedTorchError: no proven way; install torch 2.13"
    assert report([found]).endswith("forecasts do not work here: torch")


@pytest.mark.parametrize(
    ("name", "module", "attribute", "value", "expected"),
    [
        ("platform", platform, "system", "Darwin", "problem, Darwin x86_64, Proven on Linux x86-6"),
        ("disk", shutil, "disk_usage", Mock(free=2**30 - 1), "problem, 1 GiB free in /"),
        ("disk", shutil, "disk_usage", Mock(free=2**30), "ok, 1 GiB free in /"),
        ("disk", shutil, "disk_usage", Mock(free=7 * 2**30), "ok, 7 GiB free in /"),
        ("torch", importlib.util, "find_spec", None, "problem, not installed, pip install torch="),
        ("GPU", shutil, "which", None, "absent, none; forecasts need none, only `neusight measur"),
        ("TensorBoard", importlib.metadata, "entry_points", (), "absent, tensorboard "),
    ],
)
def test_what_this_machine_lacks_is_a_finding(
    name: str, module: Any, attribute: str, value: object, expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, attribute, lambda *_, **__: value)

    found = doctor._EXAMINATIONS[name](name)

    assert f"{found.state}, {found.text}, {found.remedy}".startswith(expected)


def test_a_python_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))

    found = doctor._EXAMINATIONS["Python"]("Python")

    assert (found.state, found.text) == ("problem", platform.python_version())


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (("NVIDIA H100\nNVIDIA H100\n", "", 0), "ok, NVIDIA H100, NVIDIA H100 (hidden from for"),
        (("no driver\n", "", 9), "absent, nvidia-smi: no driver"),
        (("", "", 0), "absent, nvidia-smi: no word of why"),
    ],
)
def test_a_gpu_is_asked_for_its_name(
    done: tuple[str, str, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err, code = done
    said = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)

    found = doctor._EXAMINATIONS["GPU"]("GPU")

    assert f"{found.state}, {found.text}".startswith(expected)


def test_names_of_torch_that_cannot_be_looked_up_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ImportError: no\n")
    monkeypatch.setattr(doctor, "_run_python", lambda program, **environment: failed)

    found = doctor._EXAMINATIONS["torch names"]("torch names")

    assert found == Finding("torch names", "problem", "not looked up", "ImportError: no")


def test_names_of_torch_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with redirect_stdout(io.StringIO()) as out:
            exec(program, {})
        return subprocess.CompletedProcess([], 0, out.getvalue(), "")

    monkeypatch.setattr(doctor, "_run_python", run_here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch itself has deprecated
        found = doctor._EXAMINATIONS["torch names"]("torch names")

    count = len({row.name for row in torch_internals.table()})
    assert found.text == f"all {count} private names of torch that neusight uses found"


@pytest.mark.parametrize(("feature", "state"), [("opening", "problem"), ("compiling", "absent")])
def test_a_missing_name_of_torch_is_a_problem_where_no_forecast_opens_without_it(
    feature: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = subprocess.CompletedProcess([], 0, f"9\ntorch._C._x\t{feature}\tit is off\n", "")
    monkeypatch.setattr(doctor, "_run_python", lambda program, **environment: said)

    found = doctor._EXAMINATIONS["torch names"]("torch names")

    assert (found.state, found.remedy) == (state, f"torch._C._x ({feature}: it is off)")
    assert found.text == "1 of 9 private names of torch that neusight uses are missing"


def test_an_examination_that_fails_is_a_finding_itself() -> None:
    def look(name: str) -> Finding:
        raise OSError("disk gone")

    assert doctor._safely("disk", look) == Finding("disk", "problem", "OSError: disk gone")


def test_the_command_prints_and_writes_its_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("torch", "ok", "2.13.0")])

    assert main(["doctor", "--json", str(tmp_path / "d.json")]) == 0

    assert "ok  torch        2.13.0" in capsys.readouterr().out
    document = json.loads((tmp_path / "d.json").read_text())
    assert (document["schema_version"], document["findings"][0]["state"]) == (1, "ok")


def test_findings_that_cannot_be_written_are_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("torch", "ok", "2.13.0")])
    (tmp_path / "file").touch()

    assert main(["doctor", "--json", str(tmp_path / "file" / "d.json")]) == 2
    assert "d.json cannot be written: File exists" in capsys.readouterr().err


def test_a_problem_is_exit_code_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("torch", "problem", "none", "do so")])

    assert main(["doctor"]) == 1
    assert "!!  torch        none\n                   do so" in capsys.readouterr().out
