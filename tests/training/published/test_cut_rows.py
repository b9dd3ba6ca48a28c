"""Rows of tables with the tiles that their launches show."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.predictors.errors import DataError, UnknownGPUError
from neusight.predictors.kernel import Kernel
from neusight.predictors.training.published.cut_rows import (
    left_out_gpus,
    measured_rows,
    tile_of_launch,
)

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

GEMM = Kernel.gemm(512, 512, 64, dtype="float32")


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("volta_sgemm_128x64_nn", (64, 128)),
        ("ampere_sgemm_32x32_sliced1x4_tn", (32, 32)),
        ("Cijk_Alik_Bljk_SB_MT128x96x32_MI32x32x2x1_SE_1LDSB0", (96, 128)),
        ("sgemm_32x32x32_NN", (32, 32)),
        ("void gemv2T_kernel_val<int, int>", None),
    ],
)
def test_the_name_of_a_product_states_its_tile(name: str, tile: tuple[int, int] | None) -> None:
    assert tile_of_launch(GEMM, name, (8, 8, 1)) == tile


def test_other_kernels_state_by_their_ctas() -> None:
    relu = Kernel.elementwise("relu", 10_000, dtype="float32")
    assert tile_of_launch(relu, "vectorized_elementwise_kernel", (10, 1, 1)) == (1000, 1)
    assert tile_of_launch(relu, "vectorized_elementwise_kernel", (3, 1, 1)) == (3334, 1)


def table(folder: Path, **columns: object) -> Path:
    rows = [
        {"op": "bmm", "gpu": "Tesla T4", "B": 1 + index % 2, "M": 64 * index, "N": 64, "K": 64,
         "H": None, "latency_us": 40.0 + 10.0 * index, "kernel_name": "volta_sgemm_64x64_nn",
         "grid_x": 1, "grid_y": 1, "grid_z": 1, **columns}
        for index in range(1, 200)
    ]  # fmt: skip
    pandas.DataFrame(rows).to_parquet(folder / "kernels.parquet")
    return folder


def test_a_bmm_of_one_product_is_no_batched_one(tmp_path: Path) -> None:
    found = measured_rows(table(tmp_path))
    assert set(found) == {("nvidia", "bmm"), ("nvidia", "fully_connected")}
    [batched] = found["nvidia", "bmm"]
    assert batched.gpu.name == "T4"
    assert batched.tiles.tolist() == [[64, 64]] * len(batched.kernels)
    assert (batched.time_us > 0).all()


def test_rows_whose_kernel_names_no_tile_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row of products or vectors whose kernel name states"):
        measured_rows(table(tmp_path, kernel_name="void gemv2T"))


def test_a_table_without_names_of_kernels_is_refused(tmp_path: Path) -> None:
    frame = pandas.read_parquet(table(tmp_path) / "kernels.parquet")
    frame.drop(columns="kernel_name").to_parquet(tmp_path / "kernels.parquet")
    with pytest.raises(DataError, match="lacks kernel_name: it does not state the tiles"):
        measured_rows(tmp_path)


def test_a_gpu_that_was_not_measured_cannot_be_left_out(tmp_path: Path) -> None:
    assert left_out_gpus(["T4"], {"T4", "P4"}) == {"T4"}
    with pytest.raises(DataError, match=r"H100-SXM5-80GB was not measured; the tables hold T4\."):
        measured_rows(table(tmp_path), without=["H100"])
    with pytest.raises(UnknownGPUError, match="Unknown GPU 'H10'"):
        measured_rows(tmp_path, without=["H10"])
    assert measured_rows(tmp_path, without=["T4"]) == {}
