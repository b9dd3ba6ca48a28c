"""The example project under examples/ci: bad pull requests are caught at the right line."""

from __future__ import annotations

import json
import linecache
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.cli.main import main
from places import ROOT

PROJECT = ROOT / "examples" / "ci"
Check = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a baseline of today's tool."""
    folder = tmp_path_factory.mktemp("example") / "project"
    shutil.copytree(PROJECT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert main(["check", "--update"]) == 0
    forget_modules()
    return folder


def forget_modules() -> None:
    """The next check imports the project's modules again."""
    linecache.clearcache()
    for name in ("model", "train"):
        sys.modules.pop(name, None)


@pytest.fixture
def check(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Check:
    """Checks a copy of the project with a pull request applied, as GitHub would: the exit code,
    the case's JSON, all that was printed."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(pull_request: str = "") -> tuple[int, dict[str, Any], str]:
        if pull_request:
            patch = PROJECT / "pull_requests" / f"{pull_request}.patch"
            subprocess.run(["git", "apply", str(patch)], check=True)
        code = main(["check", "--json", "report.json"])
        forget_modules()
        [case] = json.loads((folder / "report.json").read_text())["cases"]
        return code, case, capsys.readouterr().out

    if shutil.which("git") is None:
        pytest.skip("git applies the pull requests")
    return run


def line_of(name: str, text: str) -> str:
    """ "file.py,line=12" of the one line with this text."""
    lines = Path(name).read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return f"::error file={name},line={number},"


def test_the_project_as_it_is_passes(check: Check) -> None:
    code, case, printed = check()

    assert code == 0
    assert case["result"] in ("ok", "better", "tool")
    assert "::error" not in printed


def test_a_needless_item_is_caught_at_its_line(check: Check) -> None:
    code, case, printed = check("needless_item")

    [wait] = case["new_synchronizations"]
    assert code == 1
    assert wait["code"] == 'print(f"loss {loss.item():.3f}")'
    assert wait["cost_us"] > 0
    assert line_of("train.py", "loss.item()") in printed


def test_a_wider_network_is_caught_at_the_line_that_makes_it(check: Check) -> None:
    code, case, printed = check("wider_hidden")

    slower = {cause["module"] for cause in case["time_causes"] if cause["amount"] > 0}
    assert code == 1
    assert {"GPT.blocks.[0-5].up", "GPT.blocks.[0-5].down"} <= slower
    assert line_of("model.py", "self.up = nn.Linear(WIDTH, 5 * WIDTH)") in printed


def test_dropped_checkpointing_is_caught_at_the_line_that_calls_the_blocks(check: Check) -> None:
    code, case, printed = check("no_checkpoint")

    worse = [change["name"] for change in case["changes"] if change["status"] == "worse"]
    assert code == 1
    assert "peak_memory_bytes" in worse
    assert "step_latency_us" not in worse
    assert line_of("model.py", "x = block(x)") in printed


def test_a_pure_refactoring_passes(check: Check) -> None:
    code, case, printed = check("refactoring")

    assert code == 0
    assert {change["status"] for change in case["changes"]} == {"same"}
    assert (case["time_causes"], case["memory_causes"]) == ([], [])
    assert "::error" not in printed


@pytest.mark.slow
def test_the_projects_own_tests_pass() -> None:
    plugin = "neusight.integrations.check.pytest_plugin"
    is_announced = any(found.value == plugin for found in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [] if is_announced else ["-p", plugin]

    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
