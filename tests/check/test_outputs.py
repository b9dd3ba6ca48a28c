"""Reports of a check: complete, the same in every form, and safe whatever names hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from neusight.integrations.check.baseline import METRICS, Case, MemoryRow, OpRow, WaitRow
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import Observation, Wait
from neusight.integrations.check.outputs import (
    amount_text,
    benchmark_json,
    code_text,
    explanation,
    github_annotations,
    junit_xml,
    markdown,
    report_json,
    words_of,
)
from neusight.integrations.check.result import CaseResult

BEFORE = Case(
    gpu="H100-SXM5-80GB",
    program=("train.py",),
    settings={},
    metrics={
        "step_latency_us": 1000.0,
        "gpu_busy_us": 900.0,
        "peak_memory_bytes": 2**30,
        "peak_reserved_bytes": 2**30,
        "num_kernels": 2,
        "num_synchronizations": 0,
        "flops": 10**12,
        "communication_bytes": 0,
    },
    bound="compute",
    tool={"neusight": "0.1.0", "torch": "2.13.0"},
    work="a",
    files="b",
    peak="aten::mm in Net",
    ops=(
        OpRow("Net.0", "forward", "aten::addmm", "gemm 8x8x8 bf16", "1", 1, 1, 450_000, 10_000),
        OpRow("Net.1", "forward", "aten::addmm", "gemm 8x8x8 bf16", "1", 1, 1, 450_000, 10_000),
    ),
    memory=(MemoryRow("Net.0", "forward", "activation", "aten::addmm", 1, 2**30),),
    waits=(),
)
CODE = "loss.item()  # 100%, `a|b` <x>"


def slower(module: str = "Net.0", code: str = CODE) -> Observation:
    """One GEMM twice as wide, a GiB more, a wait."""
    ops = (
        OpRow(module, "forward", "aten::addmm", "gemm 8x16x8 bf16", "2", 1, 1, 900_000, 10_000),
        BEFORE.ops[1],
    )
    case = replace(
        BEFORE,
        metrics={
            **BEFORE.metrics,
            "step_latency_us": 1500.0,
            "gpu_busy_us": 1350.0,
            "peak_memory_bytes": 2**31,
            "num_synchronizations": 1,
        },
        work="c",
        files="d",
        ops=ops,
        memory=(MemoryRow(module, "forward", "activation", "aten::addmm", 1, 2**31),),
        waits=(WaitRow("item", code, 1),),
    )
    stack = ("model.py:2", "train.py:1")
    return Observation(
        case,
        op_stacks={(module, "forward", "aten::addmm", "gemm 8x16x8 bf16", "2"): (stack,)},
        memory_stacks={(module, "forward", "activation", "aten::addmm"): stack},
        waits={("item", code): Wait(("train.py:1",), 40.0)},
        made={module: ("model.py:1",)},
        unmapped=("my::op",),
    )


def regression(name: str = "train", seen: Observation | None = None) -> CaseResult:
    found = seen or slower()
    judgement = judge(name, BEFORE, found)
    assert judgement.is_regression
    return CaseResult(name, "regression", judgement, found.case)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("loss.item()\n")
    (tmp_path / "model.py").write_text("self.up = nn.Linear(8, 16)\nself.up(x)\n")
    return tmp_path


# -- amounts


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12.3456, "us", "12.35 µs"),
        (-2500.0, "us", "-2.5 ms"),
        (3e6, "us", "3 s"),
        (512, "bytes", "512 B"),
        (3 * 2**29, "bytes", "1.50 GiB"),
        (2.5e12, "flops", "2.5 TFLOP"),
        (1234, "", "1,234"),
    ],
)
def test_amounts_read_as_people_write_them(value: float, unit: str, text: str) -> None:
    assert amount_text(value, unit) == text


# -- the terminal


def test_an_unchanged_case_is_one_line(folder: Path) -> None:
    seen = replace(slower(), case=BEFORE)
    result = CaseResult("train", "ok", judge("train", BEFORE, seen), BEFORE)

    text = words_of(result, folder)

    assert text == "train: ok, same as the baseline, 1 ms a step, 1.00 GiB at the peak"


def test_a_regression_says_what_by_how_much_and_where(folder: Path) -> None:
    text = words_of(regression(), folder)

    assert text.startswith("train: REGRESSION, 1.5 ms a step, 2.00 GiB at the peak")
    for words in (
        "step latency 1 ms 1.5 ms +50.00% 0.5 % WORSE",
        "+450 µs Net.0: aten::addmm (gemm 8x8x8 bf16 → gemm 8x16x8 bf16)",
        "model.py:2 self.up(x)",
        "made at model.py:1 self.up = nn.Linear(8, 16)",
        "+1.00 GiB Net.0: aten::addmm (activation)",
        "new synchronization (item, 1 a step): the step is 40 µs longer for it",
        "train.py:1 loss.item()",
        "new kernels: 1 x gemm 8x16x8 bf16",
        "note: priced by bytes over bandwidth, as fallback: my::op",
    ):
        assert words in " ".join(text.split())


def test_quietly_every_case_is_one_line(folder: Path) -> None:
    assert "\n" not in words_of(regression(), folder, quiet=True)


def test_a_failure_says_why(folder: Path) -> None:
    text = words_of(CaseResult("train", "failed", failure="ValueError: no"), folder)

    assert text == "train: FAILED: ValueError: no"


def test_a_place_without_a_file_is_named_without_code(tmp_path: Path) -> None:
    judgement = regression().judgement
    assert judgement is not None

    assert any(line.strip() == "model.py:2" for line in explanation(judgement, tmp_path))


# -- Markdown


def test_markdown_has_a_row_for_each_case_and_a_section_for_each_story(folder: Path) -> None:
    text = markdown([regression(), CaseResult("other", "new", case=BEFORE)], folder)

    assert "| `train` | REGRESSION | 1.5 ms (+50.00%) | 2.00 GiB (+100.00%) |" in text
    assert "| `other` | NO BASELINE (--update writes it) | 1 ms | 1.00 GiB |" in text
    assert text.count("\n### ") == 1


def test_names_cannot_break_out_of_markdown(folder: Path) -> None:
    name = "a|b `c` <img src=x> \n| x |"
    code = "```\n</details><script>"

    text = markdown([regression(name, slower("Net`|0", code))], folder)

    row = next(line for line in text.splitlines() if "REGRESSION" in line)
    assert row.replace("\\|", "").count("|") == 5
    assert "`` a\\|b `c` <img src=x> \\| x \\| ``" in row
    fences = [line for line in text.splitlines() if set(line.removesuffix("text")) == {"`"}]
    assert len(fences) == 2
    assert fences[0].removesuffix("text") == fences[1]


def test_code_in_backticks_has_longer_ones_around_it() -> None:
    assert code_text("a``b") == "``` a``b ```"


# -- GitHub


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


# -- machines


def test_the_json_holds_everything() -> None:
    document = report_json([regression(), CaseResult("t", "failed", failure="it broke")])

    first, second = json.loads(json.dumps(document))["cases"]
    assert document["exit_code"] == 3
    assert first["result"] == "regression"
    assert first["time_causes"][0]["module"] == "Net.0"
    assert first["memory_causes"][0]["amount"] == 2**30
    assert first["new_synchronizations"][0]["cost_us"] == 40.0
    assert [change["name"] for change in first["changes"]] == [metric.name for metric in METRICS]
    assert second["failure"] == "it broke"


def test_figures_for_github_action_benchmark_have_its_keys() -> None:
    rows = benchmark_json([regression(), CaseResult("gone", "removed", case=BEFORE)])

    assert len(rows) == len(METRICS)
    assert all(set(row) == {"name", "unit", "value", "range", "extra"} for row in rows)
    assert (rows[0]["name"], rows[0]["unit"], rows[0]["value"]) == (
        "train: step latency",
        "us",
        1500.0,
    )


def test_junit_tells_failures_from_errors() -> None:
    name = "a<b>&\"'\x00\ud800"
    results = [
        regression(name),
        CaseResult("t", "failed", failure="it broke"),
        CaseResult("new", "new", case=BEFORE),
        CaseResult("fine", "updated", case=BEFORE),
    ]

    suite = ElementTree.fromstring(junit_xml(results))

    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "2")
    first, second, _, last = suite.findall("testcase")
    assert first.get("name") == "a<b>&\"'??"
    failure, error = first.find("failure"), second.find("error")
    assert failure is not None and "gemm 8x16x8 bf16" in str(failure.text)
    assert error is not None and error.get("message") == "it broke"
    assert [child.tag for child in last] == ["properties"]
