"""A baseline: the same after a round trip, refused with reasons when damaged, never cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from check_results import CASE
from neusight.integrations.check import baseline
from neusight.integrations.check.baseline import (
    Case,
    CompileRow,
    OperatorTimeRow,
    OpRow,
    baseline_text,
    figures_text,
    folded,
    read_baseline,
    unfolded,
    update_baseline,
)
from neusight.integrations.check.figures.metrics import METRICS
from neusight.predictors.errors import BaselineError


def written(path: Path, **cases: Case) -> Path:
    path.write_text(baseline_text(cases), encoding="utf-8")
    return path


# -- as text


def test_a_round_trip_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "b.json", first=CASE, second=replace(CASE, program=()))

    cases = read_baseline(path)

    assert isinstance(cases["first"].metrics["num_kernels"], int)
    assert set(cases["first"].ops) == set(CASE.ops)
    assert cases["first"] == replace(CASE, ops=cases["first"].ops, memory=cases["first"].memory)
    assert baseline_text(cases) == path.read_text(encoding="utf-8")


def test_what_was_compiled_is_kept_only_where_something_was(tmp_path: Path) -> None:
    stop = CompileRow("graph break", "Failed to trace builtin operator: print", 'print("a")', 1)
    figures = {"num_graph_breaks": 1, "num_recompiles": 0, "num_graphs": 2, "num_fused_kernels": 9}
    case = replace(CASE, metrics={**CASE.metrics, **figures}, compiling=(stop,))

    path = written(tmp_path / "b.json", compiled=case, eager=CASE)
    found = read_baseline(path)

    assert found["compiled"].compiling == (stop,)
    assert found["compiled"].metrics == case.metrics
    assert (found["eager"].is_compiled, found["eager"].compiling) == (False, ())
    assert "compiling" not in baseline_text({"eager": CASE})
    assert "num_graph" not in baseline_text({"eager": CASE})


def test_operators_are_kept_where_somebody_wanted_them(tmp_path: Path) -> None:
    case = replace(CASE, operators=(OperatorTimeRow("aten::linear", 12, 1200),))

    found = read_baseline(written(tmp_path / "b.json", kept=case, plain=CASE))

    assert (found["kept"].operators, found["plain"].operators) == (case.operators, ())
    assert "operators" not in baseline_text({"plain": CASE})


def test_equal_layers_are_one_line_and_cases_are_sorted() -> None:
    text = baseline_text({"b": CASE, "a": CASE})

    assert text.count("gemm 8x8x8 bf16") == 2
    assert '"Net.blocks.[0-11].up"' in text
    assert text.index('"a": {') < text.index('"b": {')
    assert max(len(line) for line in text.splitlines()) < 120


def test_each_figure_has_a_line_to_review() -> None:
    lines = figures_text(CASE).splitlines()

    assert '    "step_latency_us": 1234.5,' in lines
    assert '    "gpu_busy_us": 1000,' in lines
    assert [line.split('"')[1] for line in lines[1:-1]] == [metric.name for metric in METRICS]


parts = st.one_of(st.integers(0, 30).map(str), st.sampled_from(["up", "x-1", "007", "[", "mlp"]))
paths = st.lists(parts, min_size=1, max_size=4).map(".".join)


@settings(max_examples=200)
@given(modules=st.sets(paths, max_size=30))
def test_folding_loses_nothing(modules: set[str]) -> None:
    lines = folded(modules)

    found = [module for line in lines for module in unfolded(line)]
    assert sorted(found) == sorted(modules)
    assert len(lines) <= len(modules)


def test_folding_joins_layers_within_layers() -> None:
    modules = [f"N.{block}.experts.{expert}" for block in range(3) for expert in (0, 1, 5)]

    assert folded(modules) == ["N.[0-2].experts.[0-1,5]"]


@pytest.mark.parametrize(
    "text", ["N.[0-999999999]", "N.[0-9999].[0-9999]", "N.[0-100000]", "N.[0-99999,7]"]
)
def test_a_row_may_not_stand_for_millions_of_modules(text: str) -> None:
    with pytest.raises(BaselineError, match="stands for more than 100000 modules"):
        unfolded(text)


def test_a_row_may_stand_for_a_hundred_thousand_modules() -> None:
    assert len(unfolded("N.[0-99999]")) == len(unfolded("N.[0-9].[0-9999]")) == 100_000


def test_numbers_of_eighteen_digits_are_numbers_and_longer_ones_are_names() -> None:
    longest = [f"N.{10**17 + n}" for n in range(2)]
    names = [f"N.{10**18 + n}" for n in range(2)]

    assert folded(longest) == [f"N.[{10**17}-{10**17 + 1}]"]
    assert unfolded(folded(longest)[0]) == longest
    assert folded(names) == names
    with pytest.raises(BaselineError, match="too many digits"):
        unfolded(f"N.[1-{10**18}]")


def test_modules_are_sorted_by_their_numbers_before_their_names() -> None:
    assert folded(["N.b10", "N.b2", "N.a", "N.b", "M.2.a", "M.10.b"]) == [
        "M.2.a", "M.10.b", "N.a", "N.b", "N.b2", "N.b10",
    ]  # fmt: skip


def test_rows_that_do_not_give_the_figures_are_noticed() -> None:
    assert CASE.adds_up
    assert not replace(CASE, metrics={**CASE.metrics, "num_kernels": 13}).adds_up


# -- what is no baseline


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[]", "is not a baseline"),
        ('{"cases": {}}', "is not a baseline"),
        ('{"schema_version": 99, "cases": {}}', "schema version 99, this neusight reads 1"),
        ('{"schema_version": 1, "cases": []}', "'cases' is .*; it must be an object"),
        ('{"schema_version": 1, "cases": {"a": 3}}', "'cases.a' is 3; it must be an object"),
        ('{"schema_version": 1, "cases": {"a": {}}}', "'cases.a.gpu' is missing"),
        ('{"schema_version": 1, "cases": {}, "cases": {}}', "'cases' is there twice"),
        ('{"schema_version": NaN, "cases": {}}', "NaN is no figure"),
        ("<<<<<<< ours\n{}\n>>>>>>> theirs\n", "conflict markers"),
        ("[" * 100_000, "nested more than 64 deep"),
    ],
)
def test_what_is_no_baseline_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)

    with pytest.raises(BaselineError, match=words):
        read_baseline(tmp_path / "b.json")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(BaselineError, match="cannot be read"):
        read_baseline(tmp_path / "b.json")


def test_a_missing_baseline_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"There is no baseline .*--update"):
        read_baseline(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("gpu",), 3, "gpu' is 3; it must be a text"),
        (("program",), "train.py", "program' is 'train.py'; it must be a list"),
        (("settings",), [], "settings' is .*; it must be an object"),
        (("metrics",), 3, "metrics' is 3; it must be an object"),
        (("metrics", "flops"), "many", "flops' is 'many'; it must be a number"),
        (("metrics", "flops"), -1, "flops' is -1"),
        (("metrics", "flops"), True, "flops' is True"),
        (("ops",), {}, "ops' is .*; it must be a list"),
        (("ops", 0), ["Net"], r"ops\[0\]' is .*; it must be .module, phase, op"),
        (("ops", 0, 5), 1.5, r"ops\[0\]"),
        (("memory", 0, 0), 7, r"memory\[0\]"),
        (("waits", 0), "item", r"waits\[0\]"),
        (("extra",), 1, "extra' is 1; it must be left out"),
    ],
)
def test_a_slip_of_the_hand_is_named(
    place: tuple[Any, ...], value: object, words: str, tmp_path: Path
) -> None:
    document = json.loads(baseline_text({"small": CASE}))
    target = document["cases"]["small"]
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    (tmp_path / "b.json").write_text(json.dumps(document))

    with pytest.raises(BaselineError, match=f"cases.small.*{words}"):
        read_baseline(tmp_path / "b.json")


def test_a_figure_that_is_missing_is_named(tmp_path: Path) -> None:
    document = json.loads(baseline_text({"small": CASE}))
    del document["cases"]["small"]["metrics"]["flops"]
    (tmp_path / "b.json").write_text(json.dumps(document))

    with pytest.raises(BaselineError, match="flops' is missing"):
        read_baseline(tmp_path / "b.json")


# -- writing


def test_an_update_keeps_the_other_cases(tmp_path: Path) -> None:
    path = written(tmp_path / "b.json", first=CASE)

    changed = update_baseline(path, lambda cases: {**cases, "second": CASE})

    assert changed
    assert sorted(read_baseline(path)) == ["first", "second"]


def test_an_update_that_changes_nothing_does_not_touch_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "b.json", first=CASE)
    before = path.stat().st_mtime_ns

    assert not update_baseline(path, lambda cases: cases)
    assert path.stat().st_mtime_ns == before


def test_a_damaged_baseline_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text("{")

    with pytest.raises(BaselineError):
        update_baseline(path, lambda cases: {"first": CASE})

    assert path.read_text() == "{"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BaselineError, match="cannot be written: File exists"):
        update_baseline(tmp_path / "file" / "b.json", lambda cases: {"first": CASE})


def test_an_update_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    path = written(tmp_path / "b.json", first=CASE)
    (tmp_path / "link.json").symlink_to(path)

    update_baseline(tmp_path / "link.json", lambda cases: {**cases, "second": CASE})

    assert (tmp_path / "link.json").is_symlink()
    assert sorted(read_baseline(path)) == ["first", "second"]


ADD_CASE = """
import sys
from dataclasses import replace
from pathlib import Path
from neusight.integrations.check.baseline import read_baseline, update_baseline
path, name = Path(sys.argv[1]), sys.argv[2]
case = read_baseline(path)["first"]
update_baseline(path, lambda cases: {**cases, name: case})
"""


def test_runs_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "b.json", first=CASE)
    names = [f"case {number}" for number in range(6)]
    command = [sys.executable, "-c", ADD_CASE, str(path)]

    runs = [subprocess.Popen([*command, name]) for name in names]

    assert [run.wait() for run in runs] == [0] * len(names)
    assert sorted(read_baseline(path)) == sorted(["first", *names])
    assert [item.name for item in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    "module",
    ["Net.[0-99999999999999999999]", "Net.[" + "9" * 5000 + "]", "[" + "0-99999," * 20 + "0-1]"],
    ids=range(3),
)
def test_a_row_that_stands_for_too_many_modules_is_named(module: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    row = OpRow(module, "forward", "aten::addmm", "gemm", "ab", 1, 1, 100, 50)
    path.write_text(baseline_text({"small": replace(CASE, ops=(row,))}))

    with pytest.raises(BaselineError, match=r"b\.json, 'small'.*(modules|digits)"):
        read_baseline(path)


def test_rows_that_stand_for_too_many_modules_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "neusight.json"
    path.write_text(baseline_text({"a": CASE}))
    monkeypatch.setattr(baseline, "_MOST_ROWS", 11)

    with pytest.raises(BaselineError, match="'a': the rows stand for more than 11 modules"):
        read_baseline(path)
    with pytest.raises(BaselineError, match=f"{tmp_path.name} cannot be read: Is a directory"):
        read_baseline(tmp_path)


def test_a_module_whose_number_has_thousands_of_digits_is_a_name(tmp_path: Path) -> None:
    row = OpRow("Net." + "9" * 5000, "forward", "aten::addmm", "gemm", "ab", 1, 1, 100, 50)
    path = written(tmp_path / "b.json", small=replace(CASE, ops=(row,)))

    assert read_baseline(path)["small"].ops == (row,)
