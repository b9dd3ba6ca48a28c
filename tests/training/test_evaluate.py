"""The ratchet: no stored score on the measured tables gets worse."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import pytest

from places import ROOT

DATA = ROOT.parent / "shared" / "data"


def benchmark() -> ModuleType:
    """benchmarks/accuracy.py, which is no package."""
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored() -> dict[str, float]:
    scores: dict[str, float] = json.loads(
        (ROOT / "benchmarks" / "accuracy_scores.json").read_text(encoding="utf-8")
    )
    return scores


def test_a_worse_or_lost_score_is_told() -> None:
    worse = benchmark().worse

    assert worse({"a": 0.05, "b": 0.03}, {"a": 0.05, "b": 0.03}) == []
    assert worse({"a": 0.07}, {"a": 0.05, "b": 0.03}) == ["b: no longer scored", "a: 5.0% -> 7.0%"]


def test_the_stored_scores_of_trained_classes_meet_their_targets() -> None:
    scores = stored()

    gemm = {name: error for name, error in scores.items() if " gemm bf16 " in name}
    assert len(gemm) >= 7
    assert max(gemm.values()) < 0.08
    prefill = {name: error for name, error in scores.items() if name.endswith(" prefill_causal")}
    assert len(prefill) >= 7
    assert max(prefill.values()) < 0.08


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the measured tables are not part of this checkout")
def test_no_stored_score_got_worse() -> None:
    pytest.importorskip("pandas", reason="reading tables needs the extra [data]")
    module = benchmark()

    assert module.worse(module.scores(), stored()) == []
