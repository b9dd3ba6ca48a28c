"""The physics of matrix products: bounds, monotony, strange sizes, accuracy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, Layout
from neusight.predictors.physics.attention import attention_timing
from neusight.predictors.physics.gemm import (
    CONSTANTS,
    GemmTerms,
    bias_us,
    gemm_terms,
    gemm_timings,
    is_unaligned,
    problems_of,
)
from neusight.predictors.physics.power import filled_in
from neusight.predictors.physics.roofline import flop_roofline_us, roofline_us
from neusight.predictors.physics.tile import Candidates
from neusight.predictors.registry import predict
from places import SHARED

SIZES = st.one_of(st.integers(0, 300), st.integers(0, 20_000), st.integers(0, 2**33))
GPUS = st.sampled_from(["H100", "A100", "V100", "L40S", "P4", "MI210", "B200"])
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "float64"])
LAYOUTS = st.sampled_from(["nt", "nn", "tn"])


def time_us(name: str, dtype: str, layout: Layout, batch: int, m: int, n: int, k: int) -> float:
    kernel = Kernel.gemm(m, n, k, batch=batch, dtype=dtype, layout=layout)
    [timing] = gemm_timings([kernel], find_gpu(name), sustained=False)
    return timing.time_us


@settings(max_examples=300)
@given(
    GPUS, DTYPES, LAYOUTS, st.tuples(st.integers(2, 64), SIZES, SIZES, SIZES),
    st.integers(0, 3), st.one_of(st.integers(1, 200), st.integers(1, 10**6)),
)  # fmt: skip
def test_more_work_is_never_faster(
    name: str, dtype: str, layout: Layout, size: tuple[int, ...], axis: int, more: int
) -> None:
    larger = list(size)
    larger[axis] += more

    before = time_us(name, dtype, layout, *size)
    after = time_us(name, dtype, layout, *larger)

    assert after >= before * (1 - 1e-9)


@settings(max_examples=200)
@given(GPUS, DTYPES, LAYOUTS, SIZES, SIZES, SIZES)
def test_finite_positive_and_above_the_flop_bound(
    name: str, dtype: str, layout: Layout, m: int, n: int, k: int
) -> None:
    kernel = Kernel.gemm(m, n, k, dtype=dtype, layout=layout)

    [timing] = gemm_timings([kernel], find_gpu(name), sustained=False)

    assert math.isfinite(timing.time_us)
    assert timing.time_us >= find_gpu(name).floor_us * 0.5
    assert timing.time_us >= flop_roofline_us(kernel, find_gpu(name))
    if kernel.num_bytes > 4 * find_gpu(name).l2_bytes:  # beyond the L2 the bytes bind too
        assert timing.time_us >= roofline_us(kernel, find_gpu(name))


def test_a_batch_of_two_is_not_faster_than_one() -> None:
    assert time_us("H100", "bfloat16", "nn", 2, 512, 512, 512) >= time_us(
        "H100", "bfloat16", "nn", 1, 512, 512, 512
    )


def test_a_deep_product_of_a_small_result_splits_k() -> None:
    [timing] = gemm_timings([Kernel.gemm(128, 128, 65536)], find_gpu("H100"), sustained=False)

    assert timing.split_k > 1
    assert timing.num_ctas > 1


def test_fp8_is_faster_than_bf16_and_fp32_slower() -> None:
    times = [
        gemm_timings(
            [Kernel.gemm(8192, 8192, 8192, dtype=dtype)], find_gpu("H100"), sustained=False
        )[0]
        for dtype in ("float8_e4m3fn", "bfloat16", "float32")
    ]
    tf32 = Kernel.gemm(8192, 8192, 8192, dtype="float32", compute="tf32")
    [tf32_timing] = gemm_timings([tf32], find_gpu("H100"), sustained=False)

    assert times[0].time_us < times[1].time_us < tf32_timing.time_us < times[2].time_us


def test_sustained_clocks_slow_large_products_only() -> None:
    def ratio(size: int) -> float:
        kernels = [Kernel.gemm(size, size, size)]
        [burst] = gemm_timings(kernels, find_gpu("H200"), sustained=False)
        [sustained] = gemm_timings(kernels, find_gpu("H200"), sustained=True)
        return sustained.time_us / burst.time_us

    assert ratio(8192) == pytest.approx(1 / 0.88, abs=0.02)
    assert ratio(64) < 1.03


@pytest.mark.skipif(not (SHARED / "data/modern/gemm.parquet").exists(), reason="no measured data")
@pytest.mark.parametrize(("name", "limit"), [("h100_sxm", 0.12), ("a100_sxm", 0.14)])
def test_measured_bf16_products_are_met(name: str, limit: float) -> None:
    pandas = pytest.importorskip("pandas")
    columns = ["gpu", "dtype", "m", "n", "k", "consensus_us", "primary", "clock_regime"]
    filters = [("gpu", "==", name), ("dtype", "==", "bf16"), ("clock_regime", "==", "burst")]
    path = SHARED / "data/modern/gemm.parquet"
    rows = pandas.read_parquet(path, columns=columns, filters=filters)
    rows = rows[rows.primary & rows.consensus_us.notna()].sample(500, random_state=0)
    kernels = [Kernel.gemm(int(row.m), int(row.n), int(row.k)) for row in rows.itertuples()]

    timings = gemm_timings(kernels, find_gpu(name), sustained=False)

    errors = [
        abs(timing.time_us / measured - 1)
        for timing, measured in zip(timings, rows.consensus_us, strict=True)
    ]
    assert sum(errors) / len(errors) < limit


def test_batched_fp32_products_take_the_one_tile_of_their_library() -> None:
    kernels = [
        Kernel.gemm(40, 40, 512, batch=batch, dtype="float32", layout="nn") for batch in (1, 64)
    ]

    single, batched = gemm_timings(kernels, find_gpu("A100"), sustained=False)

    assert single.tile != (128, 128)
    assert (batched.tile, batched.split_k) == ((128, 128), 1)


def test_the_fp32_share_of_peak_is_the_sustained_one_already() -> None:
    kernel = Kernel.gemm(8192, 8192, 8192, dtype="float32")

    burst, sustained = (
        gemm_timings([kernel], find_gpu("A100"), sustained=sustained)[0]
        for sustained in (False, True)
    )

    assert burst.time_us == sustained.time_us


@pytest.mark.parametrize(
    ("layout", "size", "expected"),
    [
        ("nt", (77, 50304, 768), False),
        ("nt", (77, 50257, 768), True),
        ("nt", (77, 50304, 767), True),
        ("nn", (77, 768, 50257), True),
        ("tn", (50257, 768, 4096), True),
        ("tn", (768, 3072, 77), False),
    ],
)
def test_rows_that_start_between_sixteen_bytes_are_unaligned(
    layout: Layout, size: tuple[int, int, int], expected: bool
) -> None:
    kernel = Kernel.gemm(*size, layout=layout)

    assert is_unaligned(kernel, find_gpu("H100")) is expected
    assert not is_unaligned(Kernel.gemm(*size, layout=layout, dtype="float32"), find_gpu("H100"))


def test_padding_a_vocabulary_pays_and_its_price_is_no_measurement() -> None:
    odd, padded = predict([Kernel.gemm(8192, n, 768) for n in (50257, 50304)], "A100")

    assert odd.latency_us > 1.5 * padded.latency_us
    assert (odd.origin, padded.origin) == ("physics", "trained")
    assert odd.high_us / odd.latency_us > padded.high_us / padded.latency_us


#: A GPU of round numbers: 100 SMs at 1 GHz.
ROUND = replace(
    find_gpu("H100"),
    num_sms=100,
    boost_clock_mhz=1000.0,
    peak_tflops={"fp64": 1.0, "fp32": 1.0, "bf16": 100.0},
)


def terms_of(kernel: Kernel, tile: tuple[int, int], split: int, **constants: Any) -> GemmTerms:
    """The terms of one product under one tile on the round GPU."""
    tiles = Candidates(*(np.array([[float(part)]]) for part in (*tile, split)))
    return gemm_terms(
        problems_of([kernel], ROUND),
        tiles,
        ROUND,
        "bf16",
        constants=CONSTANTS._replace(**constants),
    )


def test_each_part_of_a_split_writes_and_reads_four_bytes_a_sum() -> None:
    terms = terms_of(Kernel.gemm(200, 300, 4096), (128, 128), 4, split_clocks=0.0, l2_bytes=10.0)

    num_bytes = 200 * 300 * 4 * (4 + 4)
    assert terms.split_us[0, 0] == pytest.approx(num_bytes / (10.0 * 1000.0 * 100))


def test_a_product_that_is_not_split_adds_nothing_up() -> None:
    assert terms_of(Kernel.gemm(200, 300, 4096), (128, 128), 1).split_us[0, 0] == 0.0


def test_a_wave_of_hipblaslt_writes_its_tiles_when_it_has_computed_them() -> None:
    # 8192 x 2432 of data/profiled_kernels: about 11 us of each wave do not depend on K.
    gpu = find_gpu("MI300X")
    long, short = (
        gemm_timings([Kernel.gemm(8192, 2432, k)], gpu, sustained=False)[0] for k in (9728, 2432)
    )
    assert long.tile == short.tile
    slope = (long.time_us - short.time_us) / (9728 - 2432)
    rest = (short.time_us - 2432 * slope - gpu.floor_us) / short.num_waves
    assert 5.0 < rest < 13.0


def test_waves_of_a_product_are_its_ctas_over_the_sms() -> None:
    terms = terms_of(Kernel.gemm(1000, 2000, 64), (128, 256), 2, tail_cost=0.0)

    assert terms.waves[0, 0] == 8 * 8 * 2 / 100


def test_loads_of_a_product_fill_each_tile_from_both_operands() -> None:
    terms = terms_of(Kernel.gemm(256, 256, 640), (128, 256), 1, l2_bytes=10.0)

    assert terms.l2_us[0, 0] == pytest.approx(2 * (128 + 256) * 640 * 2 / (10.0 * 1000.0 * 100))


def test_small_products_are_less_sure_than_large_ones_and_attention_than_either() -> None:
    small, large = gemm_timings(
        [Kernel.gemm(64, 64, 64), Kernel.gemm(8192, 8192, 8192)], find_gpu("H100"), sustained=False
    )
    forward, backward = (
        attention_timing(
            Kernel.attention(
                8, 16, 16, 2048, 2048, 64, causal=True, dtype="bfloat16", backward=backward
            ),
            find_gpu("H100"),
            sustained=False,
        )
        for backward in (False, True)
    )

    assert 0.1 < large.spread < small.spread <= forward.spread < backward.spread < 1.0


def test_a_short_k_leaves_arithmetic_and_memory_one_after_the_other() -> None:
    """FP32 with K of 64: 2.7 ms of arithmetic and 1.4 of DRAM are measured as 4.1 on H100."""
    gpu = filled_in(find_gpu("H100"))
    kernel = Kernel.gemm(32768, 32768, 64, dtype="float32", layout="nn")

    [timing] = gemm_timings([kernel], gpu, sustained=False)

    arithmetic_us = kernel.flops / (gpu.peak_flops("fp32") * gpu.fp32_gemm_utilization) * 1e6
    dram_us = kernel.num_bytes / (gpu.bandwidth_gbps * gpu.bandwidth_utilization * 1e3)
    assert max(arithmetic_us, dram_us) + 0.5 * min(arithmetic_us, dram_us) < timing.time_us
    assert timing.time_us < 1.3 * (arithmetic_us + dram_us)


def test_a_long_k_keeps_all_multiprocessors_busy() -> None:
    """K of 524288 with 256 x 256 results runs at the rate of a large product (53 TF/s)."""
    gpu = find_gpu("H100")
    long, square = gemm_timings(
        [
            Kernel.gemm(256, 256, 524288, dtype="float32", layout="nn"),
            Kernel.gemm(4096, 4096, 2048, dtype="float32", layout="nn"),
        ],
        gpu,
        sustained=False,
    )

    assert long.time_us < 1.5 * square.time_us


def test_a_matrix_times_a_vector_streams_the_matrix() -> None:
    gpu = find_gpu("A100")
    kernel = Kernel.gemm(2048, 1, 1 << 20, dtype="float32", layout="nn")

    [timing] = gemm_timings([kernel], gpu, sustained=False)

    stream_us = kernel.num_bytes / (gpu.bandwidth_gbps * gpu.bandwidth_utilization * 1e3)
    assert stream_us < timing.time_us < 1.3 * stream_us
    assert timing.bound == "memory"


@pytest.mark.parametrize(("layout", "batch"), [("nt", 1), ("nn", 64)])
def test_fp32_of_a_transposed_operand_or_a_batch_takes_what_the_gpu_says(
    layout: Layout, batch: int
) -> None:
    kernel = Kernel.gemm(4096, 4096, 4096, batch=batch, dtype="float32", layout=layout)
    even = replace(find_gpu("L40S"), fp32_nt_share=1.0)
    half = replace(even, fp32_nt_share=0.5)

    [fast], [slow] = (gemm_timings([kernel], gpu, sustained=False) for gpu in (even, half))

    assert 1.8 * fast.time_us < slow.time_us < 2.2 * fast.time_us


def test_batched_fp32_products_take_narrower_tiles_for_narrow_results_from_hopper_on() -> None:
    kernels = [
        Kernel.gemm(m, n, 64, batch=4096, dtype="float32", layout="nn")
        for m, n in ((512, 32), (64, 512), (64, 64), (65, 65))
    ]

    tiles = [timing.tile for timing in gemm_timings(kernels, find_gpu("H100"), sustained=False)]

    assert tiles == [(128, 64), (64, 128), (64, 64), (128, 128)]


def test_small_matrices_of_a_batch_take_no_tile_far_larger_than_they_are() -> None:
    """8 x 8 x 64, 4096 times: 17 MB, no 128 x 128 tile each."""
    kernel = Kernel.gemm(8, 8, 64, batch=4096, dtype="float32", layout="nn")

    [timing] = gemm_timings([kernel], find_gpu("H100"), sustained=False)

    assert timing.tile == (32, 32)
    assert timing.time_us < 50.0


def test_a_bias_costs_small_products_on_hopper_some_microseconds() -> None:
    """addmm of 5 x 768 x 768 takes 6.6 µs on H100, mm of 1 x 768 x 768 takes 3.7."""
    gpu = find_gpu("H100")
    biased = Kernel.gemm(5, 768, 768, bias=True)

    assert 2.0 < bias_us(biased, gpu, num_waves=0.1) < 3.0
    assert bias_us(biased, gpu, num_waves=20.0) < 0.2
    assert bias_us(Kernel.gemm(5, 768, 768), gpu, num_waves=0.1) == 0.0
    for other in ("A100", "MI300X"):  # an MI300X is gfx94x, which is no Hopper
        assert bias_us(biased, find_gpu(other), num_waves=0.1) == 0.0
    with_bias, without = predict([biased, Kernel.gemm(5, 768, 768)], gpu)
    assert with_bias.latency_us > without.latency_us + 2.0


@pytest.mark.parametrize(
    ("layout", "m", "n", "k", "measured_us"),
    [
        ("nt", 8192, 50257, 768, 6576.3),
        ("nn", 8192, 768, 50257, 4457.0),
        ("tn", 50257, 768, 8192, 4219.6),
        ("tn", 1488, 947, 1375, 51.0),
        ("tn", 2054, 203, 1591, 20.7),
        ("nt", 1576, 30522, 1024, 406.8),
    ],
)
def test_unaligned_rows_of_16_bits_run_on_older_kernels_on_hopper(
    layout: Layout, m: int, n: int, k: int, measured_us: float
) -> None:
    """benchmarks/measured/h100: cutlass_75_tensorop_..._align1, and _80_..._align2 for 30522."""
    kernel = Kernel.gemm(m, n, k, layout=layout)
    [estimate] = predict([kernel], "H100", "tiled_burst")

    assert estimate.latency_us == pytest.approx(measured_us, rel=0.2)
    assert estimate.low_us < measured_us < estimate.high_us


def test_tf32_wants_its_operands_along_k_on_hopper() -> None:
    def found(gpu: str, layout: Layout) -> float:
        kernel = Kernel.gemm(4096, 4096, 4096, dtype="float32", compute="tf32", layout=layout)
        [timing] = gemm_timings([kernel], find_gpu(gpu), sustained=False)
        return timing.time_us

    assert found("H100", "tn") / found("H100", "nt") == pytest.approx(617.3 / 405.1, rel=0.1)
    assert found("H100", "nn") / found("H100", "nt") == pytest.approx(425.6 / 405.1, rel=0.15)
    assert found("A100", "tn") == pytest.approx(found("A100", "nt"), rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "name", "rows", "n", "k", "measured_us"),
    [
        ("float8_e4m3fn", "scaled_gemm_outer", 16, 28672, 8192, 99.6),
        ("float8_e4m3fn", "scaled_gemm_outer", 1, 28672, 8192, 102.1),
        ("float8_e4m3fn", "scaled_gemm_outer", 1024, 4096, 14336, 97.2),
        ("int8", "gemm", 256, 4096, 14336, 66.2),
        ("int8", "gemm", 256, 28672, 8192, 151.9),
    ],
)
def test_hopper_multiplies_eight_bits_by_tiles_of_one_size(
    dtype: str, name: str, rows: int, n: int, k: int, measured_us: float
) -> None:
    """`scaled_mm_rowwise` and `int_mm` of benchmarks/measured/h100; their constants were read
    off other rows, that tiles come in waves was seen on the last two."""
    out = "bfloat16" if dtype != "int8" else "int32"
    kernel = Kernel.gemm(rows, n, k, dtype=dtype, out_dtype=out, name=name)

    [estimate] = predict([kernel], "H100")

    assert estimate.latency_us == pytest.approx(measured_us, rel=0.15)
