"""Reading tables, fitting on them, scoring on them: with small tables made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neusight.integrations.cli.main import main
from neusight.predictors import Kernel, find_gpu
from neusight.predictors.errors import DataError
from neusight.predictors.learned.correction import NetworkFolder, Trained
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Dataset, Group, is_held_out
from neusight.predictors.training.datasheet import gpu_of_row, prior_constants
from neusight.predictors.training.evaluate import (
    is_calibration,
    label_overhead,
    score_dataset,
    score_folder,
)
from neusight.predictors.training.reading import read_dataset
from places import SHARED

pd = pytest.importorskip("pandas", reason="reading tables needs the extra [data]")
pytest.importorskip("pyarrow", reason="reading tables needs the extra [data]")

SHARED = SHARED / "data"
MODERN, PAPER = SHARED / "modern", SHARED / "paper_fp32"

needs_data = pytest.mark.skipif(
    not MODERN.exists(), reason="the measured tables are not part of this checkout"
)

GPUS_CSV = (
    "gpu,arch,sm_version,sms,boost_mhz,fp32_tflops,tf32_dense_tflops,bf16_dense_tflops,"
    "fp8_dense_tflops,hbm_gb,mem_bw_gbps,l2_mb,link_gbps_unidir,link_kind,tdp_w,smem_kb_per_sm\n"
    "z900,Zeta,100.0,160,1900,80,1200,2400,4800,192,8000,128,900,NVLink5,1000,228\n"
    "intel,Xe,,20,2400,12,,98,,24,456,18,28,PCIe5,200,\n"
)


def gemm_table(gpu_name: str = "h100_sxm", *, factor: float = 1.3, count: int = 400) -> Any:
    """Products of many sizes that take `factor` times what the physics says."""
    generator = np.random.default_rng(0)
    m = generator.integers(1, 8192, count)
    n, k = (64 * generator.integers(1, 128, count) for _ in range(2))
    kernels = [Kernel.gemm(*map(int, size)) for size in zip(m, n, k, strict=True)]
    tiled = Tiled(sustained=False, correction=None)
    known = "B200" if gpu_name in ("z900", "intel") else gpu_name
    times = [found.latency_us * factor for found in tiled.predict(kernels, find_gpu(known))]
    return pd.DataFrame(
        {"gpu": gpu_name, "dtype": "bf16", "m": m, "n": n, "k": k, "latency_us": times}
    )


def write(folder: Path, frame: Any, name: str = "gemm.parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".csv"):
        frame.to_csv(folder / name, index=False)
    else:
        frame.to_parquet(folder / name)
    return folder


def test_a_folder_is_scored_by_gpu_dtype_and_size(tmp_path: Path) -> None:
    report = score_folder(write(tmp_path, gemm_table()), predictors=["roofline", "tiled"])

    first = next(row for row in report.rows if row.predictor == "roofline")
    assert (first.gpu, first.table, first.dtype, first.size_class) == (
        "h100_sxm",
        "gemm",
        "bf16",
        "all",
    )
    assert first.num_rows == 400
    assert 0 < first.median_ape <= first.p90_ape
    assert first.sum_error < 0
    sizes = {row.size_class for row in report.rows}
    assert {"all", "<10us", "10-100us"} <= sizes


def test_csv_tables_and_gpus_known_only_by_datasheet_are_scored(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text(GPUS_CSV)
    folder = write(tmp_path, gemm_table("z900"), "gemm.csv")

    report = score_folder(folder)

    [row] = [row for row in report.rows if row.size_class == "all"]
    assert (row.gpu, row.num_rows) == ("z900", 400)
    assert row.mape < 1.0


def test_gpus_that_cannot_be_priced_are_reported(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text(GPUS_CSV)
    both = pd.concat([gemm_table(), gemm_table("intel"), gemm_table("b200_sxm").assign(gpu="q1")])

    report = score_folder(write(tmp_path, both))

    assert {row.gpu for row in report.rows} == {"h100_sxm"}
    assert "no CUDA compute capability" in "".join(report.left_out)
    assert "400 rows of q1: neither neusight nor gpus.csv knows this GPU" in "".join(
        report.left_out
    )


@pytest.mark.parametrize(
    "row",
    [
        "z900,Zeta,100.0,inf,1900,80,1200,2400,4800,192,8000,128,900,NVLink5,1000,228",
        "z900,Zeta,100.0,160,nan,80,1200,2400,4800,192,8000,128,900,NVLink5,1000,228",
        "z900,Zeta,1e999,160,1900,80,1200,2400,4800,192,8000,128,900,NVLink5,1000,228",
        "z900,Zeta",
    ],
    ids=range(4),
)
def test_a_damaged_row_of_a_datasheet_is_reported(row: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text(GPUS_CSV.splitlines()[0] + "\n" + row + "\n")
    both = pd.concat([gemm_table(count=20), gemm_table(count=20).assign(gpu="z900")])

    report = score_folder(write(tmp_path, both))

    assert "20 rows of z900: its row in gpus.csv cannot be used" in "".join(report.left_out)


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"gpu\n" + b"a" * 200_000 + b"\n"])
def test_a_datasheet_that_is_no_table_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_bytes(content)

    with pytest.raises(DataError, match=r"gpus\.csv cannot be read"):
        score_folder(write(tmp_path, gemm_table(count=20)))


def test_the_label_is_the_consensus_of_primary_rows(tmp_path: Path) -> None:
    frame = gemm_table(factor=1.0).assign(primary=True, consensus_us=np.nan)
    frame.loc[0, ["latency_us", "consensus_us"]] = [77.0, 55.0]
    frame.loc[1:9, "primary"] = False

    [group] = read_dataset(write(tmp_path, frame)).groups

    assert len(group.launches) == 391
    assert group.latency_us[0] == 55.0


def test_sustained_rows_are_priced_at_sustained_clocks(tmp_path: Path) -> None:
    frame = gemm_table(factor=1.0).assign(clock_regime="burst")
    frame.loc[:99, "clock_regime"] = "sustained"

    groups = read_dataset(write(tmp_path, frame)).groups

    assert [(group.sustained, len(group.launches)) for group in groups] == [
        (False, 300),
        (True, 100),
    ]


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0, float("inf")])
def test_impossible_durations_name_file_column_and_rows(tmp_path: Path, value: float) -> None:
    frame = gemm_table()
    frame.loc[3, "latency_us"] = value

    with pytest.raises(DataError, match=r"gemm\.parquet: column latency_us has 1 of 400 rows"):
        score_folder(write(tmp_path, frame))


def test_words_in_a_column_of_sizes_are_reported(tmp_path: Path) -> None:
    frame = gemm_table(count=20).assign(m="many")

    with pytest.raises(DataError, match=r"column m holds what is no number"):
        score_folder(write(tmp_path, frame, "gemm.csv"))


def test_rows_that_a_gpu_cannot_run_are_reported_and_alone_refused(tmp_path: Path) -> None:
    """A P100 has no unit for FP8."""
    kernel = Kernel.gemm(64, 64, 64, dtype="float8_e4m3fn")
    group = Group(
        "P100", find_gpu("P100"), "gemm", "fp8", "gemm", [(kernel,)], np.ones(1),
        np.zeros(1, dtype=np.uint64),
    )  # fmt: skip

    with pytest.raises(DataError, match=r"No row of .* could be scored: gemm: 1 rows: P100-"):
        score_dataset(Dataset(tmp_path, (group,), ()), predictors=["tiled"])


def test_a_table_without_rows_of_the_calibration_split_has_no_overhead() -> None:
    kernel = Kernel.elementwise("relu", 2**20, dtype="float32")
    shapes = np.arange(100, dtype=np.uint64)
    group = Group(
        "T4", find_gpu("T4"), "kernels", "fp32", "relu", [(kernel,)] * 100, np.ones(100), shapes
    )

    assert label_overhead(group.chosen(~is_calibration(group))) == (0.0, 0.0)


def test_missing_columns_and_sizes_below_one_are_named(tmp_path: Path) -> None:
    lacking = gemm_table().drop(columns=["k", "dtype"])
    with pytest.raises(DataError, match="lacks the columns dtype, k"):
        score_folder(write(tmp_path / "a", lacking))

    wrong = gemm_table()
    wrong.loc[0, "m"] = 0
    with pytest.raises(DataError, match="column m has 1 of 400 rows"):
        score_folder(write(tmp_path / "b", wrong))

    with pytest.raises(DataError, match="no folder"):
        score_folder(tmp_path / "c")
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="no table that neusight knows"):
        score_folder(tmp_path / "d")
    (tmp_path / "d" / "gemm.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        score_folder(tmp_path / "d")


def test_without_pandas_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, gemm_table())
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(DataError, match=r"neusight-hooks\[data\]"):
        score_folder(folder)


def test_the_host_overhead_of_fp32_labels_is_found_on_a_calibration_split(tmp_path: Path) -> None:
    widths = np.arange(200, 42000, 40)
    kernels = [Kernel.elementwise("relu", int(width) * 512, dtype="float32") for width in widths]
    times = [
        found.latency_us for found in Tiled(correction=None).predict(kernels, find_gpu("V100"))
    ]
    frame = pd.DataFrame(
        {
            "op": "relu",
            "gpu": "V100-SXM2-32GB",
            "latency_us": np.array(times) + 40.0,
            "B": 512,
            "H": widths,
            "M": None,
            "N": None,
            "K": None,
        }
    )

    report = score_folder(write(tmp_path, frame, "kernels.csv"))

    row = next(row for row in report.rows if row.size_class == "all")
    above = next(row for row in report.rows if row.size_class == "above_floor")
    assert row.label_overhead_us == pytest.approx(40.0, abs=0.01)
    assert row.num_rows < len(widths)
    assert 0 < above.num_rows < row.num_rows
    assert row.mape < 1e-4


def test_a_datasheet_row_becomes_a_gpu_with_prior_constants() -> None:
    header, first, *_ = GPUS_CSV.splitlines()
    made = gpu_of_row(dict(zip(header.split(","), first.split(","), strict=True)))

    assert (made.num_sms, made.compute_capability, made.l2_bytes) == (160, (10, 0), 128 * 2**20)
    assert made.constants_origin.startswith("prior")
    with pytest.raises(ValueError, match="num_sms"):
        gpu_of_row({**dict(zip(header.split(","), first.split(","), strict=True)), "sms": "0"})
    amd = gpu_of_row(
        {**dict(zip(header.split(","), first.split(","), strict=True)), "sm_version": "gfx942"}
    )
    assert (amd.vendor, amd.compute_capability) == ("amd", (9, 0))


def test_prior_constants_do_not_know_the_gpu_itself() -> None:
    known, prior = find_gpu("H100"), prior_constants(find_gpu("H100"), without=lambda item: True)

    assert known.gemm_utilization != prior.gemm_utilization or known.floor_us != prior.floor_us
    assert prior.constants_origin.startswith("prior")


def test_the_split_keeps_out_about_its_share_and_never_moves() -> None:
    shapes = np.arange(100_000, dtype=np.uint64) * np.uint64(2654435761)

    held = is_held_out(shapes)

    assert held.mean() == pytest.approx(0.1, abs=0.01)
    assert held[:40].nonzero()[0].tolist() == is_held_out(shapes[:40]).nonzero()[0].tolist()
    assert (is_held_out(shapes, salt=1) != held).any()


def test_a_fit_learns_a_factor_and_repeats_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neusight.predictors.training import fit as module

    recipe = module.RECIPES["gemm_16bit"]._replace(
        hidden=(8,), epochs=60, unseen_epochs=2, batch_rows=64
    )
    monkeypatch.setattr(module, "RECIPES", {"gemm_16bit": recipe})
    both = pd.concat([gemm_table(), gemm_table("a100_sxm")])
    folder = write(tmp_path / "data", both)

    for out in ("one", "two"):
        assert main(["fit", str(folder), "--out", str(tmp_path / out), "--date", "2026-01-01"]) == 0

    first, second = (tmp_path / out / "gemm_16bit.npz" for out in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    networks = NetworkFolder(tmp_path / "one")
    assert networks["gemm_16bit"].provenance["date"] == "2026-01-01"
    tiled = Tiled(sustained=False, correction=Trained(networks))
    [group, *_] = read_dataset(folder).groups
    found = tiled.predict([launch[0] for launch in group.launches], group.gpu)
    errors = [abs(e.latency_us / y - 1) for e, y in zip(found, group.latency_us, strict=True)]
    assert np.median(errors) < 0.05
    assert "on held-out shapes" in capsys.readouterr().out


def test_the_command_writes_its_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "data", gemm_table())
    out = tmp_path / "scores.json"

    code = main(["evaluate", "--data", str(folder), "--predictor", "roofline", "--json", str(out)])

    assert code == 0
    assert "h100_sxm" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert {
        "gpu",
        "table",
        "dtype",
        "phase_or_op",
        "size_class",
        "num_rows",
        "mape",
        "median_ape",
        "p90_ape",
        "sum_error",
        "within_interval",
    } <= set(rows[0])


def test_wrong_use_of_the_commands_exits_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--data", str(tmp_path / "none")]) == 2
    assert main(["evaluate", "--data", str(tmp_path), "--predictor", "best"]) == 2
    assert main(["fit", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "neusight: " in capsys.readouterr().err
