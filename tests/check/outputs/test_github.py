"""Notes at lines of a pull request, safe whatever names hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from check_results import BEFORE, project, regression, slower
from neusight.integrations.check.baseline import CompileRow
from neusight.integrations.check.causes import Cause
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import Observation
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


def test_a_graph_break_is_reported_at_its_line(tmp_path: Path) -> None:
    row = CompileRow("graph break", "Failed to trace builtin operator: print", "loss.item()", 1)
    before = replace(BEFORE, metrics={**BEFORE.metrics, "num_graph_breaks": 0, "num_recompiles": 0})
    now = replace(before, metrics={**before.metrics, "num_graph_breaks": 1}, compiling=(row,))
    seen = Observation(now, {}, {}, {}, {}, stops={row[:3]: "train.py:1"})
    result = CaseResult("train", "regression", judge("train", before, seen), now)

    [note] = github_annotations([result], project(tmp_path), tmp_path)

    assert note.startswith("::error file=train.py,line=1,title=neusight%3A train::")
    assert "new graph break: Failed to trace builtin operator: print (graph breaks 0 → 1)" in note


def test_other_prices_are_a_notice_and_ten_findings_are_shown(folder: Path) -> None:
    judgement = replace(judge("t", BEFORE, slower()), tool_changes=("torch 2.12 → 2.13",))
    lines = github_annotations([CaseResult("t", "tool", judgement, BEFORE)], folder, folder)

    assert lines == [
        "::notice title=neusight%3A t::ok, but the tool changed and moved the figures (--update): "
        "torch 2.12 → 2.13"
    ]
    assert len(github_annotations([CaseResult("t", "failed")] * 12, folder, folder)) == 10
    assert github_annotations([CaseResult("t", "ok", judgement, BEFORE)], folder, folder) == []


def test_the_modules_that_grew_most_are_named_at_the_line_that_made_the_innermost(
    folder: Path,
) -> None:
    def cause(module: str, amount: float, made: tuple[str, ...] = ()) -> Cause:
        return Cause(module, "forward", "mm", "a", "b", amount, 0.0, 1, ("train.py:1",), made)

    judgement = replace(
        judge("t", BEFORE, slower()),
        new_waits=(),
        memory_causes=(),
        time_causes=(
            cause("Net", 9.0, ("train.py:1",)), cause("Net.b", 8.0, ("model.py:1",)),
            cause("Net.a", 4.0, ("model.py:2",)), cause("Net.a", 3.0, ("model.py:2",)),
            cause("Net.c", 1.0), cause("Net.d", -5.0), cause("", 99.0),
        ),
    )  # fmt: skip

    [line] = github_annotations([CaseResult("t", "regression", judgement)], folder, folder)

    assert line.startswith(
        "::error file=model.py,line=1,title=neusight%3A t::+25 µs in Net, Net.a, "
    )
    assert "Net.b (step latency 1 ms → 1.5 ms" in line
