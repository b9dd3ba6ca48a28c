"""The measured rows that are nearest to a kernel."""

from __future__ import annotations

import numpy as np

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
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
