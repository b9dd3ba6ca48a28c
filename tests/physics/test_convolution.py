"""The physics of convolutions."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, GemmSize, Kernel, Layout
from neusight.predictors.physics.convolution import convolution_timings, implicit_gemm
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.registry import predict

SIZE = ConvolutionSize(32, 64, 128, 1, (56, 56), (28, 28), (3, 3), (2, 2), "forward")


@pytest.mark.parametrize("direction", ["forward", "data_gradient", "weight_gradient"])
def test_implicit_gemm_has_the_flops_of_the_convolution(
    direction: Literal["forward", "data_gradient", "weight_gradient"],
) -> None:
    product = implicit_gemm(SIZE._replace(direction=direction))

    flops = 2 * product.batch * product.m * product.n * product.k
    assert flops == Kernel.convolution(SIZE, dtype="float16").flops


def test_implicit_gemm_of_a_forward_by_hand() -> None:
    assert implicit_gemm(SIZE) == GemmSize(1, 32 * 28 * 28, 128, 64 * 9)


def time_us(
    size: ConvolutionSize,
    *,
    dtype: str = "float16",
    layout: Layout = "channels_last",
    name: str = "A100",
) -> float:
    kernel = Kernel.convolution(size, dtype=dtype, layout=layout)
    [timing] = convolution_timings([kernel], find_gpu(name), sustained=False)
    return timing.time_us


def test_contiguous_layout_pays_for_transposes_on_tensor_cores() -> None:
    assert time_us(SIZE, layout="contiguous") > time_us(SIZE)
    assert time_us(SIZE, layout="contiguous", dtype="float32") == time_us(SIZE, dtype="float32")


def test_depthwise_is_far_from_peak() -> None:
    size = ConvolutionSize(32, 512, 512, 512, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float16", layout="channels_last")

    [estimate] = predict([kernel], "A100")

    assert estimate.utilization < 0.05
    assert estimate.latency_us > kernel.num_bytes / 2039e3


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.sampled_from(["forward", "data_gradient", "weight_gradient"]),
    st.integers(0, 64), st.integers(0, 300), st.integers(0, 300), st.integers(0, 64),
    st.integers(1, 7), st.integers(1, 50),
    st.sampled_from(["float16", "float32"]),
)  # fmt: skip
def test_more_work_is_never_faster(
    direction: Literal["forward", "data_gradient", "weight_gradient"],
    batch: int,
    inputs: int,
    outputs: int,
    image: int,
    taps: int,
    more: int,
    dtype: str,
) -> None:
    size = ConvolutionSize(
        batch, inputs, outputs, 1, (image,) * 2, (image,) * 2, (taps,) * 2, (1, 1), direction
    )

    before = time_us(size, dtype=dtype)

    assert math.isfinite(before)
    assert before >= flop_roofline_us(Kernel.convolution(size, dtype=dtype), find_gpu("A100"))
    for larger in (
        size._replace(batch=batch + more),
        size._replace(in_channels=inputs + more),
        size._replace(out_channels=outputs + more),
        size._replace(input=(image + more,) * 2, output=(image + more,) * 2),
    ):
        assert time_us(larger, dtype=dtype) >= before * (1 - 1e-9)


def test_winograd_beats_the_direct_flops_in_fp32_only() -> None:
    size = ConvolutionSize(32, 256, 256, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float32")

    assert flop_roofline_us(kernel, find_gpu("V100")) * 2.25 == pytest.approx(
        kernel.flops / 15.7e12 * 1e6
    )
    assert time_us(size, dtype="float32", name="V100") < time_us(
        size._replace(stride=(1, 2)), dtype="float32", name="V100"
    )
