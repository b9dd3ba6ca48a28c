"""What every published predictor says of a duration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from priced_kernels import TABLES, estimates, label

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.predictor import Estimate
from neusight.predictors.published.estimates import estimate_of
from neusight.predictors.registry import find_predictor
from places import require_golden

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


def test_published_predictors_price_kernels_as_the_golden_table_has_them() -> None:
    """A kernel a line; of each predictor and GPU nanoseconds, the interval's half width and the
    first letter of what priced it."""
    kernels = [kernel for table in TABLES for kernel in table()][::5]
    kernels += [Kernel.collective(kind, 2**26, 8) for kind in ("all_reduce", "broadcast")]
    columns = [
        (name, gpu, estimates(find_predictor(name), kernels, gpu))
        for name in ("linear", "habitat", "neusight")
        for gpu in ("V100", "H100", "MI210")
    ]
    lines = ["".join(f"{f'{name} {gpu}':>18}" for name, gpu, _ in columns)]
    for kernel in kernels:
        cells = (price(found.get(kernel)) for _, _, found in columns)
        lines.append("".join(f"{cell:>18}" for cell in cells) + f"  {label(kernel)}")

    require_golden("published_prices.txt", lines)


def price(found: Estimate | None) -> str:
    if found is None:
        return "-"
    spread = found.high_us / found.latency_us - 1
    return f"{found.latency_us * 1000:.0f} {spread:.2f} {found.origin[0]}{found.bound[0]}"
