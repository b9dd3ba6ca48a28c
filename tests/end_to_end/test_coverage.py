"""What was tried under forecasts: how it is run and kept, and that the document says the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

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
    for name in ("cases", "comparing", "rows", "document", "workers"):
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


def test_a_failure_gives_way_to_what_was_seen_last(covered: ModuleType) -> None:
    row = covered.rows.Row
    before = {"a": row("a", "failed", "ImportError"), "b": row("b", "skipped", "x is not there")}
    tried = {"a": row("a", "skipped", "y is not there"), "b": row("b", "skipped", "y is not there")}

    assert covered.rows.merged(before, tried, None) == tried


def test_a_reason_names_nothing_of_this_machine_or_run(covered: ModuleType) -> None:
    text = f"<object at 0x7f3a21b4c0d0> in {ROOT}/examples\n  and {sys.prefix}/x"

    assert covered.cases.plain(text) == "<object at 0x…> in …/examples and …/x"


def test_another_shape_dtype_stride_or_device_is_a_difference(covered: ModuleType) -> None:
    tensor = covered.comparing.Tensor((2, 3), "float32", (3, 1))
    other = [
        replace(tensor, shape=(2, 4)),
        replace(tensor, dtype="bfloat16"),
        replace(tensor, strides=(1, 2)),
        replace(tensor, is_on_device=False),
        covered.comparing.Value("float"),
    ]

    def reported(have: Any) -> str:
        result = covered.comparing.Result
        return str(covered.comparing.difference(result((tensor,)), result((have,))))

    assert reported(tensor) == ""
    assert all(reported(have) for have in other)


def test_calls_inside_a_forecast_are_compared_with_those_of_the_cpu(covered: ModuleType) -> None:
    comparing = covered.comparing

    def draw(device: str) -> Iterator[Any]:
        data = torch.ones(4, 3, device=device)
        given = comparing.leaves(data, device)
        results = {"cpu": data.sum(0), "cuda": data.sum(0, keepdim=device == "cuda" and is_wrong)}
        yield comparing.Sample(
            given, lambda: comparing.Result(comparing.leaves(results[device], device))
        )

    is_wrong = False
    right = comparing.compared(draw)
    is_wrong = True
    wrong = comparing.compared(draw)

    assert right.status == "ok"
    assert (wrong.status, wrong.reason) == (
        "difference",
        "result float32[1, 3] strides [0, 1], on the CPU float32[3] strides [1], of float32[4, 3]",
    )


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
