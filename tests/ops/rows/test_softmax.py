"""Softmax: what it reads and writes."""

from __future__ import annotations

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec


def test_softmax_rows_run_along_its_dimension() -> None:
    (kernel,) = kernels(
        call("_softmax", spec(2, 3, 5), self=spec(2, 3, 5), dim=1, half_to_float=False)
    )

    assert kernel.kernel_class is KernelClass.SOFTMAX
    assert kernel.size == (10, 3)
    assert kernel.layout == "strided"
