"""The GitHub Action and the pre-commit hook: their commands run, and nothing in them leaks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.cli.main import main
from places import ROOT

yaml: Any = pytest.importorskip("yaml", reason="PyYAML reads the files")

EXAMPLE = ROOT / "examples" / "ci"


def steps_of_the_action() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert document["runs"]["using"] == "composite"
    return list(document["runs"]["steps"])


def test_no_input_becomes_part_of_a_script_and_no_secret_is_asked_for() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")

    assert all("${{" not in step["run"] for step in steps_of_the_action())
    assert "secrets" not in re.sub(r"#.*|description:.*", "", text)
    assert "github.token" not in text


def test_the_check_step_runs_neusight_with_the_words_of_its_input(tmp_path: Path) -> None:
    script = steps_of_the_action()[-1]["run"]
    arguments = """--gpu H100 --case "a case" --baseline '$(touch hit).json' train.py"""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "NEUSIGHT_ARGUMENTS": arguments,
                   "PATH": f"{folder}:{os.environ['PATH']}"}  # fmt: skip

    (tmp_path / "train.py").write_text("print('runs')")

    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "There is no baseline $(touch hit).json" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_hook_names_a_command_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *words = shlex.split(hook["entry"])

    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])

    assert program == "neusight"
    assert ended.value.code == 0
    assert "usage: neusight check" in capsys.readouterr().out


def test_the_examples_use_what_is_offered() -> None:
    text = (EXAMPLE / ".github" / "workflows" / "performance.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    hooks = yaml.safe_load((EXAMPLE / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    offered = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]

    [step] = [step for step in workflow["jobs"]["forecast"]["steps"] if "with" in step]
    assert set(step["with"]) <= set(offered)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    assert "secrets." not in text
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    del hook["description"]
    assert hooks["repos"] == [{"repo": "local", "hooks": [hook]}]
    assert step["uses"].startswith("./")
