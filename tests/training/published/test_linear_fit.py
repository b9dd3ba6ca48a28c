"""Fits the linear model on a table made by lines, and finds the lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.predictors.errors import DataError
from neusight.predictors.published.linear import Linear, load_linear
from neusight.predictors.training.published.linear_fit import fit_linear

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

NAMES = {"Tesla T4": 20e-6, "Tesla V100-PCIE-32GB": 10e-6}
#: What a launch costs on the host of the table, µs: part of its labels.
HOST_US = 40.0


def table(folder: Path) -> Path:
    """Softmax of many sizes, whose time is a line over its elements on each GPU."""
    rows = [
        {"op": "softmax", "gpu": name, "B": batch, "H": width, "M": None, "N": None, "K": None,
         "latency_us": HOST_US + 5.0 + slope * batch * width * 10}
        for name, slope in NAMES.items()
        for batch in range(16, 4096, 64)
        for width in (512, 1000, 4096)
    ]  # fmt: skip
    pandas.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    return folder


def test_the_lines_of_a_table_are_found(tmp_path: Path) -> None:
    classes = fit_linear(table(tmp_path), tmp_path / "weights")
    found = classes[("nvidia", "softmax")]
    t4, v100 = found.lines["T4"], found.lines["V100-PCIE-32GB"]
    assert v100.flops_per_us / t4.flops_per_us == pytest.approx(2.0, rel=0.05)
    assert found.slope > 0
    assert load_linear(tmp_path / "weights" / "linear.json") == classes
    assert Linear(classes).name == "linear"


def test_a_folder_without_the_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        fit_linear(tmp_path, tmp_path / "weights")
