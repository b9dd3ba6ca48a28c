"""Trains NeuSight on a table whose utilization is known, and finds it; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.published.neusight import NeuSight
from neusight.predictors.published.trained_class import load_classes
from neusight.predictors.training.published import neusight_fit
from neusight.predictors.training.published.neusight_fit import fit_neusight

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

#: Peaks of the table's GPUs in FP32, FLOP/µs, and their SMs.
NAMES = {"Tesla T4": (8.1e6, 40), "Tesla V100-PCIE-32GB": (14.1e6, 80)}
#: What a launch costs on the host of the table, µs: part of its labels.
HOST_US = 40.0
UTILIZATION = 0.7


def table(folder: Path) -> Path:
    """Products cut into tiles of 128 x 64, whole waves of which reach 70 % of the peak."""
    rows = []
    for name, (peak, num_sms) in NAMES.items():
        for m in range(512, 4096, 128):
            for n in (256, 1024, 3000, 4096):
                for k in (256, 1024, 2048):
                    tiles = -(-m // 64) * -(-n // 128)
                    waves = -(-tiles // num_sms)
                    time = waves * 2 * 128 * 64 * k / (peak / num_sms) / UTILIZATION
                    rows.append(
                        {"op": "linear", "gpu": name, "B": 1, "M": m, "N": k, "K": n, "H": None,
                         "grid_x": tiles, "grid_y": 1, "grid_z": 1,
                         "kernel_name": "volta_sgemm_128x64_tn", "latency_us": HOST_US + time}
                    )  # fmt: skip
    pandas.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    return folder


def test_the_utilization_of_a_table_is_found(tmp_path: Path) -> None:
    reported: list[str] = []
    scores = fit_neusight(
        table(tmp_path), tmp_path / "weights", width=16, seen_rows=100_000, progress=reported.append
    )
    errors = scores["nvidia fully_connected"]
    assert set(errors) == {"T4", "V100-PCIE-32GB", "T4 left out"}
    assert errors["T4"] < 0.1
    assert errors["V100-PCIE-32GB"] < 0.1
    assert any("fully_connected" in text for text in reported)
    predictor = NeuSight(load_classes(tmp_path / "weights"))
    [estimate] = predictor.predict([Kernel.gemm(2000, 3000, 1500, dtype="float32")], find_gpu("T4"))
    assert estimate.tile == (64, 128)
    assert estimate.origin == "trained"


def test_equal_seeds_give_equal_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = table(tmp_path)
    monkeypatch.setattr(neusight_fit, "MOST_ROWS", 200)  # of each GPU, drawn by the seed
    for place in ("first", "second"):
        fit_neusight(folder, tmp_path / place, width=8, seen_rows=2000, seed=3)
    first, second = (
        (tmp_path / place / "neusight_nvidia_fully_connected.npz").read_bytes()
        for place in ("first", "second")
    )
    assert first == second


def test_a_folder_without_the_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no table `kernels`"):
        fit_neusight(tmp_path, tmp_path / "weights")


def test_one_gpu_alone_states_nothing_of_others(tmp_path: Path) -> None:
    path = table(tmp_path) / "kernels.parquet"
    frame = pandas.read_parquet(path)
    frame[frame["gpu"] == "Tesla T4"].to_parquet(path)
    with pytest.raises(DataError, match="measured on T4 alone: two GPUs are needed"):
        fit_neusight(tmp_path, tmp_path / "weights")
