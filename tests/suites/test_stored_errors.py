"""What is stored of the suites of whole programs meets its thresholds."""

from __future__ import annotations

import csv
from statistics import fmean

import pytest

from neusight.predictors.registry import DEFAULT_PREDICTOR
from places import ROOT


@pytest.mark.parametrize(
    ("gpu", "most"),
    [("A100-PCIE-40GB", 0.05), ("H100-SXM5-80GB", 0.07), ("P100-PCIE-16GB", 0.03)],
)
def test_the_stored_errors_of_the_paper_meet_their_thresholds(gpu: str, most: float) -> None:
    path = ROOT / "benchmarks" / "results" / "suite_paper.csv"
    with path.open(newline="", encoding="utf-8") as file:
        errors = [
            abs(float(row["error"]))
            for row in csv.DictReader(file)
            if (row["predictor"], row["source"], row["gpu"], row["mode"], row["compiled"])
            == (DEFAULT_PREDICTOR, "NeuSight paper", gpu, "inf", "")
        ]

    assert errors
    assert fmean(errors) < most
