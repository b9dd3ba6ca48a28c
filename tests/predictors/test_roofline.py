"""The predictor that says just the bound."""

from __future__ import annotations

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.physical_time import whole_nanoseconds
from neusight.predictors.physics.roofline import roofline_us
from neusight.predictors.roofline import Roofline


def test_roofline_is_the_bound_itself() -> None:
    kernel = Kernel.gemm(4096, 4096, 4096)

    [estimate] = Roofline().predict([kernel], find_gpu("H100"))

    assert estimate.latency_us == whole_nanoseconds(roofline_us(kernel, find_gpu("H100")))
    assert estimate.bound == "compute"
    assert estimate.predictor == "roofline"
    assert estimate.origin == "physics"
