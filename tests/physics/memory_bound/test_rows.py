"""Rows and the CTAs that take them."""

from __future__ import annotations

from typing import Any

import pytest
from priced_kernels import moving

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, Layout, Variant
from neusight.predictors.physics.memory_bound.rows import missed_again
from neusight.predictors.physics.memory_bound.timing import memory_bound_timing


def time_us(
    variant: Variant,
    rows: int,
    width: int,
    *,
    gpu: str = "H100",
    dtype: str = "bfloat16",
    is_backward: bool = False,
    **traits: Any,
) -> float:
    is_softmax = variant.endswith("softmax")
    kernel = moving(
        KernelClass.SOFTMAX if is_softmax else KernelClass.NORMALIZATION, variant, rows, width,
        dtype, variant=variant, is_backward=is_backward, reads=1.0 + is_backward,
        writes=0.0 if variant in ("group_norm", "batch_norm_sums") else 1.0, **traits,
    )  # fmt: skip
    return memory_bound_timing(kernel, find_gpu(gpu)).time_us


def test_unaligned_rows_of_a_softmax_take_twice_as_long() -> None:
    """data/profiled_kernels, TimeSformer: 96 x 3137 rows of 3137 in 5.7 ms on H100."""
    unaligned = time_us("softmax", 96 * 3137, 3137, layout="scalar")

    assert unaligned == pytest.approx(5707, rel=0.1)
    assert 1.8 < unaligned / time_us("softmax", 96 * 3136, 3136) < 3.5


def test_from_eight_steps_of_rows_on_several_ctas_share_the_sums_of_a_batch_norm() -> None:
    def sums_us(rows: int) -> float:
        return time_us("batch_norm_sums", 1024, rows, along_columns=True)

    assert sums_us(8 * 256) < 0.5 * sums_us(8 * 256 - 1)


def test_a_softmax_of_few_rows_does_not_wait_for_others() -> None:
    """H100 (benchmarks/measured/h100): 33 rows of 63421 in 19.7 us, 110 of 5064 in 3.7."""
    assert time_us("softmax", 33, 63421) == pytest.approx(19.7, rel=0.1)
    assert time_us("softmax", 110, 5064) == pytest.approx(3.7, rel=0.1)
    full = time_us("softmax", 4096, 5064) / 4096 * find_gpu("H100").num_sms
    assert time_us("softmax", 1, 5064) > 1.2 * full  # two CTAs share an SM


def test_a_softmax_of_endless_rows_moves_four_tensors_and_its_log_backward_four_too() -> None:
    tensor_us = 4 * 4096 * 400_000 / (3350e3 * find_gpu("H100").bandwidth_utilization)

    def found(variant: Variant, *, is_backward: bool = False) -> float:
        return time_us(variant, 4096, 400_000, dtype="float32", is_backward=is_backward)

    assert found("softmax") == pytest.approx(4 * tensor_us, rel=0.1)
    assert found("log_softmax", is_backward=True) == pytest.approx(4 * tensor_us, rel=0.1)
    assert found("softmax", is_backward=True) > 1.15 * found("log_softmax", is_backward=True)


def test_a_layer_norm_of_768_leaves_a_quarter_of_its_threads_idle() -> None:
    rows = 25089

    assert time_us("layer_norm", rows, 768) == pytest.approx(59.7, rel=0.1)  # measured
    assert time_us("layer_norm", rows, 1024) < 1.15 * time_us("layer_norm", rows, 768)
    assert time_us("layer_norm", rows, 512) < 0.7 * time_us("layer_norm", rows, 768)


@pytest.mark.parametrize(
    ("gpu", "measured_us"), [("H100", 8120), ("A100", 10200), ("L40S", 6170), ("T4", 9370)]
)
def test_few_huge_rows_of_a_layer_norm_are_bound_by_a_cta_each(
    gpu: str, measured_us: float
) -> None:
    """data/kernelbench 40: 16 rows of 4 million."""
    found = time_us("layer_norm", 16, 2**22, gpu=gpu, dtype="float32")

    assert found == pytest.approx(measured_us, rel=0.15)


def test_many_tiny_groups_are_bound_by_the_ctas_that_an_sm_holds() -> None:
    few, many = (time_us("group_norm", rows, 16, dtype="float32") for rows in (2**17, 2**19))

    assert many == pytest.approx(4 * few, rel=0.1)
    assert many > 2 * time_us("group_norm", 2**14, 512, dtype="float32")


def test_a_batch_norm_of_few_channels_leaves_sms_idle() -> None:
    few = time_us("batch_norm", 16, 2**24, dtype="float32")
    many = time_us("batch_norm", 512, 2**19, dtype="float32")

    assert few > 3 * many
    assert few == pytest.approx(8356, rel=0.15)  # data/kernelbench 72, all but its other kernels


def of_variant(
    variant: Variant,
    rows: int,
    width: int,
    *,
    num_bytes: int = 0,
    layout: Layout = "contiguous",
    gpu: str = "H100",
) -> float:
    kernel = Kernel.rows(
        KernelClass.REDUCTION, variant, rows, width, dtype="float32", variant=variant,
        layout=layout, bytes_read=num_bytes, bytes_written=num_bytes,
    )  # fmt: skip
    return memory_bound_timing(kernel, find_gpu(gpu)).time_us


def test_a_scan_goes_step_by_step_in_waves() -> None:
    """data/kernelbench 89: 32768 rows of as many, in 4.68 ms."""
    large = of_variant("scan", 2**15, 2**15, num_bytes=2**32)

    assert large == pytest.approx(4680, rel=0.15)
    assert large > 1.3 * of_variant("", 2**15, 2**15, num_bytes=2**32)
    assert of_variant("scan", 128, 4000, num_bytes=2_048_000) > 12


def test_a_pooling_costs_its_outputs_and_their_taps() -> None:
    """data/kernelbench 46: 27 taps, as measured; more taps of more outputs never cost less."""
    outputs = 16 * 32 * 64 * 64 * 128

    assert of_variant("pool", outputs, 27) == pytest.approx(8690, rel=0.1)
    assert of_variant("pool", outputs, 8) < 0.5 * of_variant("pool", outputs, 27)


def test_loops_of_a_fused_kernel_miss_what_the_l2_has_lost() -> None:
    def share(width: int, rows: int = 4096) -> float:
        kernel = moving(
            KernelClass.REDUCTION, "triton_red_fused_0", rows, width, "float32", writes=0.0,
            bytes_read_again=4 * rows * width,
        )  # fmt: skip
        return missed_again(kernel, find_gpu("H100"))

    assert share(1_000) < 0.01 < 0.99 < share(1_000_000)
    assert share(1_000_000, rows=2) < 0.01


@pytest.mark.parametrize(
    ("rows", "width", "measured_us"),
    [(64, 125440, 395.8), (64, 31360, 85.7), (128, 7840, 28.2), (256, 1960, 11.2), (512, 490, 7.3)],
)
def test_a_batch_norms_gradient_on_amd_goes_by_the_steps_of_a_channel(
    rows: int, width: int, measured_us: float
) -> None:
    """ResNet's training in bf16 on MI300X with CTAs of 256 threads: four times the steps of 1024.
    None of them chose a constant (data/profiled_kernels)."""
    num_bytes = rows * width * 2
    kernel = Kernel.rows(
        KernelClass.NORMALIZATION, "batch_norm_backward", rows, 4 * width, dtype="bfloat16",
        variant="batch_norm", is_backward=True, bytes_read=2 * num_bytes, bytes_written=num_bytes,
    )  # fmt: skip

    forecast_us = memory_bound_timing(kernel, find_gpu("MI300X")).time_us

    assert forecast_us == pytest.approx(measured_us, rel=0.17)


def rows_us(kernel_class: KernelClass, rows: int, width: int, variant: Variant = "") -> float:
    kernel = Kernel.rows(
        kernel_class, "mean", rows, width, dtype="float32", variant=variant, layout="scalar",
        bytes_read=4 * rows * width, bytes_written=4 * rows,
    )  # fmt: skip
    return memory_bound_timing(kernel, find_gpu("H100")).time_us


def test_sixteen_rows_share_a_cta_whose_threads_then_take_more_of_each() -> None:
    """data/llm_layers, RMS norm of 1 and 16 rows of 4096: 27.0 - 17.5 us on H100, of which the mean
    takes most."""
    one, sixteen, sixty_four = (rows_us(KernelClass.REDUCTION, rows, 4096) for rows in (1, 16, 64))

    assert 3.5 < sixteen - one < 9.5
    assert sixty_four == pytest.approx(sixteen, rel=0.05)


def test_a_gather_of_few_indices_looks_them_up_one_after_another() -> None:
    """data/llm_layers, embedding of 9 tokens on H100: 7.9 us."""
    assert rows_us(KernelClass.GATHER, 9, 4096, "small_index") == pytest.approx(7.9, rel=0.2)


def test_finding_the_place_of_a_maximum_takes_a_thread_a_latency_for_each_value() -> None:
    """data/kernelbench 49 to 53, 16 x 256 x 256 along the middle: 9 us beyond the sum on H100."""

    def found(variant: Variant, rows: int = 4096, width: int = 256) -> float:
        kernel = Kernel.rows(
            KernelClass.REDUCTION, "max", rows, width, dtype="float32", variant=variant,
            along_columns=True, bytes_read=4 * rows * width, bytes_written=12 * rows,
        )  # fmt: skip
        return memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert 7 < found("with_index") - found("") < 12
    assert found("with_index", 2**19, 4096) == pytest.approx(found("", 2**19, 4096), rel=0.05)


@pytest.mark.parametrize(
    ("rows", "width", "measured_us"),
    [(65536, 256, 75.1), (131072, 64, 41.1), (8192, 768, 18.2), (400, 1856, 7.0), (32, 1024, 3.4)],
)
def test_a_sum_over_rows_takes_the_steps_of_its_threads(
    rows: int, width: int, measured_us: float
) -> None:
    """benchmarks/measured/h100, sum_columns: in the L2, or by many CTAs out of DRAM."""
    kernel = Kernel.rows(
        KernelClass.REDUCTION, "sum", width, rows, dtype="bfloat16", along_columns=True,
        bytes_read=2 * rows * width, bytes_written=2 * width,
    )  # fmt: skip

    found = memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert found == pytest.approx(measured_us, rel=0.35)


@pytest.mark.parametrize(
    ("outputs", "values", "dtype", "measured_us"),
    [
        (768, 4096, "bfloat16", 12.7),
        (768, 2048, "float32", 10.5),
        (3072, 8192, "bfloat16", 32.7),
        (192, 50176, "bfloat16", 94.9),  # of the second 128 columns 64 are none
        (384, 12544, "float32", 20.6),
        (256, 100352, "bfloat16", 88.2),
    ],
)
def test_in_a_step_a_sum_over_rows_waits_for_the_cta_that_adds_up_the_others(
    outputs: int, values: int, dtype: str, measured_us: float
) -> None:
    """Gradients of biases in the steps of benchmarks/measured/h100."""
    itemsize = int(DTYPE_BYTES[dtype])
    kernel = Kernel.rows(
        KernelClass.REDUCTION, "sum", outputs, values, dtype=dtype, along_columns=True,
        bytes_read=itemsize * outputs * values, bytes_written=itemsize * outputs,
    )  # fmt: skip

    found = memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert found == pytest.approx(measured_us, rel=0.25)


@pytest.mark.parametrize(
    ("batch", "channels", "pixels", "measured_us"),
    [(32, 2048, 49, 40.8), (128, 1024, 196, 81.0), (32, 256, 3136, 65.6)],
)
def test_a_plane_of_a_batch_norm_costs_its_cta_whatever_its_size(
    batch: int, channels: int, pixels: int, measured_us: float
) -> None:
    rows = batch * channels
    kernel = moving(KernelClass.ELEMENTWISE, "batch_norm", rows, pixels, variant="by_plane")

    found = memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert found == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(("layout", "edge", "measured_us"),
                         [("contiguous", 14, 21543), ("channels_last", 14, 120.4)])  # fmt: skip
def test_bilinear_resampling_in_nchw_goes_through_all_channels_in_a_thread(
    layout: Layout, edge: int, measured_us: float
) -> None:
    """32 images of 2048 channels to 14 x 14 in bf16, H100."""
    planes, pixels = 32 * 2048, edge * edge
    rows, width = (planes, pixels) if layout == "contiguous" else (1, planes * pixels)
    kernel = Kernel.rows(
        KernelClass.ELEMENTWISE, "upsample", rows, width, dtype="bfloat16", variant="bilinear",
        layout=layout, bytes_read=planes * pixels // 2, bytes_written=2 * planes * pixels,
    )  # fmt: skip

    found = memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert found == pytest.approx(measured_us, rel=0.2)


#: Kernels out of benchmarks/measured/h100 whose time no bandwidth explains: class and name, rows of
#: how many elements, bytes read and written for each of these, µs, and more of the kernel.
MEASURED: dict[str, tuple[KernelClass, str, int, int, float, float, float, dict[str, Any]]] = {
    "argmax of long rows": (KernelClass.REDUCTION, "argmax", 8192, 32000, 2, 8 / 32000, 300.6,
        {"variant": "with_index"}),
    "argmax of short rows": (KernelClass.REDUCTION, "argmax", 150669, 72, 2, 8 / 72, 74.9,
        {"variant": "with_index"}),
    "argmax of four rows": (KernelClass.REDUCTION, "argmax", 4, 41965, 2, 8 / 41965, 11.0,
        {"variant": "with_index"}),
    "maximum of short rows": (KernelClass.REDUCTION, "amax", 217203, 93, 2, 2 / 93, 75.7,
        {"variant": "extremum"}),
    "sum of all": (KernelClass.REDUCTION, "sum", 1, 12345678, 2, 2 / 12345678, 14.5, {}),
    "gradient of a layer norm's weight": (
        KernelClass.NORMALIZATION, "layer_norm_backward_weight", 256, 65536, 4, 4 / 65536, 271.2,
        {"variant": "layer_norm", "is_backward": True, "along_columns": True},
    ),
    "RMS norm of short rows": (KernelClass.NORMALIZATION, "rms_norm", 131072, 64, 2, 2, 85.9,
        {"variant": "rms_norm"}),
    "layer norm that keeps its rows in the L1": (
        KernelClass.NORMALIZATION, "layer_norm", 16384, 4096, 2, 2, 112.1,
        {"variant": "layer_norm"},
    ),
    "layer norm that does not": (KernelClass.NORMALIZATION, "layer_norm", 16384, 4096, 4, 4, 256.3,
        {"dtype": "float32", "variant": "layer_norm"}),
    "gather of short rows": (KernelClass.GATHER, "index", 131072, 64, 2.125, 2, 80.5,
        {"variant": "whole_rows", "layout": "contiguous"}),
    "gather of long rows": (KernelClass.GATHER, "index", 16384, 4096, 2, 2, 84.1,
        {"variant": "whole_rows", "layout": "contiguous"}),
    "gradient of a softmax in shared memory": (
        KernelClass.SOFTMAX, "log_softmax_backward", 6990, 2696, 4, 2, 37.9,
        {"variant": "log_softmax", "is_backward": True},
    ),
    "sum of bf16 into places of others": (
        KernelClass.GATHER, "scatter_add", 8192 * 768, 1, 12, 2, 105.1,
        {"layout": "scalar", "scatters": True, "flops": 8192 * 768},
    ),
    "sort of rows of 184": (KernelClass.SORT, "sort_rows", 154318, 184, 10, 10, 2020.0,
        {"dtype": "int64", "variant": "sorted_rows"}),
    "top 8 of rows of 64": (KernelClass.SORT, "topk", 8192, 64, 2, 1.25, 30.9,
        {"variant": "top_k", "selects": True}),
    "AdamW of 146 million bf16": (KernelClass.OPTIMIZER, "fused_adamw", 1, 146490368, 8, 6, 897.0,
        {"variant": "fused_adam"}),
    "numbers of a normal distribution": (KernelClass.ELEMENTWISE, "randn", 1, 67108864, 0, 4, 152.8,
        {"dtype": "float32", "variant": "normal_numbers"}),
    "gradient of a maximum over windows": (
        KernelClass.REDUCTION, "max_pool_backward", 32 * 256 * 56 * 56, 3, 5 / 6, 2 / 3, 295.0,
        {"variant": "max_pool_gradient"},
    ),
    "gradient of an average over windows": (
        KernelClass.REDUCTION, "avg_pool_backward", 32 * 256 * 28 * 28, 1, 1, 4, 107.5,
        {"dtype": "float32", "variant": "average_pool_gradient"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_an_h100_took_about_as_long(name: str) -> None:
    kernel_class, op, rows, width, read, written, measured_us, more = MEASURED[name]
    kernel = Kernel.rows(
        kernel_class, op, rows, width, bytes_read=round(read * rows * width),
        bytes_written=round(written * rows * width), **{"dtype": "bfloat16", **more},
    )  # fmt: skip

    found = memory_bound_timing(kernel, find_gpu("H100")).time_us

    assert found == pytest.approx(measured_us, rel=0.25)
