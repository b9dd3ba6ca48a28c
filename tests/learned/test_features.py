"""What the corrections see of a kernel: each column's name, and what stands below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from neusight.predictors import GPU, Kernel, KernelClass, Tiled, find_gpu
from neusight.predictors.kernel import ConvolutionSize
from neusight.predictors.learned.convolutions import (
    CONVOLUTION_FEATURES,
    HOPPER_FEATURES,
    MIOPEN_FEATURES,
)
from neusight.predictors.learned.correction import FAMILIES
from neusight.predictors.learned.features import (
    ATTENTION_FEATURES,
    BLOCK_SCALED,
    BY_ROW,
    COLLECTIVE_FEATURES,
    FP32_GEMM_FEATURES,
    GEMM_FEATURES,
    QUANTISATION_FEATURES,
    ROW_FEATURES,
    Features,
)
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.power import filled_in

#: A GPU of round numbers: 100 SMs at 1 GHz, 1 TB/s of 1.25, 100 GB/s a link.
ROUND = replace(
    find_gpu("H100"),
    name="round",
    num_sms=100,
    boost_clock_mhz=1000.0,
    bandwidth_gbps=1250.0,
    bandwidth_utilization=0.8,
    gemm_utilization=0.5,
    l2_bytes=2**20,
    floor_us=2.0,
    link_gbps=100.0,
    link_floor_us=10.0,
    peak_tflops={"fp64": 1.0, "fp32": 1.0, "bf16": 1.0},
)


def columns_of(
    features: Features[Any], kernel: Kernel, time: PhysicalTime, gpu: GPU = ROUND
) -> dict[str, float]:
    """A kernel's features by their names; logarithms as the figures they are of."""
    [row] = features.table([kernel], [time], gpu).tolist()
    return {
        name.removeprefix("log_"): math.exp(value) if name.startswith("log_") else value
        for name, value in zip(features.names, row, strict=True)
    }


def time_of(
    time_us: float, *, tile: tuple[int, int] | None = None, split_k: int = 1
) -> PhysicalTime:
    return PhysicalTime(time_us, "compute", 0.2, tile=tile, split_k=split_k)


def about(**expected: float) -> dict[str, Any]:
    return {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def chosen(found: dict[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: found[name] for name in names}


def test_a_products_size_remainders_and_tile() -> None:
    kernel = Kernel.gemm(100, 300, 72)

    found = columns_of(GEMM_FEATURES, kernel, time_of(50.0, tile=(128, 256), split_k=4))

    expected = about(
        m=100, n=300, k=72,
        m_mod_8=4 / 8, m_mod_64=36 / 64, m_mod_128=100 / 128,
        n_mod_8=4 / 8, n_mod_64=44 / 64, n_mod_256=44 / 256,
        k_mod_8=0.0, k_mod_64=8 / 64,
        tile_m=128, tile_n=256, split=4,
        fill_m=100 / 128, fill_n=300 / 512,
        waves=8 / 100, wave_fill=8 / 100,
        block_scaled=0.0,
    )  # fmt: skip
    assert chosen(found, list(expected)) == expected


def test_a_products_bytes_by_the_l2() -> None:
    found = columns_of(GEMM_FEATURES, Kernel.gemm(256, 512, 1024), time_of(50.0))

    weights, activations = 512 * 1024 * 2, 256 * 1024 * 2 + 256 * 512 * 2
    expected = about(
        weights_per_l2=weights / 2**20,
        activations_per_l2=activations / 2**20,
        footprint_per_l2=(weights + activations) / 2**20,
    )
    assert chosen(found, list(expected)) == expected


def test_a_weight_gradient_looks_like_the_products_that_were_measured() -> None:
    forward = Kernel.gemm(1024, 4096, 2048, layout="nt")
    gradient = Kernel.gemm(1024, 4096, 2048, layout="tn")
    time = time_of(50.0, tile=(128, 128))

    assert columns_of(GEMM_FEATURES, gradient, time) == columns_of(GEMM_FEATURES, forward, time)


def test_probed_tiles_have_columns_of_their_own() -> None:
    found = columns_of(GEMM_FEATURES, Kernel.gemm(1000, 1000, 64), time_of(50.0, tile=(128, 128)))

    expected = about(
        waves_128x128=0.64, waves_128x256=0.32, waves_256x128=0.32, waves_64x64=2.56,
        wave_fill_64x64=2.56 / 3, time_128x128=1.0,
    )  # fmt: skip
    assert chosen(found, list(expected)) == expected
    assert found["time_64x64"] != pytest.approx(1.0, rel=1e-3)


def test_block_scaled_products_say_so() -> None:
    kernel = Kernel.gemm(64, 64, 64, name=BLOCK_SCALED)

    assert columns_of(GEMM_FEATURES, kernel, time_of(5.0))["block_scaled"] == 1.0


def test_a_batch_of_products_says_so() -> None:
    found = [
        columns_of(
            FP32_GEMM_FEATURES, Kernel.gemm(64, 64, 64, batch=batch, dtype="float32"), time_of(5.0)
        )
        for batch in (1, 2, 12)
    ]

    assert [chosen(item, ["batch", "is_batched"]) for item in found] == [
        about(batch=1, is_batched=0.0), about(batch=2, is_batched=1.0),
        about(batch=12, is_batched=1.0),
    ]  # fmt: skip


def test_a_convolution_has_its_sizes_its_product_and_its_bounds() -> None:
    size = ConvolutionSize(2, 12, 20, 1, (8, 8), (4, 4), (3, 3), (2, 2), "forward")
    kernel = Kernel.convolution(size, dtype="float32", compute="fp32", variant="fastest")

    found = columns_of(CONVOLUTION_FEATURES, kernel, time_of(10.0))

    flops, moved = 2 * 2 * 20 * 12 * 16 * 9, 4 * (2 * 12 * 64 + 12 * 20 * 9 + 2 * 20 * 16)
    compute_us = flops / 1e6 / filled_in(ROUND).fp32_gemm_utilization
    bound_us = 2.0 + math.hypot(compute_us, moved / 1.25e6)
    expected = about(
        m=2 * 16, n=20, k=12 * 9,
        batch=2, in_channels=12, out_channels=20,
        input_depth=1, input_height=8, output_width=4, taps_height=3, stride_width=2, padding=2,
        in_channels_mod_8=4 / 8, out_channels_mod_8=4 / 8, is_3x3=1.0, is_point=0.0,
        is_forward=1.0, is_weight_gradient=0.0, is_fastest=1.0, is_volta=0.0, is_newer=1.0,
        waves_32=1 / 100, wave_fill_32=1 / 100,
        footprint_per_l2=moved / 2**20,
        matrix_share=compute_us / bound_us, dram_share=moved / 1.25e6 / bound_us,
        floor_share=2.0 / bound_us, physics_share=10.0 / bound_us,
    )  # fmt: skip
    assert chosen(found, list(expected)) == expected


def test_miopens_convolutions_say_groups_layout_and_dimensions() -> None:
    size = ConvolutionSize(
        2, 12, 12, 12, (6, 8, 8), (6, 8, 8), (3, 3, 3), (1, 1, 1), "data_gradient"
    )
    kernel = Kernel.convolution(size, dtype="float16", layout="channels_last", variant="dilated")

    found = columns_of(MIOPEN_FEATURES, kernel, time_of(10.0), find_gpu("MI210"))

    expected = about(
        in_channels=1, out_channels=1, groups=12, input_depth=6, taps_depth=3,
        is_depthwise=1.0, is_volume=1.0, is_dilated=1.0, is_channels_last=1.0, is_fp16=1.0,
        is_bf16=0.0, is_data_gradient=1.0, is_cdna_2=1.0, is_rdna=0.0,
    )  # fmt: skip
    assert chosen(found, list(expected)) == expected


def test_hoppers_convolutions_say_whether_planes_fill_vectors() -> None:
    size = ConvolutionSize(2, 12, 12, 1, (17, 17), (17, 17), (1, 1), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float16")

    found = columns_of(HOPPER_FEATURES, kernel, time_of(10.0))

    expected = {"pixels_mod_4": 289 % 4 / 4, "pixels_mod_8": 289 % 8 / 8, "is_fp16": 1.0}
    assert chosen(found, list(expected)) == expected


def rows_kernel(kernel_class: KernelClass, name: str, rows: int, width: int) -> Kernel:
    return Kernel.rows(
        kernel_class, name, rows, width, dtype="float32",
        bytes_read=4 * rows * width, bytes_written=rows * width,
    )  # fmt: skip


def test_a_quantisations_rows_bytes_and_shares() -> None:
    kernel = rows_kernel(KernelClass.NORMALIZATION, BY_ROW, 250, 768)

    found = columns_of(QUANTISATION_FEATURES, kernel, time_of(20.0))

    moved = 5 * 250 * 768
    assert found == about(
        rows=250, width=768, width_mod_512=256 / 512,
        rows_per_sm=2.5, rows_fill=2.5 / 3,
        bytes_per_l2=moved / 2**20, floor_share=2.0 / 20.0, dram_share=moved / 1e6 / 20.0,
        row_share=2.5 * 4 * 768 / 24_000 / 20.0,
        by_row=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kernel_class", "width", "is_softmax", "is_narrow", "width_mod_4"),
    [(KernelClass.SOFTMAX, 1024, 1.0, 1.0, 1.0), (KernelClass.NORMALIZATION, 1025, 0.0, 0.0, 0.0)],
)
def test_rows_are_distinguished_by_class_and_width(
    kernel_class: KernelClass,
    width: int,
    is_softmax: float,
    is_narrow: float,
    width_mod_4: float,
) -> None:
    kernel = rows_kernel(kernel_class, kernel_class.value, 50, width)

    found = columns_of(ROW_FEATURES, kernel, time_of(20.0))

    assert found == about(
        rows=50, width=width, width_mod_4=width_mod_4, is_narrow=is_narrow,
        rows_per_sm=0.5, rows_fill=0.5,
        bytes_per_l2=5 * 50 * width / 2**20, floor_share=0.1, dram_share=5 * 50 * width / 1e6 / 20,
        row_share=4 * width / 24_000 / 20.0,
        is_softmax=is_softmax,
    )  # fmt: skip


def test_an_attentions_sizes_tiles_and_shares() -> None:
    kernel = Kernel.attention(2, 16, 4, 290, 600, 160, causal=True, dtype="bfloat16")

    found = columns_of(ATTENTION_FEATURES, kernel, time_of(40.0, split_k=2))

    assert found == about(
        batch=2, heads=16, group=4, seq_q=290, seq_kv=600, head_dim=160,
        head_dim_fill=160 / 192, causal=1.0,
        seq_q_fill_64=290 / 320, seq_q_fill_128=290 / 384, seq_kv_fill_128=600 / 640,
        tiles_per_sm=0.96, tiles_fill=0.96, units_per_sm=0.08, units_fill=0.08, split=2,
        bytes_per_l2=kernel.num_bytes / 2**20,
        floor_share=2.0 / 40.0,
        matrix_share=kernel.flops / 0.5e6 / 40.0,
        exponential_share=kernel.flops / (4 * 160) / (16 * 1000 * 100) / 40.0,
        dram_share=kernel.num_bytes / 1e6 / 40.0,
        serial_share=600 * 128 * 4 * 160 / 5000.0 / 40.0,
    )  # fmt: skip


def test_a_collectives_ranks_bytes_and_shares() -> None:
    kernel = Kernel.collective("all_gather", 8_000_000, 8, dtype="int8")

    found = columns_of(COLLECTIVE_FEATURES, kernel, time_of(100.0))

    wire_us = 7_000_000 / 100e3
    assert found == about(
        ranks=8, wire_per_floor=wire_us / 10.0, bytes=8e6, bytes_per_rank=1e6,
        wire_share=wire_us / 100.0, floor_share=10.0 / 100.0, is_8_bit=1.0,
        is_all_reduce=0.0, is_all_gather=1.0, is_reduce_scatter=0.0, is_all_to_all=0.0,
    )  # fmt: skip


def test_terms_that_are_as_good_as_nothing_have_a_least_share() -> None:
    kernel = Kernel.collective("all_reduce", 1, 2)

    assert columns_of(COLLECTIVE_FEATURES, kernel, time_of(1e6))["wire_share"] == pytest.approx(
        1e-3
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_family_has_a_name_twice(family: str) -> None:
    names = FAMILIES[family].names

    assert len(set(names)) == len(names)


def test_features_of_extreme_products_are_finite() -> None:
    kernels = [Kernel.gemm(1, 1, 1), Kernel.gemm(2**31, 8, 8), Kernel.gemm(77, 4096, 65536)]
    times = Tiled(correction=None).timings(kernels, find_gpu("B200"))

    table = GEMM_FEATURES.table(kernels, times, find_gpu("B200"))

    assert table.shape == (3, len(GEMM_FEATURES.names))
    assert all(math.isfinite(value) for value in table.ravel())
