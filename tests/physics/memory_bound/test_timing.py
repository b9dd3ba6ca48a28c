"""The physics of kernels that move bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from priced_kernels import moving

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, Layout, Variant
from neusight.predictors.physics.memory_bound.kinds import kind_of
from neusight.predictors.physics.memory_bound.rows import reads_again
from neusight.predictors.physics.memory_bound.timing import memory_bound_timing
from neusight.predictors.physics.physical_time import smooth_maximum
from neusight.predictors.physics.roofline import cold_share, roofline_us

CLASSES = st.sampled_from(
    [
        (KernelClass.ELEMENTWISE, "add"),
        (KernelClass.REDUCTION, "sum"),
        (KernelClass.SOFTMAX, "softmax"),
        (KernelClass.NORMALIZATION, "layer_norm"),
        (KernelClass.NORMALIZATION, "layer_norm_backward"),
        (KernelClass.GATHER, "embedding"),
        (KernelClass.GATHER, "index_put"),
        (KernelClass.SORT, "radix_sort_pass"),
        (KernelClass.SORT, "topk"),
        (KernelClass.COPY, "memcpy_d2d"),
        (KernelClass.COPY, "memcpy_h2d"),
        (KernelClass.OPTIMIZER, "multi_tensor_apply"),
        (KernelClass.CUSTOM, "own"),
        (KernelClass.UNKNOWN, "mystery"),
    ]
)
#: What these kernels do, which their names do not state the physics.
TRAITS: dict[str, dict[str, Any]] = {
    "layer_norm_backward": {"is_backward": True},
    "index_put": {"scatters": True},
    "topk": {"selects": True},
}
GPUS = st.sampled_from(["H100", "A100", "V100", "L40S", "P4", "MI210", "B200"])


def rows_kernel(
    kind: tuple[KernelClass, str], rows: int, width: int, layout: Layout = "contiguous"
) -> Kernel:
    return moving(*kind, rows, width, "float32", layout=layout, **TRAITS.get(kind[1], {}))


def time_us(kernel: Kernel, name: str = "H100") -> float:
    return memory_bound_timing(kernel, find_gpu(name)).time_us


@settings(max_examples=300)
@given(
    CLASSES, GPUS, st.integers(0, 2**20), st.integers(0, 2**20), st.integers(1, 10**4),
    st.integers(1, 10**4), st.sampled_from(["contiguous", "strided"]),
)  # fmt: skip
def test_more_work_is_never_faster(
    kind: tuple[KernelClass, str],
    name: str,
    rows: int,
    width: int,
    more_rows: int,
    more_width: int,
    layout: Layout,
) -> None:
    """But for a row that is so long that a reduction gives it more threads."""
    before = time_us(rows_kernel(kind, rows, width, layout), name)

    assert math.isfinite(before)
    assert before > 0
    larger_sizes = [(rows + more_rows, width), (rows, width + more_width)]
    for larger in larger_sizes[: 1 if kind[0] is KernelClass.REDUCTION else 2]:
        assert time_us(rows_kernel(kind, *larger, layout), name) >= before * (1 - 1e-9)


@settings(max_examples=200)
@given(CLASSES, GPUS, st.integers(1, 2**31), st.integers(1, 64))
def test_beyond_the_l2_nothing_beats_the_roofline(
    kind: tuple[KernelClass, str], name: str, rows: int, width: int
) -> None:
    kernel = rows_kernel(kind, rows, width)

    if kernel.num_bytes > 4 * find_gpu(name).l2_bytes:
        assert time_us(kernel, name) >= roofline_us(kernel, find_gpu(name))


def test_a_large_add_streams_at_the_measured_share_of_bandwidth() -> None:
    kernel = Kernel.elementwise("add", 2**28, dtype="float32", num_inputs=2)

    share = kernel.num_bytes / 3350e3 / time_us(kernel)

    assert share == pytest.approx(find_gpu("H100").bandwidth_utilization, abs=0.05)


def test_streams_of_gigabytes_reach_more_of_hoppers_bandwidth_but_not_of_amperes() -> None:
    def share(name: str, num_elements: int) -> float:
        gpu = find_gpu(name)
        kernel = Kernel.elementwise("add", num_elements, dtype="float32", num_inputs=2)
        moved_us = kernel.num_bytes / (gpu.bandwidth_gbps * gpu.bandwidth_utilization * 1e3)
        return moved_us / memory_bound_timing(kernel, gpu).time_us

    assert share("H100", 2**31) > 1.04 * share("H100", 2**25)
    assert share("A100", 2**31) < 1.03 * share("A100", 2**26)


def test_kernels_that_only_move_bytes_may_reach_another_share_than_products() -> None:
    kernel = Kernel.elementwise("add", 2**28, dtype="float32", num_inputs=2)
    gpu = replace(find_gpu("L40S"), stream_utilization=0.0)
    slower = replace(gpu, stream_utilization=0.5 * gpu.bandwidth_utilization)

    times = [memory_bound_timing(kernel, each).time_us for each in (gpu, slower)]

    assert times[1] == pytest.approx(2 * times[0], rel=0.02)


def test_a_tiny_kernel_costs_the_floor() -> None:
    kernel = Kernel.elementwise("add", 1, dtype="float32")

    timing = memory_bound_timing(kernel, find_gpu("H100"))

    assert timing.bound == "launch"
    assert timing.time_us < 2.5


def test_a_kernel_that_fits_the_l2_beats_dram() -> None:
    kernel = Kernel.elementwise("add", 10 * 2**20, dtype="bfloat16")  # 40 MiB of B200's 126

    timing = memory_bound_timing(kernel, find_gpu("L40S"))

    assert timing.time_us < kernel.num_bytes / 864e3
    assert (
        cold_share(kernel.num_bytes, find_gpu("L40S")) < 0.5 < cold_share(2**30, find_gpu("L40S"))
    )


def test_indices_cost_a_time_an_element_and_transposing_a_sector() -> None:
    def copy_us(dtype: str, layout: Layout) -> float:
        return time_us(moving(KernelClass.COPY, "copy", 1, 2**24, dtype, layout=layout, flops=0))

    flat, indexed, turned = (copy_us("bfloat16", w) for w in ("contiguous", "scalar", "strided"))

    assert 1.5 * flat < indexed < turned / 2
    assert turned == pytest.approx(2**24 / (0.53 * 132 * 1.83e3), rel=0.05)
    assert copy_us("float32", "scalar") < 1.3 * copy_us("float32", "contiguous")


def test_one_wide_softmax_row_keeps_one_cta_busy() -> None:
    kind = (KernelClass.SOFTMAX, "softmax")

    assert time_us(rows_kernel(kind, 1, 2**20)) > 3 * time_us(
        rows_kernel((KernelClass.ELEMENTWISE, "add"), 1, 2**20)
    )


def test_host_copies_go_by_the_host_link() -> None:
    kernel = rows_kernel((KernelClass.COPY, "memcpy_h2d"), 1, 2**24)

    assert 2**26 / 64e3 < time_us(kernel) < 2 * 2**26 / 64e3


def test_smooth_maximum_is_a_little_more_than_the_largest() -> None:
    assert smooth_maximum(0.0, 0.0) == 0.0
    assert smooth_maximum(3.0, 0.0) == 3.0
    assert smooth_maximum(1.0, 1.0) == pytest.approx(2**0.25)


def test_a_general_power_is_bound_by_its_arithmetic_where_the_l2_feeds_it() -> None:
    [power, product] = [
        memory_bound_timing(Kernel.elementwise(name, 2**22, dtype="float32"), find_gpu("A100"))
        for name in ("pow", "pow_by_products")
    ]

    assert power.bound == "compute"
    assert power.time_us > 1.2 * product.time_us


def bandwidth(kernel_class: KernelClass, name: str, width: int) -> float:
    """What a V100 reaches over rows of 2 GiB in all, MB/s."""
    kernel = moving(kernel_class, name, 2**28 // width, width, "float32")
    return 2**31 / memory_bound_timing(kernel, find_gpu("V100")).time_us


def test_a_wide_layer_norm_reads_its_rows_more_often_than_a_narrow_one() -> None:
    narrow, wide = (bandwidth(KernelClass.NORMALIZATION, "layer_norm", w) for w in (512, 8192))

    assert narrow > 1.2 * wide


def test_wide_softmax_rows_are_read_again_from_dram_once_they_outgrow_the_l2() -> None:
    widths = (1024, 2048, 16384)
    narrow, middle, wide = (bandwidth(KernelClass.SOFTMAX, "softmax", w) for w in widths)

    assert narrow > middle > 1.5 * wide


def batch_norm(
    channels: int, width: int, *, variant: Variant = "batch_norm", is_last: bool = False
) -> Kernel:
    return moving(
        KernelClass.NORMALIZATION, "batch_norm", channels, width, "float32", variant=variant,
        along_columns=is_last,
    )  # fmt: skip


@pytest.mark.parametrize(("width", "again"), [(6272, 0.0), (25088, 1.0)])
def test_a_batch_norm_reads_a_channel_once_where_shared_memory_holds_it(
    width: int, again: float
) -> None:
    kernel = batch_norm(1024, width)

    assert reads_again(kernel, kind_of(kernel), find_gpu("V100")) == again


@pytest.mark.parametrize(
    ("channels", "width", "measured_us"),
    [
        (64, 32 * 112 * 112, 450.0),
        (256, 32 * 56 * 56, 402.0),
        (512, 32 * 28 * 28, 210.0),
        (2048, 32 * 7 * 7, 56.0),
    ],
)
def test_batch_norm_takes_what_a_profile_of_resnet_50_on_v100_shows(
    channels: int, width: int, measured_us: float
) -> None:
    kernel = batch_norm(channels, width)

    assert time_us(kernel, "V100") == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(
    ("channels", "width", "itemsize", "is_backward", "measured_us"),
    [
        (64, 64 * 112 * 112, 4, True, 1226.0),
        (128, 64 * 56 * 56, 4, True, 341.0),
        (512, 64 * 28 * 28, 4, True, 193.0),
        (128, 64 * 56 * 56, 2, True, 309.0),
        (64, 64 * 56 * 56, 2, False, 135.5),
    ],
)
def test_looped_batch_norms_take_what_resnet_50_on_an_h100_shows(
    channels: int, width: int, itemsize: int, is_backward: bool, measured_us: float
) -> None:
    num_bytes = itemsize * channels * width
    kernel = replace(
        batch_norm(channels, width),
        dtype={2: "float16", 4: "float32"}[itemsize],
        bytes_read=num_bytes * (1 + is_backward),
        bytes_written=num_bytes,
        is_backward=is_backward,
    )

    assert time_us(kernel, "H100") == pytest.approx(measured_us, rel=0.1)


def test_all_sms_share_the_few_channels_of_a_batch_norm_on_nhwc_images() -> None:
    gpu = find_gpu("V100")
    apart = memory_bound_timing(batch_norm(16, 2**20), gpu)
    shared = memory_bound_timing(batch_norm(16, 2**20, is_last=True), gpu)

    assert shared.time_us < 0.5 * apart.time_us


@pytest.mark.parametrize(("channels", "whole"), [(160, 192), (144, 192), (24, 32)])
def test_a_batch_norm_of_nhwc_images_takes_whole_tiles_of_channels(
    channels: int, whole: int
) -> None:
    """And handles 1.6 elements a clock and SM, as MobileNet's 96 channels show (222 us)."""

    def half(num: int, width: int) -> Kernel:
        kernel = batch_norm(num, width, is_last=True)
        num_bytes = kernel.bytes_read // 2
        return replace(kernel, dtype="float16", bytes_read=num_bytes, bytes_written=num_bytes)

    gpu = find_gpu("H100")
    part, full, known = (
        memory_bound_timing(half(num, 64 * 112 * 112), gpu).time_us for num in (channels, whole, 96)
    )

    assert part == pytest.approx(full, rel=0.1)
    assert known == pytest.approx(222.0, rel=0.05)


def test_torchs_own_gradient_of_a_batch_norm_takes_as_long_in_16_bits_as_in_32() -> None:
    gpu = find_gpu("V100")
    wide = replace(batch_norm(64, 2**20, variant="batch_norm_gradients"), is_backward=True)
    short = replace(
        wide,
        dtype="float16",
        bytes_read=wide.bytes_read // 2,
        bytes_written=wide.bytes_written // 2,
    )

    assert memory_bound_timing(short, gpu).time_us == pytest.approx(
        memory_bound_timing(wide, gpu).time_us, rel=0.1
    )


def test_what_a_kernel_does_determines_its_price_and_its_name_does_not() -> None:
    gather = rows_kernel((KernelClass.GATHER, "rows_by_index"), 2**16, 256)
    sort = rows_kernel((KernelClass.SORT, "of_each_row"), 2**16, 256)
    norm = rows_kernel((KernelClass.NORMALIZATION, "norm"), 2**16, 256)

    assert time_us(replace(gather, scatters=True)) > 1.5 * time_us(gather)
    assert time_us(replace(sort, selects=True)) > 1.5 * time_us(sort)
    assert time_us(replace(norm, is_backward=True)) != time_us(norm)
    assert time_us(replace(norm, along_columns=True)) < time_us(norm)
    for kernel, name in (
        (gather, "scatter_add"),
        (sort, "topk"),
        (norm, "layer_norm_backward_weight"),
        (norm, "batch_norm"),
    ):
        assert time_us(replace(kernel, name=name)) == time_us(kernel)


@pytest.mark.parametrize(
    ("num_bytes", "measured_us"),
    [(33_554_432, 13.4), (134_217_728, 53.4), (536_870_912, 288.0), (1_073_741_824, 559.0)],
)
def test_miopens_transposes_go_by_their_bytes(num_bytes: int, measured_us: float) -> None:
    """Images of Stable Diffusion's decoder in bf16 on MI300X, read and written."""
    kernel = moving(KernelClass.COPY, "nchw_to_nhwc", num_bytes // 4096, 1024)

    assert time_us(kernel, "MI300X") == pytest.approx(measured_us, rel=0.2)


def test_a_transpose_to_nhwc_takes_its_tiles_however_empty_they_are() -> None:
    """128 images of 3 x 224 x 224 in bf16: 200,704 tiles of 32 pixels, on H100 281 µs."""
    gpu = find_gpu("H100")
    num_bytes = 128 * 3 * 224 * 224 * 2
    kernel = Kernel.rows(
        KernelClass.COPY, "nchw_to_nhwc", 128 * 1568, 1024, dtype="bfloat16",
        bytes_read=num_bytes, bytes_written=num_bytes, flops=0,
    )  # fmt: skip

    tiles_us = 128 * 1568 * 330e6 / (gpu.num_sms * gpu.clock_hz)

    assert memory_bound_timing(kernel, gpu).time_us == pytest.approx(tiles_us, rel=0.02)
    assert memory_bound_timing(kernel, gpu).time_us == pytest.approx(281.0, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "name", "channels", "pixels", "measured_us"),
    [
        ("A100-SXM4-40GB", "nchw_to_nhwc", 256, 3136, 150.9),
        ("A100-SXM4-40GB", "nhwc_to_nchw", 256, 3136, 150.4),
        ("A100-SXM4-40GB", "nchw_to_nhwc", 512, 784, 76.4),
        ("A100-SXM4-40GB", "nhwc_to_nchw", 1024, 196, 33.8),
        ("V100-SXM2-32GB", "nchw_to_nhwc", 256, 784, 66.0),
        ("V100-SXM2-32GB", "nhwc_to_nchw", 256, 196, 17.5),
    ],
)
def test_transposes_of_full_tiles_stream(
    gpu: str, name: str, channels: int, pixels: int, measured_us: float
) -> None:
    """32 images in FP32, in profiles of ResNet-50's training."""
    tiles, num_bytes = 32 * -(-channels // 32) * -(-pixels // 32), 32 * channels * pixels * 4
    kernel = Kernel.rows(
        KernelClass.COPY, name, tiles, 1024, dtype="float32",
        bytes_read=num_bytes, bytes_written=num_bytes, flops=0,
    )  # fmt: skip

    assert time_us(kernel, gpu) == pytest.approx(measured_us, rel=0.1)


def test_exponentials_in_16_bits_bind_amd_more_than_their_bytes() -> None:
    """data/profiled_kernels, MI300X: silu of 134 million elements 176 to 203 us, a division 118."""
    silu, division = (moving(KernelClass.ELEMENTWISE, name, 1, 2**27) for name in ("silu", "div"))

    times = [memory_bound_timing(one, find_gpu("MI300X")).time_us for one in (silu, division)]

    assert times[0] == pytest.approx(189, rel=0.1)
    assert times[1] < 0.8 * times[0]


@pytest.mark.parametrize(
    ("dtype", "channels", "width", "is_backward", "layout", "measured_us"),
    [
        ("float32", 1024, 128 * 49, False, "contiguous", 37.8),
        ("float32", 512, 64 * 196, True, "contiguous", 46.1),
        ("float16", 1024, 128 * 49, True, "scalar", 39.8),
        ("float16", 512, 64 * 196, False, "contiguous", 17.4),
    ],
)
def test_batch_norms_that_read_a_channel_once_are_bound_by_their_elements(
    dtype: str, channels: int, width: int, is_backward: bool, layout: Layout, measured_us: float
) -> None:
    """`batch_norm` of benchmarks/measured/h100."""
    kernel = moving(
        KernelClass.NORMALIZATION, "batch_norm", channels, width, dtype, reads=1.0 + is_backward,
        variant="batch_norm", is_backward=is_backward, layout=layout,
    )  # fmt: skip

    assert time_us(kernel) == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(
    ("name", "variant", "rows", "width", "dtype", "measured_us"),
    [
        ("batch_norm_sums", "batch_norm_sums", 96, 64 * 112 * 112, "bfloat16", 668.1),
        ("batch_norm_sums", "batch_norm_sums", 144, 64 * 56 * 56, "bfloat16", 198.3),
        ("batch_norm_sums", "batch_norm_sums", 24, 64 * 56 * 56, "bfloat16", 116.2),
        ("batch_norm_sums", "batch_norm_sums", 40, 64 * 28 * 28, "bfloat16", 35.2),
        ("group_norm_moments", "group_norm", 256, 8192, "float32", 7.5),
        ("group_norm_moments", "group_norm", 1024, 25088, "float32", 63.7),
    ],
)
def test_moments_wait_for_the_l2_or_for_dram(
    name: str, variant: Variant, rows: int, width: int, dtype: str, measured_us: float
) -> None:
    """Of an EfficientNet, a UNet and a probe on H100 that no constant was read off
    (benchmarks/measured)."""
    num_bytes = int(rows * width * DTYPE_BYTES[dtype])
    kernel = Kernel.rows(
        KernelClass.NORMALIZATION, name, rows, width, dtype=dtype, layout="contiguous",
        bytes_read=num_bytes, bytes_written=8 * rows, variant=variant,
    )  # fmt: skip

    assert time_us(kernel) == pytest.approx(measured_us, rel=0.25)


@pytest.mark.parametrize(
    ("gpu", "name", "channels", "rows", "measured_us"),
    [
        ("H200", "batch_norm", 256, 64 * 56 * 56, 81.1),
        ("H200", "batch_norm", 64, 64 * 112 * 112, 121.3),
        ("H100", "batch_norm", 512, 32 * 28 * 28, 23.6),
        ("H100", "batch_norm_backward", 512, 32 * 28 * 28, 30.7),
        ("H200", "batch_norm_backward", 64, 64 * 56 * 56, 34.4),
        ("H100", "batch_norm_statistics", 128, 32 * 56 * 56, 45.8),
        ("H100", "batch_norm_statistics", 2048, 32 * 49, 29.2),
        ("H100", "batch_norm_backward_sums", 512, 32 * 28 * 28, 36.6),
        ("H100", "batch_norm_backward_sums", 2048, 32 * 49, 21.2),
    ],
)
def test_torchs_batch_norms_of_nhwc_images_go_by_their_elements(
    gpu: str, name: str, channels: int, rows: int, measured_us: float
) -> None:
    """Of a ResNeXt-50 in training on H100 and of ResNet-50 on H200 (benchmarks/measured), of which
    no constant was read off."""
    is_sum, is_backward = not name.endswith(("norm", "backward")), "backward" in name
    kernel = moving(
        KernelClass.NORMALIZATION if is_sum else KernelClass.ELEMENTWISE, name, channels, rows,
        reads=1.0 + is_backward, writes=0.0 if is_sum else 1.0, is_backward=is_sum and is_backward,
        along_columns=is_sum, variant="batch_norm_sums" if is_sum else "by_channel",
    )  # fmt: skip

    assert time_us(kernel, gpu) == pytest.approx(measured_us, rel=0.15)


def test_operands_of_several_types_are_cast_one_by_one() -> None:
    """The residual stream of a ViT, float32 + bfloat16: 42.5 us on H100 (benchmarks/measured)."""
    elements = 64 * 197 * 768
    added = rows_kernel((KernelClass.ELEMENTWISE, "add"), 1, elements)
    added = replace(added, bytes_read=6 * elements, bytes_written=4 * elements, layout="scalar")

    assert time_us(replace(added, variant="mixed_types")) == pytest.approx(42.5, rel=0.15)
    assert time_us(added) < 0.9 * time_us(replace(added, variant="mixed_types"))


@pytest.mark.parametrize(
    ("gpu", "dtype", "layout", "tensors", "widest", "narrow", "measured_us"),
    [
        ("H100", "float32", "contiguous", 17, 32 * 512 * 49, 32 * 32 * 49, 17.5),
        ("H200", "float32", "contiguous", 25, 32 * 256 * 196, 32 * 32 * 196, 49.3),
        ("H200", "float32", "contiguous", 13, 32 * 128 * 784, 32 * 32 * 784, 39.2),
        ("H100", "float16", "channels_last", 25, 32 * 256 * 196, 32 * 32 * 196, 50.7),
        ("H100", "float16", "channels_last", 13, 32 * 128 * 784, 32 * 32 * 784, 42.9),
    ],
)
def test_each_tensor_of_a_cat_has_as_many_ctas_as_the_widest(
    gpu: str, dtype: str, layout: Layout, tensors: int, widest: int, narrow: int, measured_us: float
) -> None:
    """DenseNet-121's, in profiles of benchmarks/measured that no constant was read off."""
    kernel = moving(
        KernelClass.COPY, "cat", 1, widest + (tensors - 1) * narrow, dtype, layout=layout,
        variant="cat", num_parts=tensors, widest_part=widest,
    )  # fmt: skip
    timing = memory_bound_timing(kernel, find_gpu(gpu))

    assert timing.time_us == pytest.approx(measured_us, rel=0.15)
    assert timing.bound == "launch"
    assert timing.num_ctas == tensors * min(-(-widest // 512), 32 * 132)  # as the profiles say


def test_steps_that_need_each_other_take_a_kernel_each_however_little_they_move() -> None:
    gpu = find_gpu("H100")
    at_once = rows_kernel((KernelClass.REDUCTION, "qr_panel"), 64, 64)
    in_steps = replace(at_once, num_steps=128)

    assert memory_bound_timing(in_steps, gpu).time_us > 128 * gpu.floor_us
    assert memory_bound_timing(at_once, gpu).time_us < 4 * gpu.floor_us


@pytest.mark.parametrize(
    ("name", "reads", "measured_us"), [("gelu", 1.0, 32.8), ("gelu_backward", 2.0, 40.2)]
)
def test_an_error_function_in_16_bits_takes_longer_than_its_bytes(
    name: str, reads: float, measured_us: float
) -> None:
    """8192 x 3072 in a step of BERT on H200 (benchmarks/measured/h200)."""
    kernel = moving(KernelClass.ELEMENTWISE, name, 1, 8192 * 3072, reads=reads)

    assert time_us(kernel, "H200") == pytest.approx(measured_us, rel=0.15)


def test_a_kernel_of_a_type_that_nobody_knows_has_a_price() -> None:
    """Of a recording that another release wrote, or that is damaged."""
    kernel = rows_kernel((KernelClass.ELEMENTWISE, "relu"), 1, 4096)

    assert time_us(replace(kernel, dtype="float9")) > 0.0


def fused(num_elements: int, *, in_place: bool = False, tiled: bool = False) -> Kernel:
    return moving(
        KernelClass.ELEMENTWISE, "triton_poi_fused_0", 1, num_elements, "float32", variant="fused",
        along_columns=tiled, bytes_in_place=4 * num_elements if in_place else 0,
    )  # fmt: skip


def test_what_is_written_in_place_takes_the_l2_once() -> None:
    """L40S has an L2 of 96 MB: 64 MB are written over what was read, or beside it."""
    elements = 16_000_000

    assert time_us(fused(elements, in_place=True), "L40S") < 0.8 * time_us(fused(elements), "L40S")
    longer = time_us(fused(100 * elements, in_place=True), "L40S")
    assert longer == pytest.approx(time_us(fused(100 * elements), "L40S"), rel=0.01)


@pytest.mark.parametrize(("name", "slower"), [("L40S", 1 / 0.76), ("H100", 1.0), ("A100", 1.0)])
def test_tiles_reach_less_of_gddr_memory(name: str, slower: float) -> None:
    """data/kernelbench: programs that turn NHWC into NCHW."""
    tiled, stream = (time_us(fused(500_000_000, tiled=tiled), name) for tiled in (True, False))

    assert tiled / stream == pytest.approx(slower, rel=0.02)
