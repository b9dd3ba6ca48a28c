"""Products whose weight is unpacked inside the kernel: bytes of the packed weight, bounds, rows."""

from __future__ import annotations

import itertools

import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, Variant
from neusight.predictors.physics.gemm import gemm_timings, problems_of
from neusight.predictors.predictor import Estimate
from neusight.predictors.registry import find_predictor
from neusight.predictors.tiled import Tiled

GPUS = ("H100", "A100", "L4", "B200", "T4", "RTX 3090")
VARIANTS: tuple[Variant, ...] = ("packed_tiles", "packed_16_rows", "packed_rows")
N, K = 28672, 8192


def quantized(m: int, share: float, variant: Variant, *, n: int = N, k: int = K) -> Kernel:
    """A product whose weight has `share` bytes an element, and scales of groups of 128."""
    weight_bytes = int(n * k * (share + 2 / 128))
    return Kernel.gemm(m, n, k, dtype="float16", weight_bytes=weight_bytes, variant=variant)


def price(kernel: Kernel, gpu: str) -> Estimate:
    [estimate] = find_predictor("tiled").predict([kernel], find_gpu(gpu))
    return estimate


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("variant", ["packed_tiles", "packed_rows"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_one_row_takes_as_long_as_its_packed_weight_streams(
    gpu: str, variant: Variant, share: float
) -> None:
    kernel = quantized(1, share, variant)
    device = find_gpu(gpu)
    bound_us = kernel.num_bytes / (device.bandwidth_gbps * 1e3 * device.bandwidth_utilization)

    estimate = price(kernel, gpu)

    assert estimate.latency_us == pytest.approx(bound_us, rel=0.15)
    assert (estimate.bound, estimate.origin, estimate.in_range) == ("memory", "physics", False)


def test_a_smaller_weight_is_unpacked_in_the_kernel_without_being_named_so() -> None:
    unnamed = quantized(1, 0.5, "")

    assert unnamed == quantized(1, 0.5, "packed_tiles")
    assert price(unnamed, "H100").origin == "physics"


def test_a_larger_weight_as_of_several_adapters_is_not_unpacked() -> None:
    assert Kernel.gemm(1, 64, 4096, dtype="bfloat16", weight_bytes=64 * 4096 * 2 * 8).variant == ""


@pytest.mark.parametrize("gpu", ["A100", "H100", "L4", "B200", "RTX 3090"])
def test_tinygemm_waits_for_its_loads_where_the_dram_is_fast(gpu: str) -> None:
    device, n, k = find_gpu(gpu), 11008, 4096
    kernel = Kernel.gemm(1, n, k, dtype="bfloat16", weight_bytes=n * k // 2 + n * k // 16,
                         variant="packed_16_rows")  # fmt: skip
    bound_us = kernel.num_bytes / (device.bandwidth_gbps * 1e3 * device.bandwidth_utilization)
    waits = n / 8 / (2 * device.num_sms) * (k / 1024)  # CTAs of 8 columns, two on an SM, by turns
    waiting_us = waits * 1040 * 1e6 / device.clock_hz

    estimate = price(kernel, gpu)

    assert estimate.latency_us >= 0.95 * max(bound_us, waiting_us)
    assert estimate.latency_us <= bound_us + waiting_us + device.floor_us
    assert estimate.bound == "memory"


@pytest.mark.parametrize("gpu", GPUS)
def test_fewer_bits_are_faster_for_one_row(gpu: str) -> None:
    dense = price(Kernel.gemm(1, 14336, 4096, dtype="float16"), gpu).latency_us
    eight, four = (
        price(quantized(1, share, "packed_tiles", n=14336, k=4096), gpu).latency_us
        for share in (1.0, 0.5)
    )

    assert 1.6 < dense / eight < 2.6
    assert 1.5 < eight / four < 2.1


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("m", [512, 4096])
def test_many_rows_are_not_faster_than_a_plain_product(gpu: str, variant: Variant, m: int) -> None:
    physics, device = Tiled(correction=None), find_gpu(gpu)
    kernels = [Kernel.gemm(m, N, K, dtype="float16"), quantized(m, 0.5, variant)]

    plain, packed = physics.predict(kernels, device)

    assert packed.latency_us >= plain.latency_us


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_more_rows_are_never_faster(gpu: str, variant: Variant) -> None:
    rows = (1, 2, 8, 16, 17, 32, 64, 65, 128, 129, 500, 4096, 16384)
    kernels = [quantized(m, 0.5, variant) for m in rows]

    times = [timing.time_us for timing in gemm_timings(kernels, find_gpu(gpu), sustained=False)]

    assert all(before <= after for before, after in itertools.pairwise(times))


def test_the_weight_counts_what_it_holds() -> None:
    kernel = quantized(16, 0.5, "packed_tiles")

    problems = problems_of([kernel], find_gpu("H100"))

    assert problems.weight_bytes.item() == int(N * K * (0.5 + 2 / 128))
    assert problems.activation_bytes.item() == 16 * (K + N) * 2


def test_two_operands_of_four_bits_are_half_a_byte_an_element_and_untrained() -> None:
    kernel = Kernel.gemm(
        128, 4096, 4096, dtype="float4_e2m1fn_x2", out_dtype="bfloat16", compute="fp8"
    )

    problems = problems_of([kernel], find_gpu("B200"))

    assert problems.weight_bytes.item() == 4096 * 4096 // 2
    assert price(kernel, "B200").origin == "physics"


@pytest.mark.parametrize(
    ("rows", "n", "k", "measured_us"),
    [
        (4, 14336, 4096, 25.9),
        (8, 14336, 4096, 40.9),
        (16, 4096, 14336, 67.9),
        (32, 6144, 4096, 63.1),
        (256, 4096, 4096, 300.9),
    ],
)
def test_tinygemm_takes_longer_with_every_row(
    rows: int, n: int, k: int, measured_us: float
) -> None:
    """An H100 (`int4pack_mm` of benchmarks/measured/h100); no constant was read off these rows."""
    kernel = Kernel.gemm(rows, n, k, dtype="bfloat16", weight_bytes=n * k // 2 + n * k // 32,
                         variant="packed_16_rows")  # fmt: skip

    assert price(kernel, "H100").latency_us == pytest.approx(measured_us, rel=0.2)


@pytest.mark.parametrize(
    ("rows", "n", "k", "measured_us"), [(1, 4096, 14336, 545.4), (16, 128256, 4096, 17992.0)]
)
def test_eight_bits_are_multiplied_by_a_thread_an_output(
    rows: int, n: int, k: int, measured_us: float
) -> None:
    """An H100 (`int8pack_mm`, weight_int8pack_mm_kernel)."""
    kernel = Kernel.gemm(rows, n, k, dtype="float32", weight_bytes=n * k, variant="packed_outputs")

    assert price(kernel, "H100").latency_us == pytest.approx(measured_us, rel=0.1)
