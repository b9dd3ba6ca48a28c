"""What every published predictor says of a duration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.published.estimates import estimate_of

T4 = find_gpu("T4")
PRODUCT = Kernel.gemm(1024, 1024, 1024, dtype="float32")


@given(st.floats(0.0, 1e6), st.floats(0.0, 5.0))
def test_no_kernel_is_faster_than_its_arithmetic_and_the_interval_holds_it(
    time_us: float, spread: float
) -> None:
    found = estimate_of(PRODUCT, T4, time_us, predictor="p", origin="trained", spread=spread)

    assert found.latency_us >= flop_roofline_us(PRODUCT, T4) - 1e-3
    assert found.latency_us >= time_us - 1e-3
    assert found.low_us <= found.latency_us <= found.high_us
    assert 0.0 < found.utilization <= 1.0


def test_the_spread_is_a_factor_both_ways() -> None:
    found = estimate_of(PRODUCT, T4, 3000.0, predictor="p", origin="trained", spread=1.0)

    assert (found.low_us, found.latency_us, found.high_us) == (1500.0, 3000.0, 6000.0)
    assert (found.bound, found.origin, found.predictor) == ("compute", "trained", "p")
