"""The measured rows that are nearest to a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.training.dataset import Group
from neusight.predictors.training.nearest import nearest_rows

T4 = find_gpu("T4")


def group(*kernels: Kernel, gpu: str = "T4", has_overhead: bool = False) -> Group:
    """Rows of those kernels, of 1, 2, ... µs."""
    return Group(
        gpu, find_gpu(gpu), "gemm", "fp32", "gemm",
        launches=[(kernel,) for kernel in kernels],
        latency_us=np.arange(1.0, len(kernels) + 1.0),
        shape=np.arange(len(kernels), dtype=np.uint64),
        has_overhead=has_overhead,
    )  # fmt: skip


def rows(name: str, width: int, **traits: Any) -> Kernel:
    return Kernel.rows(
        KernelClass.REDUCTION, name, 64, width, dtype="float32", bytes_read=1, bytes_written=1,
        **traits,
    )  # fmt: skip


IMAGE = ConvolutionSize(8, 64, 64, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")


@pytest.mark.parametrize(
    ("kernel", "other", "distance"),
    [
        (rows("sum", 512), rows("sum", 2048), 2.0),
        (rows("sum", 512), rows("mean", 512), 4.0),
        (rows("sum", 512), rows("sum", 512, along_columns=True), None),
        (
            Kernel.convolution(IMAGE, dtype="float32"),
            Kernel.convolution(IMAGE._replace(batch=2, in_channels=128), dtype="float32"),
            3.0,
        ),
        (
            Kernel.convolution(IMAGE, dtype="float32"),
            Kernel.convolution(IMAGE._replace(direction="data_gradient"), dtype="float32"),
            None,
        ),
        (
            Kernel.collective("all_reduce", 2**20, 8),
            Kernel.collective("all_reduce", 2**22, 4, num_nodes=2),
            4.0,
        ),
        (
            Kernel.collective("all_reduce", 2**20, 8),
            Kernel.collective("all_gather", 2**20, 8),
            None,
        ),
        (Kernel.gemm(64, 64, 64), Kernel.gemm(64, 64, 64, layout="nn", name="other"), 1.0),
    ],
)
def test_kernels_of_every_class_have_a_distance(
    kernel: Kernel, other: Kernel, distance: float | None
) -> None:
    found = nearest_rows(kernel, T4, [group(other)])

    assert [row.distance for row in found] == ([] if distance is None else [distance])


def product(m: int, *, dtype: str = "float32") -> Kernel:
    return Kernel.gemm(m, 512, 512, dtype=dtype)


def test_the_same_kernel_comes_first_then_sizes_a_few_times_apart() -> None:
    rows = [group(product(1024), product(64), product(256), product(128))]

    found = nearest_rows(product(64), T4, rows)

    assert [(row.kernel, row.measured_us, row.distance) for row in found] == [
        (product(64), 2.0, 0.0),
        (product(128), 4.0, 1.0),
        (product(256), 3.0, 2.0),
    ]


def test_another_dtype_is_as_far_as_four_times_the_size() -> None:
    rows = [group(product(64, dtype="float16"), product(512), product(128))]

    found = nearest_rows(product(64), T4, rows)

    assert [row.kernel for row in found] == [
        product(128), product(64, dtype="float16"), product(512),
    ]  # fmt: skip


def test_other_gpus_classes_and_labels_with_overhead_are_no_rows() -> None:
    attention = Kernel.attention(1, 8, 8, 64, 64, 64, causal=True, dtype="float16")
    rows = [
        group(product(64), gpu="L4"), group(attention), group(product(64), has_overhead=True),
    ]  # fmt: skip

    assert nearest_rows(product(64), T4, rows) == []


def test_an_attention_with_a_mask_is_nothing_like_one_without() -> None:
    def attention(*, causal: bool) -> Kernel:
        return Kernel.attention(1, 8, 8, 64, 64, 64, causal=causal, dtype="float16")

    rows = [group(attention(causal=True))]

    assert nearest_rows(attention(causal=False), T4, rows) == []
    assert len(nearest_rows(attention(causal=True), T4, rows)) == 1
