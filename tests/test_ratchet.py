"""The ratchet of groups: none gets worse behind a better total."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from places import ROOT


@pytest.fixture
def ratchet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """benchmarks/ratchet.py, with scores and a changelog of the test's own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("ratchet")
    monkeypatch.setattr(module, "STORED", tmp_path / "scores")
    monkeypatch.setattr(module, "CHANGELOG", tmp_path / "CHANGELOG.md")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")
    for name in ("read_scores", "write_scores"):
        monkeypatch.setattr(getattr(module, name), "__defaults__", (tmp_path / "scores",))
    return module


UPDATE = argparse.Namespace(update=True, table=False)


def test_a_group_is_of_one_gpu_dtype_layout_and_mode(ratchet: ModuleType) -> None:
    rows = [
        ratchet.Row("conv", "T4", "fp16", layout, mode, error)
        for layout, mode, error in (
            ("NHWC", "training", 0.1), ("NHWC", "training", -0.3), ("NCHW", "training", 0.2),
            ("NHWC", "inference", 0.4),
        )
    ]  # fmt: skip

    found = ratchet.scores(rows)

    assert list(found) == [
        "conv | T4 | fp16 | NCHW | training",
        "conv | T4 | fp16 | NHWC | inference",
        "conv | T4 | fp16 | NHWC | training",
    ]
    assert found["conv | T4 | fp16 | NHWC | training"] == ratchet.Score(2, 0.2, -0.1)


def test_a_better_total_does_not_hide_a_worse_group(
    ratchet: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(first: float, second: float) -> list[object]:
        return [ratchet.Row("conv", gpu, error=error)
                for gpu, error in (("T4", first), ("L4", second)) for _ in range(8)]  # fmt: skip

    assert ratchet.judged("a", rows(0.30, 0.10), UPDATE) == 0
    assert ratchet.judged("a", rows(0.05, 0.12), UPDATE) == 1

    assert "worse: conv | L4: 10.0% -> 12.0% (no reason in CHANGELOG.md)" in capsys.readouterr().out
    assert ratchet.read_scores("a")["conv | L4"].median == 0.10


def test_the_changelog_may_say_why_a_group_is_worse(ratchet: ModuleType) -> None:
    rows = [ratchet.Row("conv", "L4", error=0.1)] * 8
    ratchet.judged("a", rows, UPDATE)
    ratchet.CHANGELOG.write_text(
        f"# Changelog\n\n{ratchet.HEADING}\n\n- `conv | L4`, `conv | T4`: priced too fast before,\n"
        "  which hid something.\n\n## Before\n\n- `other`: not of this\n",
        encoding="utf-8",
    )

    worse = [ratchet.Row("conv", "L4", error=0.2)] * 8

    assert ratchet.judged("a", worse, UPDATE) == 0
    assert ratchet.read_scores("a")["conv | L4"].median == 0.2
    reasons = ratchet.explained(ratchet.CHANGELOG.read_text(encoding="utf-8"))
    assert set(reasons) == {"conv | L4", "conv | T4"}
    assert reasons["conv | L4"].endswith("priced too fast before, which hid something.")


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ((8, 0.10), (8, 0.11), False),
        ((8, 0.10), (8, 0.111), True),
        ((8, 0.005), (8, 0.0068), False),  # a rounding
        ((7, 0.10), (7, 0.50), False),  # too few rows
        ((8, 0.10), (7, 0.10), True),  # a row is no longer scored
        ((8, 0.10), None, True),
    ],
)
def test_what_is_worse(
    ratchet: ModuleType,
    before: tuple[int, float],
    now: tuple[int, float] | None,
    is_worse: bool,
) -> None:
    def score(figures: tuple[int, float] | None) -> dict[str, object]:
        return {} if figures is None else {"a": ratchet.Score(*figures, 0.0)}

    assert bool(ratchet.worse(score(now), score(before))) is is_worse


def test_stored_scores_are_read_back_and_lie_a_line_a_group(ratchet: ModuleType) -> None:
    scores = {"a | b": ratchet.Score(8, 0.1, -0.1, 0.8), "c": ratchet.Score(9, 0.2, 0.1)}

    ratchet.write_scores("x", scores)

    assert ratchet.read_scores("x") == scores
    assert len((ratchet.STORED / "x.json").read_text(encoding="utf-8").splitlines()) == 4


def test_a_history_has_each_group_beside_its_first_score(
    ratchet: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = {"old | T4": ratchet.Score(9, 0.1, -0.05), "new | T4": ratchet.Score(8, 0.2, 0.2, 0.75)}
    ratchet.write_scores("programs", now)
    first = json.dumps({"old | T4": {"rows": 8, "median": 0.3, "bias": 0.3}})
    monkeypatch.setattr(ratchet, "SOURCES", {"programs": "programs"})
    monkeypatch.setattr(
        ratchet, "_git", lambda verb, *_: "later\nearliest\n" if verb == "log" else first
    )

    ratchet.write_history(tmp_path / "groups.csv")

    assert (tmp_path / "groups.csv").read_text(encoding="utf-8").splitlines() == [
        "source,group,rows,median,bias,in_80,first_rows,first_median,first_bias",
        "programs,new | T4,8,0.2,0.2,0.75,,,",
        "programs,old | T4,9,0.1,-0.05,,8,0.3,0.3",
    ]


def test_every_source_has_a_module_and_stored_scores(ratchet: ModuleType) -> None:
    for source, module in ratchet.SOURCES.items():
        assert (ROOT / "benchmarks" / f"{module}.py").exists()
        path = ROOT / "benchmarks" / "group_scores" / f"{source}.json"
        assert json.loads(path.read_text(encoding="utf-8"))
