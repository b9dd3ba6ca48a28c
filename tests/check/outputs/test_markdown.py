"""Markdown for a pull request, safe whatever names hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_results import BEFORE, project, regression, slower
from neusight.integrations.check.outputs.markdown import code_text, markdown_report
from neusight.integrations.check.result import CaseResult


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_markdown_has_a_row_for_each_case_and_a_section_for_each_story(folder: Path) -> None:
    text = markdown_report([regression(), CaseResult("other", "new", case=BEFORE)], folder)

    assert "| `train` | REGRESSION | 1.5 ms (+50.00%) |  | 2.00 GiB (+100.00%) |" in text
    assert "| `other` | NO BASELINE (--update writes it) | 1 ms |  | 1.00 GiB |" in text
    assert text.count("\n### ") == 1


def test_names_cannot_break_out_of_markdown(folder: Path) -> None:
    name = "a|b `c` <img src=x> \n| x |"
    code = "```\n</details><script>"

    text = markdown_report([regression(name, slower("Net`|0", code))], folder)

    row = next(line for line in text.splitlines() if "REGRESSION" in line)
    assert row.replace("\\|", "").count("|") == 6
    assert "`` a\\|b `c` <img src=x> \\| x \\| ``" in row
    fences = [line for line in text.splitlines() if set(line.removesuffix("text")) == {"`"}]
    assert len(fences) == 2
    assert fences[0].removesuffix("text") == fences[1]


def test_code_in_backticks_has_longer_ones_around_it() -> None:
    assert code_text("a``b") == "``` a``b ```"
