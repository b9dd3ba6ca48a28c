"""Kernels as rows of a file: what is written is what is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.errors import DataError
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.measuring.kernel_rows import kernel_from_row, row_of_kernel

sizes = st.integers(min_value=1, max_value=1 << 40)


def rows_kernel(kernel_class: KernelClass, name: str, **traits: Any) -> Kernel:
    return Kernel.rows(
        kernel_class, name, 64, 32, dtype="bfloat16", bytes_read=4096, bytes_written=64, **traits
    )


#: Kernels with every trait.
WITH_TRAITS = [
    rows_kernel(
        KernelClass.NORMALIZATION,
        "layer_norm_backward_weight",
        variant="layer_norm",
        is_backward=True,
        along_columns=True,
    ),
    rows_kernel(KernelClass.NORMALIZATION, "batch_norm_statistics", variant="batch_norm_sums"),
    rows_kernel(
        KernelClass.NORMALIZATION,
        "batch_norm_backward_sums",
        variant="batch_norm_sums",
        is_backward=True,
    ),
    rows_kernel(KernelClass.SOFTMAX, "log_softmax", variant="log_softmax"),
    rows_kernel(KernelClass.GATHER, "scatter_add", scatters=True),
    rows_kernel(KernelClass.SORT, "topk_digit", selects=True),
    Kernel.attention(1, 8, 8, 128, 128, 64, causal=True, dtype="float16", backward=True),
    Kernel.collective("reduce_scatter", 4096, 8),
]


@given(
    m=sizes,
    n=sizes,
    k=sizes,
    batch=sizes,
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    layout=st.sampled_from(["nt", "nn", "tn", "tt"]),
)
def test_every_kernel_is_read_back(
    m: int, n: int, k: int, batch: int, dtype: str, layout: str
) -> None:
    kernel = replace(Kernel.gemm(m, n, k, batch=batch, dtype=dtype), layout=layout)  # type: ignore[arg-type]

    assert kernel_from_row(json.loads(json.dumps(row_of_kernel(kernel)))) == kernel


@pytest.mark.parametrize("kernel", WITH_TRAITS, ids=lambda kernel: kernel.name)
def test_traits_are_read_back(kernel: Kernel) -> None:
    assert kernel_from_row(json.loads(json.dumps(row_of_kernel(kernel)))) == kernel


@pytest.mark.parametrize("kernel", WITH_TRAITS, ids=lambda kernel: kernel.name)
def test_a_row_of_before_traits_is_the_same_kernel(kernel: Kernel) -> None:
    assert kernel_from_row(row_of_kernel(kernel)[:-1]) == kernel


@pytest.mark.parametrize(
    "traits", [{"variant": "flash"}, {"scatters": 1}, {"is_fast": True}, {"variant": []}, 3]
)
def test_foreign_traits_are_refused(traits: Any) -> None:
    row = row_of_kernel(WITH_TRAITS[0])

    with pytest.raises(DataError, match="are no traits of a kernel"):
        kernel_from_row([*row[:-1], traits])


@pytest.mark.parametrize(
    ("at", "value", "reported"),
    [
        (0, "gems", "describes no kernel"),
        (1, 7, "no name, type or layout"),
        (3, "float7", "'float7' is unknown"),
        (6, -1, "its work is no number"),
        (7, float("nan"), "its work is no number"),
        (2, [1, 2], "is no size of a kernel: it must be batch, m, n, k"),
        (2, [1, 2, 3, -4], "k is -4"),
        (2, [1, 2, 3, 2**49], "k is 562949953421312"),
    ],
)
def test_what_is_no_kernel_is_refused(at: int, value: Any, reported: str) -> None:
    row = row_of_kernel(Kernel.gemm(8, 8, 8))

    with pytest.raises(DataError, match=reported):
        kernel_from_row([*row[:at], value, *row[at + 1 :]])
