"""What was measured is scored as any table: by what was launched, how, and on which GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from measured_environment import ENVIRONMENT
from neusight.predictors import predict
from neusight.predictors.errors import DataError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import (
    Environment,
    Sample,
    append_sample,
    compact,
    write_environment,
    write_gpus,
)
from neusight.predictors.training.evaluate import score_folder
from neusight.predictors.training.reading import read_dataset


def samples(*, factor: float = 1.0) -> list[Sample]:
    """Products of two layouts, as the default predictor has them, times a factor."""
    found = []
    for layout in ("nt", "tn"):
        for m in (256, 1024, 4096):
            kernel = Kernel.gemm(m, 4096, 4096, layout=layout)
            (estimate,) = predict([kernel], "H100", "tiled_burst")
            probe = f"mm dtype=bf16 layout={layout} batch=1 m={m} n=4096 k=4096"
            found.append(Sample("mm", probe, (kernel,), estimate.latency_us * factor, None))
    return found


def a_folder(path: Path, found: list[Sample], environment: Environment = ENVIRONMENT) -> Path:
    write_environment(path, environment)
    for sample in found:
        append_sample(path, sample)
    compact(path)
    return path


def test_each_layout_is_a_group_of_its_own(tmp_path: Path) -> None:
    dataset = read_dataset(a_folder(tmp_path, samples()))

    assert [(g.table, g.dtype, g.phase_or_op, len(g.launches)) for g in dataset.groups] == [
        ("gemm", "bf16", "mm nt (hot L2)", 3),
        ("gemm", "bf16", "mm tn (hot L2)", 3),
    ]
    assert dataset.groups[0].gpu == find_gpu("H100")
    # Shapes are held out together in every layout.
    assert len(set(np.concatenate([group.shape for group in dataset.groups]))) == 3


def test_a_measured_folder_is_scored(tmp_path: Path) -> None:
    exact = score_folder(a_folder(tmp_path / "exact", samples()))
    slower = score_folder(a_folder(tmp_path / "slower", samples(factor=1.25)))

    assert [row.mape for row in exact.rows if row.size_class == "all"] == [0.0, 0.0]
    assert all(
        row.sum_error == pytest.approx(-0.2) for row in slower.rows if row.size_class == "all"
    )


def test_sustained_samples_are_apart(tmp_path: Path) -> None:
    found = samples()
    found += [replace(sample, clock_regime="sustained") for sample in found]

    groups = read_dataset(a_folder(tmp_path, found)).groups

    assert [group.sustained for group in groups] == [False, True, False, True]


def test_the_parts_of_an_op_are_named_after_their_kernels(tmp_path: Path) -> None:
    kernel = Kernel.elementwise("gelu", 64, dtype="float32")
    sample = Sample("mlp", "mlp dtype=fp32 part=1/2", (kernel,), 3.0, None, l2="cold")

    (group,) = read_dataset(a_folder(tmp_path, [sample])).groups

    assert (group.table, group.phase_or_op) == ("memory_bound", "mlp gelu (cold L2)")


def test_only_the_tables_asked_for_are_read(tmp_path: Path) -> None:
    a_folder(tmp_path, samples())

    assert len(read_dataset(tmp_path, tables=["gemm"]).groups) == 2
    with pytest.raises(DataError, match="holds no measured kernels"):
        read_dataset(tmp_path, tables=["attention"])


def test_a_gpu_that_only_its_datasheet_knows_is_taken_from_there(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, samples(), replace(ENVIRONMENT, gpu="NVIDIA Z9"))

    with pytest.raises(ValueError, match="Unknown GPU 'NVIDIA Z9'"):
        read_dataset(folder)
    write_gpus(folder, replace(find_gpu("H100"), name="Z9", num_sms=200), label="NVIDIA Z9")

    assert read_dataset(folder).groups[0].gpu.num_sms == 200
    write_gpus(folder, find_gpu("H100"), label="another")
    with pytest.raises(DataError, match=r"gpus\.csv does not describe NVIDIA Z9"):
        read_dataset(folder)
    write_gpus(folder, replace(find_gpu("H100"), name="Z9", num_sms=0), label="NVIDIA Z9")
    with pytest.raises(
        DataError, match=r"gpus\.csv: the row of NVIDIA Z9 cannot be used: .*num_sms"
    ):
        read_dataset(folder)
