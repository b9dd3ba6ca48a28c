"""Notes at lines of a pull request, safe whatever names hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_results import project, regression
from neusight.integrations.check.outputs.github import github_annotations
from neusight.integrations.check.result import CaseResult


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_findings_are_annotated_at_their_lines(folder: Path) -> None:
    lines = github_annotations([regression()], folder, folder.parent)

    places = [line.partition(",title=")[0] for line in lines]
    assert places == [
        f"::error file={folder.name}/train.py,line=1",
        f"::error file={folder.name}/model.py,line=1",
    ]
    assert "title=neusight%3A train::waits for the GPU: 40 µs a step" in lines[0]


def test_names_cannot_break_out_of_annotations(folder: Path) -> None:
    [*lines] = github_annotations([regression("a::b,c\n::error::x%")], folder, folder)

    assert all("\n" not in line and line.count("::error") == 1 for line in lines)
    assert "title=neusight%3A a%3A%3Ab%2Cc%0A%3A%3Aerror%3A%3Ax%25::" in lines[0]


def test_a_script_that_failed_is_annotated_as_such(folder: Path) -> None:
    [line] = github_annotations([CaseResult("t", "failed", failure="it broke")], folder, folder)

    assert line == "::error title=neusight%3A t::FAILED it broke"
