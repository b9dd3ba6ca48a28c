"""The ratchet of whole programs: what got worse is told, what is stored meets its thresholds."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from neusight.integrations.suites.case import LeftOut
from neusight.integrations.suites.rendering import csv_text
from places import ROOT
from suite_folders import priced_case


def benchmark() -> ModuleType:
    """benchmarks/suites.py, which is no package."""
    spec = importlib.util.spec_from_file_location("suites", ROOT / "benchmarks" / "suites.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_errors_are_grouped_by_source_gpu_and_way_for_the_default_alone() -> None:
    results = [
        priced_case("a", 0.1),
        priced_case("b", -0.3),
        priced_case("a", 0.9, predictor="roofline"),
        priced_case("c", 0.2, gpu="P4"),
    ]

    text = csv_text("paper", results, [LeftOut("d", "a source", "no program")])

    assert benchmark().groups(text) == pytest.approx(
        {"a source P4 inf": 0.2, "a source T4 inf": 0.2}
    )


def test_a_worse_or_lost_group_is_told() -> None:
    worse = benchmark().worse

    assert worse({"a": 0.05}, {"a": 0.05}) == []
    assert worse({"a": 0.07}, {"a": 0.05, "b": 0.03}) == ["b: no longer run", "a: 5.0% -> 7.0%"]


@pytest.mark.parametrize(
    ("gpu", "most"),
    [("A100-PCIE-40GB", 0.05), ("H100-SXM5-80GB", 0.07), ("P100-PCIE-16GB", 0.03)],
)
def test_the_stored_errors_of_the_paper_meet_their_thresholds(gpu: str, most: float) -> None:
    module = benchmark()
    groups = module.groups(module.stored("paper").read_text(encoding="utf-8"))

    assert groups[f"NeuSight paper {gpu} inf"] < most
