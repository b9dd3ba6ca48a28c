"""A cluster that nccl-tests measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.cli.main import main
from neusight.integrations.profiles.clusters import calibrate_cluster
from neusight.predictors.clusters.topology import read_topology
from neusight.predictors.errors import CalibrationError

HEAD = "# nThread 1 nGpus 1 minBytes 65536\n# Using devices\n"
COLUMNS = "#       size  count   type  redop  root   time  algbw  busbw #wrong\n"


def output(
    folder: Path, name: str = "all_reduce_perf.txt", gpu: str = "NVIDIA H100 80GB HBM3"
) -> str:
    devices = "".join(
        f"#  Rank {rank:>2} Group 0 Pid 7 on  node-{rank // 8} device {rank % 8} [0x8d] {gpu}\n"
        for rank in range(16)
    )
    rows = "".join(
        f"  {4**at} 16384 float sum -1 {40 + 4**at / 1e5:.2f} 1.0 1.9 0\n" for at in range(8, 14)
    )
    (folder / name).write_text(HEAD + devices + COLUMNS + rows)
    return str(folder / name)


def test_the_table_states_what_was_fitted_and_how_near_it_comes(tmp_path: Path) -> None:
    made = calibrate_cluster([output(tmp_path)], topology="ndv5")

    words = made.table()
    assert made.gpu.name == "H100-SXM5-80GB"
    assert "all_reduce on 16 GPUs of 2 nodes, 6 sizes from 0.1 MiB to 64.0 MiB" in words
    assert "every other size from the rest: 0% off" in words
    assert "GB/s reached (40 taken before)" in words


def test_the_command_writes_a_topology_that_a_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.json"

    code = main(["calibrate", output(tmp_path), "--topology", "ndv5", "--out", str(file)])

    assert code == 0
    assert f"neusight run --topology {file} …" in capsys.readouterr().out
    assert read_topology(file).measured[0].ranks == 16


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--out", "cluster.txt"], "ends in .json"),
        (["other.json", "--out", "c.json"], "other.json is no output of nccl-tests"),
        (["--out", "c.json", "--topology", "pcie-l40s"], "8 GPUs that level 'pcie'"),
    ],
)
def test_wrong_use_is_reported(
    words: list[str], reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", output(tmp_path), *words]) == 2
    assert reported in capsys.readouterr().err


def test_gpus_that_differ_or_are_unknown_are_reported(tmp_path: Path) -> None:
    unknown = output(tmp_path, "all_gather_perf.txt", "Quantum 9")

    with pytest.raises(CalibrationError, match="different GPUs"):
        calibrate_cluster([output(tmp_path), unknown])
    with pytest.raises(CalibrationError, match=r"'Quantum 9'.*--gpu"):
        calibrate_cluster([unknown])
    assert calibrate_cluster([unknown], gpu="H100").gpu.name == "H100-SXM5-80GB"
