"""Reductions, scans and losses: what they read and write."""

from __future__ import annotations

import pytest

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, names, spec


def test_a_reduction_has_a_row_a_result() -> None:
    along = kernels(call("sum", spec(64), self=spec(64, 32), dim=(1,), keepdim=False))[0]
    across = kernels(call("sum", spec(32), self=spec(64, 32), dim=(0,), keepdim=False))[0]

    assert along.size == (64, 32)
    assert across.size == (32, 64)
    assert (along.layout, across.layout) == ("contiguous", "contiguous")
    assert (along.along_columns, across.along_columns) == (False, True)


def test_a_maximum_with_its_place_is_distinguished_from_one_without() -> None:
    place = spec(64, dtype="int64")
    both = kernels(call("max", spec(64), place, overload="dim", self=spec(64, 32), dim=1))[0]
    alone = kernels(call("argmin", place, self=spec(64, 32), dim=1))[0]
    value = kernels(call("amax", spec(64), self=spec(64, 32), dim=(1,)))[0]
    whole = kernels(call("max", spec(dtype="int64"), self=spec(64, dtype="int64")))[0]

    variants = [kernel.variant for kernel in (both, alone, value)]
    assert variants == ["with_index", "with_index", "extremum"]
    assert whole.variant == "extremum"


@pytest.mark.parametrize("overload", ["other", "out"])
def test_the_larger_of_two_tensors_is_no_reduction(overload: str) -> None:
    """Two tensors of 2048 floats in, one out."""
    x = spec(64, 32)
    out = {"out": x} if overload == "out" else {}

    (kernel,) = kernels(call("max", x, overload=overload, self=x, other=x, **out))

    assert (kernel.name, kernel.kernel_class) == ("max", KernelClass.ELEMENTWISE)
    assert (kernel.bytes_read, kernel.bytes_written, kernel.flops) == (16384, 8192, 2048)


def test_a_sum_of_nothing_is_zeros_and_one_into_nothing_no_kernel() -> None:
    assert names(call("sum", spec(4), self=spec(4, 0), dim=(1,))) == ["fill"]
    assert names(call("sum", spec(0), self=spec(0, 4), dim=(1,))) == []


def test_a_scan_of_one_row_prepares_its_tiles() -> None:
    def scan(*shape: int) -> list[str]:
        return names(call("cumsum", spec(*shape), self=spec(*shape), dim=-1))

    assert scan(1, 100) == scan(100) == ["scan_init", "cumsum"]
    assert scan(2, 100) == ["cumsum"]


def test_a_scan_into_given_tensors_writes_them() -> None:
    x, indices = spec(4, 100), spec(4, 100, dtype="int64")

    (kernel,) = kernels(call("_cummax_helper", self=x, values=x, indices=indices, dim=1))

    assert (kernel.bytes_read, kernel.bytes_written) == (1600, 1600 + 3200)


def test_a_distance_is_three_operations_an_element_a_pair() -> None:
    (kernel,) = kernels(
        call("_cdist_forward", spec(4, 5), x1=spec(4, 64), x2=spec(5, 64), p=2.0, compute_mode=None)
    )

    assert (kernel.flops, kernel.bytes_read, kernel.bytes_written) == (3 * 20 * 64, 9 * 256, 80)
    assert names(call("dist", spec(), self=spec(8), other=spec(8), p=2)) == ["sub", "norm"]


def test_a_scan_along_neighbours_goes_in_steps() -> None:
    x = spec(64, 512)
    along, across = (kernels(call("cumsum", x, self=x, dim=dim))[0].variant for dim in (1, 0))

    assert (along, across) == ("scan", "")
