"""Tables of products: rows of a serving library, and calls of a BLAS library."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import GemmSize
from neusight.predictors.training.reading import read_dataset

pytest.importorskip("pandas", reason="reading tables needs the extra [data]")

BLAS = """gpu,dtype,m,n,k,a_transposed,b_transposed,latency_us
V100-SXM2-16GB (DGX-1),fp16_tensor_core,2560,16,512,True,False,51
T4,fp32,2560,16,512,False,False,50
T4,fp32,35,8457,4096,True,False,60
T4,fp32,35,8457,4096,False,True,70
"""


def test_a_blas_call_is_the_product_of_its_operands_swapped(tmp_path: Path) -> None:
    """Columns of B are rows of Bᵀ: C[m, n] in columns is Cᵀ[n, m] in rows."""
    (tmp_path / "gemm.csv").write_text(BLAS, encoding="utf-8")

    t4, v100 = read_dataset(tmp_path).groups

    assert [(kernel.size, kernel.layout) for (kernel,) in t4.launches] == [
        (GemmSize(1, 16, 2560, 512), "nn"),
        (GemmSize(1, 8457, 35, 4096), "nt"),
        (GemmSize(1, 8457, 35, 4096), "tn"),
    ]
    assert v100.gpu.name == "V100-SXM2-16GB"  # the system in brackets is no part of its name
    assert v100.launches[0][0].dtype == "float16"


def test_only_the_rows_of_one_gpu_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text(BLAS, encoding="utf-8")

    dataset = read_dataset(tmp_path, only=find_gpu("T4"))

    assert [group.gpu.name for group in dataset.groups] == ["T4"]
    assert "another GPU was asked for" in dataset.left_out[0]
