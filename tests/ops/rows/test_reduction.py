"""Reductions, scans and losses: what they read and write."""

from __future__ import annotations

import pytest

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec


def test_a_reduction_has_a_row_a_result() -> None:
    along = kernels(call("sum", spec(64), self=spec(64, 32), dim=(1,), keepdim=False))[0]
    across = kernels(call("sum", spec(32), self=spec(64, 32), dim=(0,), keepdim=False))[0]

    assert along.size == (64, 32)
    assert across.size == (32, 64)
    assert (along.layout, across.layout) == ("contiguous", "strided")


def test_a_loss_reads_one_score_a_target() -> None:
    (kernel,) = kernels(
        call(
            "nll_loss_forward",
            spec(),
            spec(),
            self=spec(128, 50000),
            target=spec(128, dtype="int64"),
            weight=None,
            reduction=1,
            ignore_index=-100,
        )
    )

    assert kernel.bytes_read == 128 * (4 + 8)


@pytest.mark.parametrize("overload", ["other", "out"])
def test_the_larger_of_two_tensors_is_no_reduction(overload: str) -> None:
    """Two tensors of 2048 floats in, one out."""
    x = spec(64, 32)
    out = {"out": x} if overload == "out" else {}

    (kernel,) = kernels(call("max", x, overload=overload, self=x, other=x, **out))

    assert (kernel.name, kernel.kernel_class) == ("max", KernelClass.ELEMENTWISE)
    assert (kernel.bytes_read, kernel.bytes_written, kernel.flops) == (16384, 8192, 2048)


def test_the_gradient_of_distances_is_made_a_pair() -> None:
    """4 by 5 rows of 64: 20 pairs, however large the rows."""
    pairs, x1, x2 = spec(4, 5), spec(4, 64), spec(5, 64)

    each, total = kernels(call("_cdist_backward", x1, grad=pairs, x1=x1, x2=x2, p=2.0, cdist=pairs))

    assert each.bytes_read == 4 * (20 + 4 * 64 + 5 * 64 + 20)
    assert each.bytes_written == total.bytes_read == 4 * 20 * 64
    assert total.bytes_written == 4 * 4 * 64
