"""The ratchet of kernel tables: no stored group gets worse."""

from __future__ import annotations

import importlib
import json
from types import ModuleType

import pytest

from places import ROOT

DATA = ROOT.parent / "shared" / "data"


def stored() -> dict[str, dict[str, float]]:
    path = ROOT / "benchmarks" / "group_scores" / "kernel_tables.json"
    scores: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return scores


def test_the_stored_scores_of_trained_classes_meet_their_targets() -> None:
    medians = {name: score["median"] for name, score in stored().items()}

    gemm = [error for name, error in medians.items()
            if name.startswith("modern gemm ") and " | bf16 | " in name]  # fmt: skip
    assert len(gemm) >= 7
    assert max(gemm) < 0.08
    prefill = [error for name, error in medians.items() if " prefill_causal |" in name]
    assert len(prefill) >= 7
    assert max(prefill) < 0.08


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the measured tables are not part of this checkout")
def test_no_stored_group_got_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="reading tables needs the extra [data]")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    ratchet: ModuleType = importlib.import_module("ratchet")
    accuracy: ModuleType = importlib.import_module("accuracy")
    before = ratchet.read_scores("kernel_tables")

    worse = ratchet.worse(ratchet.scores(accuracy.rows()), before)

    reasons = ratchet.explained(ratchet.CHANGELOG.read_text(encoding="utf-8"))
    assert set(worse) <= set(reasons)
