"""What was tried under forecasts: how it is run and kept, and that the document says the same."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from places import ROOT

BENCHMARKS = ROOT / "benchmarks"

#: A process that serves four cases: one ends it, one hangs.
SERVED = f"""
import os, sys, threading
sys.path.insert(0, {str(BENCHMARKS)!r})
from covered.cases import Case, Outcome
from covered.workers import serve
serve(iter([
    Case("good", lambda: print("words") or Outcome("ok")),
    Case("wrong", lambda: 1 / 0),
    Case("ends", lambda: os._exit(7)),
    Case("hangs", threading.Event().wait),
]))
"""


@pytest.fixture
def covered(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The folder benchmarks/covered, whose files are found beside the command."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("cases", "rows", "document", "workers"):
        importlib.import_module(f"covered.{name}")
    return sys.modules["covered"]


def test_a_case_that_kills_its_process_or_hangs_fails_alone(covered: ModuleType) -> None:
    worker = covered.workers.Worker([sys.executable, "-c", SERVED])
    case = covered.cases.Case
    try:
        outcomes = [
            worker.run(case(name, lambda: None, limit_s=limit_s))
            for name, limit_s in (("ends", 60), ("wrong", 60), ("hangs", 0.1), ("good", 60))
        ]
    finally:
        worker.end()

    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [
        ("failed", "its process ended (exit code 7)"),
        ("failed", "ZeroDivisionError: division by zero"),
        ("failed", "takes longer than 0 s"),
        ("ok", ""),
    ]


def test_a_case_that_cannot_be_tried_here_keeps_the_row_of_where_it_could(
    covered: ModuleType,
) -> None:
    row = covered.rows.Row
    before = {name: row(name, "ok") for name in ("a", "b", "gone")}
    tried = {"a": row("a", "skipped", "no package"), "b": row("b", "failed", "why")}

    assert covered.rows.merged(before, tried, ["a", "b"]) == {"a": before["a"], "b": tried["b"]}
    assert covered.rows.worse(before, tried) == ["b: ok -> failed: why"]


def test_a_reason_names_nothing_of_this_machine_or_run(covered: ModuleType) -> None:
    text = f"<object at 0x7f3a21b4c0d0> in {ROOT}/examples\n  and {sys.prefix}/x"

    assert covered.cases.plain(text) == "<object at 0x…> in …/examples and …/x"


def test_the_document_agrees_with_the_tables(covered: ModuleType) -> None:
    written = (ROOT / "COVERAGE.md").read_text(encoding="utf-8")

    document = covered.document

    assert written == document.document(document.tables_in(covered.rows.KEPT))


#: One operator in so many is tried again.
EVERY = 120


@pytest.mark.slow
def test_a_sample_of_operators_comes_out_as_it_is_kept(covered: ModuleType) -> None:
    kept = list(covered.rows.read(covered.rows.KEPT / "operators.csv").values())
    sample = [row for row in kept if not row.reason][::EVERY]
    command = [sys.executable, str(BENCHMARKS / "coverage.py"), "--serve", "operators"]
    worker = covered.workers.Worker(command)
    try:
        found = {row.name: worker.run(covered.cases.Case(row.name, lambda: None)) for row in sample}
    finally:
        worker.end()

    assert len(sample) > 10
    assert {name: outcome.status for name, outcome in found.items()} == {
        row.name: row.status for row in sample
    }
