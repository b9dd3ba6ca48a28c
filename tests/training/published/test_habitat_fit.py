"""Trains Habitat's perceptrons on a table made by a rule, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neusight.predictors.errors import DataError
from neusight.predictors.published.network_files import load_networks
from neusight.predictors.training.published import habitat_fit
from neusight.predictors.training.published.habitat_fit import fit_habitat

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

#: FLOPs a µs that the table's GPUs reach, and what a launch costs on its host, µs.
NAMES = {"Tesla T4": 4e6, "Tesla V100-PCIE-32GB": 1e7}
HOST_US = 40.0


def table(folder: Path, op: str = "linear", gpus: dict[str, float] = NAMES) -> Path:
    rows = [
        {"op": op, "gpu": name, "B": 1, "M": m, "N": k, "K": n, "H": None,
         "latency_us": HOST_US + 10.0 + 2 * m * n * k / speed}
        for name, speed in gpus.items()
        for m in range(256, 4096, 256)
        for n in (512, 1024, 2048)
        for k in (512, 1024, 4096)
    ]  # fmt: skip
    pandas.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    return folder


def test_times_of_a_table_are_learnt(tmp_path: Path) -> None:
    scores = fit_habitat(table(tmp_path), tmp_path / "weights", width=32, seen_rows=150_000)
    assert set(scores) == {"linear"}
    assert max(scores["linear"].values()) < 0.35
    [item] = load_networks(tmp_path / "weights", "habitat").values()
    assert item.gpus == ("T4", "V100-PCIE-32GB")


def test_a_gpu_without_a_held_out_shape_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(habitat_fit, "is_held_out", lambda shape: np.zeros(len(shape), dtype=bool))

    scores = fit_habitat(table(tmp_path), tmp_path / "weights", width=8, seen_rows=1000)

    assert scores == {"linear": {}}


def test_a_gpu_whose_only_row_is_held_out_is_scored_and_not_trained_on(tmp_path: Path) -> None:
    file = table(tmp_path) / "kernels.parquet"
    rows = pandas.read_parquet(file)
    one_of_v100 = rows[rows["gpu"] != "Tesla T4"].head(1)
    pandas.concat([rows[rows["gpu"] == "Tesla T4"], one_of_v100]).to_parquet(file)

    scores = fit_habitat(tmp_path, tmp_path / "weights", width=8, seen_rows=1000)

    assert list(scores["linear"]) == ["T4", "V100-PCIE-32GB"]
    [item] = load_networks(tmp_path / "weights", "habitat").values()
    assert item.gpus == ("T4",)


def test_tables_without_products_of_nvidia_are_refused(tmp_path: Path) -> None:
    folder = table(tmp_path, gpus={"AMD Instinct MI210": 1e7})
    with pytest.raises(DataError, match="no products and no convolutions of NVIDIA GPUs"):
        fit_habitat(folder, tmp_path / "weights")
