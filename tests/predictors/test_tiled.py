"""The default predictor: physics, corrections and bounds put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors import GPU, Kernel, KernelClass, Tiled, find_gpu, gpus, predict
from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.kernel import ConvolutionSize
from neusight.predictors.learned.correction import Adjustment
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.roofline import flop_roofline_us

CONVOLUTION = ConvolutionSize(8, 64, 64, 1, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
KERNELS = [
    Kernel.gemm(512, 1024, 768),
    Kernel.gemm(512, 1024, 768, dtype="float32"),
    Kernel.gemm(64, 64, 64, batch=16, dtype="float16"),
    Kernel.convolution(CONVOLUTION, dtype="float16"),
    Kernel.attention(4, 8, 8, 512, 512, 64, causal=True, dtype="bfloat16"),
    Kernel.elementwise("add", 10**6, dtype="float32", num_inputs=2),
    Kernel.collective("all_reduce", 10**6, 8),
    Kernel.rows(
        KernelClass.UNKNOWN, "mystery", 1, 10, dtype="int64", bytes_read=80, bytes_written=80
    ),
]


@pytest.mark.parametrize("name", gpus())
def test_every_gpu_prices_every_class(name: str) -> None:
    for estimate in predict(KERNELS, name):
        assert 0 < estimate.low_us <= estimate.latency_us <= estimate.high_us
        assert round(estimate.latency_us * 1000) == pytest.approx(estimate.latency_us * 1000)
        assert 0 <= estimate.utilization <= 1


@settings(max_examples=30)
@given(st.permutations(range(len(KERNELS))), st.integers(1, len(KERNELS)))
def test_an_estimate_does_not_depend_on_its_batch(order: list[int], count: int) -> None:
    alone = {kernel: Tiled().predict([kernel], find_gpu("A100"))[0] for kernel in KERNELS}
    chosen = [KERNELS[index] for index in order[:count]]

    assert Tiled().predict(chosen, find_gpu("A100")) == [alone[kernel] for kernel in chosen]


def test_a_gpu_that_was_not_measured_has_an_interval_half_as_wide_again() -> None:
    measured = find_gpu("H100")
    gpus = measured, replace(measured, constants_origin="prior: of an A100")
    kernel = Kernel.elementwise("add", 10**8, dtype="float32", num_inputs=2)

    above, above_prior = (
        (one.high_us - one.latency_us) / one.latency_us
        for one in (Tiled().predict([kernel], gpu)[0] for gpu in gpus)
    )

    assert above_prior == pytest.approx(1.5 * above, rel=1e-3)


def test_large_batches_equal_single_ones() -> None:
    kernels = [Kernel.gemm(128 + index, 256, 64 + index) for index in range(2500)]

    together = Tiled().predict(kernels, find_gpu("H100"))

    for index in (0, 1023, 1024, 2499):
        assert together[index] == Tiled().predict([kernels[index]], find_gpu("H100"))[0]


def test_repeated_kernels_are_the_same_object() -> None:
    first, second = predict([KERNELS[0], KERNELS[0]], "H100")

    assert first is second


def test_unknown_kernels_are_fallback_and_known_ones_are_not() -> None:
    origins = {
        kernel.kernel_class: e.origin
        for kernel, e in zip(KERNELS, predict(KERNELS, "H100"), strict=True)
    }

    assert origins.pop(KernelClass.UNKNOWN) == "fallback"
    assert set(origins.values()) <= {"trained", "physics"}


def test_unsupported_kernels_are_refused() -> None:
    with pytest.raises(UnsupportedKernelError, match="no fp8 unit"):
        predict([Kernel.gemm(8, 8, 8, dtype="float8_e4m3fn")], "A100")


def test_the_interval_is_wider_where_constants_are_a_prior() -> None:
    def width(name: str) -> float:
        [estimate] = predict([Kernel.gemm(8192, 8192, 8192)], name)
        return estimate.high_us / estimate.latency_us

    assert width("RTX-4090") > width("H100")


def test_a_correction_multiplies_the_physics_and_says_trained() -> None:
    class Doubling:
        def factors(
            self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[PhysicalTime]
        ) -> list[Adjustment | None]:
            return [
                Adjustment(2.0, 0.1) if kernel.kernel_class is KernelClass.GEMM else None
                for kernel in kernels
            ]

    plain = Tiled(correction=None).predict(KERNELS, find_gpu("H100"))
    corrected = Tiled(correction=Doubling()).predict(KERNELS, find_gpu("H100"))

    assert corrected[0].latency_us == pytest.approx(2 * plain[0].latency_us, abs=0.002)
    assert (corrected[0].origin, corrected[0].in_range) == ("trained", True)
    assert corrected[5] == plain[5]


def test_burst_is_faster_than_sustained() -> None:
    kernel = Kernel.gemm(8192, 8192, 8192)

    [sustained] = predict([kernel], "H100")
    [burst] = predict([kernel], "H100", "tiled_burst")

    assert burst.latency_us < sustained.latency_us
    assert (sustained.predictor, burst.predictor) == ("tiled", "tiled_burst")


def test_tf32_is_plain_fp32_where_the_gpu_has_none() -> None:
    tf32 = Kernel.gemm(512, 512, 512, dtype="float32", compute="tf32")
    fp32 = Kernel.gemm(512, 512, 512, dtype="float32")

    assert predict([tf32], "V100") == predict([fp32], "V100")
    assert predict([tf32], "A100") != predict([fp32], "A100")


class OneTime:
    """A correction that leaves the time alone and gives its interval."""

    def __init__(self, spread: float) -> None:
        self._spread = spread

    def factors(
        self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[PhysicalTime]
    ) -> list[Adjustment | None]:
        return [Adjustment(1.0, self._spread) for _ in kernels]


@pytest.mark.parametrize(("gpu", "gain"), [("P100", 1.0), ("RX 6800", 2.0), ("V100", 5.0)])
def test_products_in_16_bits_gain_what_the_units_that_take_them_do(gpu: str, gain: float) -> None:
    whole, half = (
        predict([Kernel.gemm(4096, 4096, 4096, dtype=dtype)], gpu)[0].latency_us
        for dtype in ("float32", "float16")
    )

    assert 0.7 * gain < whole / half < 1.5 * gain


@pytest.mark.parametrize(("spread", "high", "low"), [(0.25, 1.25, 0.8), (5.0, 1.9, 1 / 1.9)])
def test_the_interval_is_the_spread_to_both_sides_and_capped(
    spread: float, high: float, low: float
) -> None:
    kernel = Kernel.elementwise("add", 2**26, dtype="float32", num_inputs=2)

    [estimate] = Tiled(correction=OneTime(spread)).predict([kernel], find_gpu("H100"))

    assert estimate.high_us / estimate.latency_us == pytest.approx(high, rel=1e-4)
    assert estimate.low_us / estimate.latency_us == pytest.approx(low, rel=1e-4)


def test_no_estimate_is_shorter_than_its_flops_at_peak() -> None:
    class Hundredth(OneTime):
        def factors(
            self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[PhysicalTime]
        ) -> list[Adjustment | None]:
            return [Adjustment(0.01, 0.5) for _ in kernels]

    estimate, small = Tiled(correction=Hundredth(0.5)).predict(
        [Kernel.gemm(size, size, size) for size in (8192, 640)], find_gpu("A100")
    )

    assert estimate.latency_us == pytest.approx(2 * 8192**3 / 312e12 * 1e6, rel=1e-6)
    assert estimate.low_us == estimate.latency_us
    assert estimate.utilization == pytest.approx(1.0, rel=1e-6)
    # Of 1680.41 ns that the peak takes, whole ones are kept.
    assert (small.latency_us, small.utilization) == (1.68, 1.0)


def test_utilization_is_the_share_of_the_peak() -> None:
    kernel, gpu = Kernel.gemm(512, 512, 512), find_gpu("A100")

    [estimate] = Tiled().predict([kernel], gpu)

    assert estimate.utilization == pytest.approx(
        flop_roofline_us(kernel, gpu) / estimate.latency_us, rel=1e-6
    )


def test_a_kernel_of_the_programs_own_may_take_nine_times_as_long() -> None:
    kernel = Kernel.rows(
        KernelClass.CUSTOM,
        "own",
        2**16,
        256,
        dtype="float32",
        bytes_read=2**26,
        bytes_written=2**26,
    )

    [estimate] = Tiled().predict([kernel], find_gpu("H100"))

    assert estimate.high_us == pytest.approx(9 * estimate.latency_us, rel=1e-4)


def test_unaligned_rows_cost_more_and_are_no_measurement() -> None:
    aligned, unaligned = Tiled().predict(
        [Kernel.gemm(4096, 50304, 768), Kernel.gemm(4096, 50257, 768)], find_gpu("H100")
    )

    assert unaligned.latency_us > 1.3 * aligned.latency_us
    assert (aligned.origin, unaligned.origin) == ("trained", "physics")
    assert not unaligned.in_range
    assert unaligned.high_us / unaligned.latency_us == pytest.approx(1.4, rel=1e-5)
    assert unaligned.latency_us / unaligned.low_us == pytest.approx(1.4, rel=1e-5)


def test_what_is_kept_for_one_gpu_is_not_given_for_another() -> None:
    tiled, kernel = Tiled(), Kernel.gemm(4096, 4096, 4096)

    [first] = tiled.predict([kernel], find_gpu("H100"))
    [second] = tiled.predict([kernel], find_gpu("A100"))

    assert second.latency_us > 1.5 * first.latency_us


@pytest.mark.parametrize(("most", "priced"), [(1, 4), (3, 3)])
def test_estimates_are_kept_until_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, most: int, priced: int
) -> None:
    """Two products, another, the first again: priced again where the store was emptied."""
    asked: list[Kernel] = []

    class Counting(Tiled):
        def timings(self, kernels: Sequence[Kernel], gpu: GPU) -> list[PhysicalTime]:
            asked.extend(kernels)
            return super().timings(kernels, gpu)

    monkeypatch.setattr("neusight.predictors.tiled._MOST_KEPT", most)
    predictor, gpu = Counting(), find_gpu("H100")
    first, second, third = (Kernel.gemm(size, size, size) for size in (64, 128, 256))

    for kernels in ([first, second], [third], [first]):
        predictor.predict(kernels, gpu)

    assert len(asked) == priced


@pytest.mark.parametrize(("num_kept", "left"), [(500_000, 500_001), (500_001, 1)])
def test_half_a_million_estimates_are_kept(num_kept: int, left: int) -> None:
    tiled, gpu = Tiled(), find_gpu("H100")
    kept: dict[object, object] = dict.fromkeys(range(num_kept))
    tiled._kept[gpu.fingerprint] = kept  # type: ignore[assignment]

    tiled.predict([Kernel.gemm(64, 64, 64)], gpu)

    assert len(kept) == left
