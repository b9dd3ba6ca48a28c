"""ACCURACY.md and the page of all tables say what the tables in benchmarks/results say."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from places import ROOT


@pytest.fixture
def accuracy_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("accuracy_page", "carried_programs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("accuracy_page")


def test_the_pages_agree_with_the_tables(accuracy_page: ModuleType) -> None:
    for page, text in accuracy_page.pages().items():
        assert page.read_text(encoding="utf-8") == text


def test_programs_are_scored_by_gpu(
    accuracy_page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        {"gpu": "T4", "level": "1", "half": "odd", "error": "-0.1", "is_inside": "True"},
        {"gpu": "T4", "level": "1", "half": "even", "error": "0.3", "is_inside": "False"},
        {"gpu": "T4", "level": "chains", "half": "odd", "error": "0.5", "is_inside": "True"},
        {"gpu": "T4", "level": "1", "half": "odd", "error": "", "is_inside": ""},
    ]
    unmeasured = [{**row, "error": row["error"] and f"{2 * float(row['error'])}"} for row in found]
    tables = {"programs": found, "unmeasured_programs": unmeasured}
    monkeypatch.setattr(accuracy_page, "rows", tables.__getitem__)

    lines = accuracy_page.programs().splitlines()[2:]

    assert lines == [
        "| all | 3 | 30.0 | 30.0 | 33 | 67 | 60.0 | 0 |",
        "| T4 | 2 | 20.0 | 10.0 | 50 | 50 | 40.0 | 0 |",
        "| T4, chains in 16 bit | 1 | 50.0 | 50.0 | 0 | 100 | 100.0 | 0 |",
    ]


@pytest.mark.parametrize(
    ("table", "operation", "dtype", "kind"),
    [
        ("attention", "prefill_causal", "bf16", "attention, prefill"),
        ("gemm", "gemm", "fp8_e4m3", "products, FP8"),
        ("gemm", "gemm", "bf16", "products, 16 bit"),
        ("kernels", "linear", "fp32", "products, FP32"),
        ("kernels", "softmax", "fp32", "vectors, softmax, norms, FP32"),
        ("conv_kernels", "conv", "fp32", "convolutions, FP32"),
        ("conv", "backward_weight NCHW", "fp32", "convolutions by pass"),
        ("collectives", "all_reduce", "fp16", "collectives"),
        ("memory_bound", "rope", "bf16", "norms and quantization, 16 bit"),
    ],
)
def test_kernels_are_grouped_by_what_they_are(
    accuracy_page: ModuleType, table: str, operation: str, dtype: str, kind: str
) -> None:
    row = {"table": table, "operation": operation, "dtype": dtype}

    assert accuracy_page.kind_of(row) == kind
