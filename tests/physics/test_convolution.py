"""The physics of convolutions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import (
    ConvolutionSize,
    GemmSize,
    Kernel,
    Layout,
    Pass,
    Variant,
)
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


def tf32_us(size: ConvolutionSize, name: str, *, layout: Layout = "contiguous") -> float:
    kernel = Kernel.convolution(size, dtype="float32", compute="tf32", layout=layout)
    [timing] = convolution_timings([kernel], find_gpu(name), sustained=False)
    return timing.time_us


def test_contiguous_layout_pays_for_transposes_inside_tf32_kernels() -> None:
    assert tf32_us(SIZE, "A100") > tf32_us(SIZE, "A100", layout="channels_last")
    assert time_us(SIZE, layout="contiguous") == time_us(SIZE)


WIDE = ConvolutionSize(64, 64, 128, 1, (1, 524280), (1, 174758), (1, 3), (1, 3), "forward")


def test_one_tap_at_every_pixel_is_a_product_without_transposes_from_a_tile_of_outputs_on() -> None:
    def ratio(outputs: int) -> float:
        size = ConvolutionSize(
            10, 480, outputs, 1, (224, 224), (224, 224), (1, 1), (1, 1), "forward"
        )
        return tf32_us(size, "H100") / tf32_us(size, "H100", layout="channels_last")

    assert ratio(64) > 1.5
    assert ratio(192) == 1.0


def test_ada_keeps_an_nchw_image_on_ordinary_cores_where_transposes_cost_more() -> None:
    assert tf32_us(WIDE, "L40S") == tf32_us(WIDE, "L40S", layout="channels_last")
    assert tf32_us(WIDE, "A100") > 1.5 * tf32_us(WIDE, "A100", layout="channels_last")


def test_every_tap_of_a_pixel_takes_its_clocks_however_few_channels_it_reads() -> None:
    """TimeSformer's patches on H100: 25,088 pixels x 256 taps x 12 tiles of 64 outputs."""
    patches = ConvolutionSize(128, 3, 768, 1, (224, 224), (14, 14), (16, 16), (16, 16), "forward")
    clocks = 25088 * 256 * 12 * 2.7
    gpu = find_gpu("H100")

    assert time_us(patches, name="H100") == pytest.approx(clocks * 1e6 / (132 * gpu.clock_hz))


def gradient(inputs: int, outputs: int, *, stride: int, rank: int = 2) -> ConvolutionSize:
    image, result = (64,) * rank, (64 // stride,) * rank
    return ConvolutionSize(
        16, inputs, outputs, 1, image, result, (3,) * rank, (stride,) * rank, "data_gradient"
    )


def test_a_gradient_reads_whole_steps_of_channels_in_tf32() -> None:
    few, step, more = (tf32_us(gradient(64, n, stride=1), "H100") for n in (3, 32, 33))

    assert few == pytest.approx(step, rel=0.25) and more > 1.2 * step


def test_strided_gradients_of_few_channels_have_tensor_core_kernels_from_hopper_on() -> None:
    few, many = gradient(16, 32, stride=2, rank=3), gradient(32, 32, stride=2, rank=3)

    assert tf32_us(few, "A100") > tf32_us(many, "A100")
    assert tf32_us(few, "H100") < tf32_us(many, "H100")


def test_a_gradient_with_stride_and_dilation_passes_over_all_taps_on_hopper() -> None:
    """8 times the taps."""

    def gradient_us(variant: Variant, name: str) -> float:
        size = gradient(256, 256, stride=2, rank=3)
        kernel = Kernel.convolution(
            size, dtype="float32", compute="tf32", layout="channels_last", variant=variant
        )
        [timing] = convolution_timings([kernel], find_gpu(name), sustained=False)
        return timing.time_us

    assert gradient_us("dilated", "H100") > 6 * gradient_us("", "H100")
    assert gradient_us("dilated", "A100") == gradient_us("", "A100")


def test_gradients_of_volumes_are_slow_on_hopper_since_cudnn_9_8() -> None:
    def volume_us(variant: Variant, name: str) -> float:
        size = gradient(64, 32, stride=1, rank=3)
        kernel = Kernel.convolution(size, dtype="float32", compute="tf32", variant=variant)
        [timing] = convolution_timings([kernel], find_gpu(name), sustained=False)
        return timing.time_us

    assert volume_us("", "H100") > 2 * volume_us("cudnn_9_1", "H100")
    assert volume_us("", "A100") == volume_us("cudnn_9_1", "A100")


def test_groups_of_channels_last_images_are_slow_under_the_cudnn_of_torch_2_5() -> None:
    size = ConvolutionSize(10, 240, 120, 3, (224, 224), (224, 224), (1, 1), (1, 1), "forward")
    new = Kernel.convolution(size, dtype="float32", compute="tf32", layout="channels_last")
    old = replace(new, variant="cudnn_9_1")

    there, here = convolution_timings([old, new], find_gpu("H100"), sustained=False)

    assert there.time_us > 2 * here.time_us


def test_without_tensor_cores_a_strided_gradient_passes_over_idle_taps_where_taps_overlap() -> None:
    overlapping, apart = (
        gradient(64, 32, stride=2)._replace(kernel=(taps, taps)) for taps in (4, 2)
    )

    idle = time_us(overlapping, dtype="float32", name="T4")

    assert idle > 9 * time_us(apart, dtype="float32", name="T4")


def test_groups_are_slow_on_gpus_without_tf32() -> None:
    one = ConvolutionSize(10, 240, 120, 1, (56, 56), (56, 56), (1, 1), (1, 1), "forward")
    three = one._replace(groups=3)

    assert time_us(three, dtype="float32", name="T4") > 5 * time_us(one, dtype="float32", name="T4")
    assert tf32_us(three, "A100") < 2 * tf32_us(one, "A100")


def test_a_depthwise_output_takes_instructions_for_itself_and_for_each_tap() -> None:
    """3 x 7 taps on H100: 110 + 21 x 23 instructions, of which an SM starts 128 a clock."""
    size = ConvolutionSize(32, 128, 128, 128, (128, 256), (126, 250), (3, 7), (1, 1), "forward")
    outputs = 32 * 128 * 126 * 250

    expected = outputs * (110 + 21 * 23) / (128 * 132 * 1755)

    assert time_us(size, dtype="float32", name="H100") == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_depthwise_of_channels_last_images_is_cudnns_in_16_bits_too(dtype: str) -> None:
    size = ConvolutionSize(32, 96, 96, 96, (56, 56), (56, 56), (7, 7), (1, 1), "forward")
    nchw = Kernel.convolution(size, dtype=dtype, layout="contiguous")
    nhwc = Kernel.convolution(size, dtype=dtype, layout="channels_last")

    [there, here] = predict([nchw, nhwc], "RTX-4090")

    assert there.latency_us > 2 * here.latency_us


@pytest.mark.parametrize(
    ("direction", "stride", "share"),
    [
        ("forward", 1, 0.5),
        ("data_gradient", 1, 0.75),
        ("weight_gradient", 1, 1.0),
        ("forward", 2, 1.0),
    ],
)
def test_a_thread_of_cudnns_depthwise_kernels_computes_two_channels_of_16_bits(
    direction: Pass, stride: int, share: float
) -> None:
    """9 taps of 64 images, 40 + 9 x 10 instructions in FP32, of which an SM starts 128 a clock."""
    image, result = (112, 112), (112 // stride, 112 // stride)
    size = ConvolutionSize(64, 32, 32, 32, image, result, (3, 3), (stride, stride), direction)
    kernel = Kernel.convolution(size, dtype="float16", layout="channels_last")

    [timing] = convolution_timings([kernel], find_gpu("H100"), sustained=True)

    expected = share * 64 * 32 * math.prod(result) * (40 + 9 * 10) / (128 * 132 * 1755)
    assert timing.time_us == pytest.approx(expected, rel=0.12)


def test_depthwise_is_far_from_peak() -> None:
    size = ConvolutionSize(32, 512, 512, 512, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float16", layout="channels_last")

    [estimate] = predict([kernel], "A100")

    assert estimate.utilization < 0.05
    assert estimate.latency_us > kernel.num_bytes / 2039e3


@settings(max_examples=150)
@given(
    st.sampled_from(["forward", "data_gradient", "weight_gradient"]),
    st.integers(0, 64), st.integers(1, 300), st.integers(1, 300), st.integers(0, 64),
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
    # Winograd's gradients gain with channels, also with those that only fill a tile.
    gains = taps == 3 and dtype == "float32" and direction != "forward"
    least = before * (0.8 if gains else 1 - 1e-9)
    for larger in (
        size._replace(batch=batch + more),
        size._replace(in_channels=inputs + more),
        size._replace(out_channels=outputs + more),
        size._replace(input=(image + more,) * 2, output=(image + more,) * 2),
    ):
        assert time_us(larger, dtype=dtype) >= least


def test_winograd_beats_the_direct_flops_in_fp32_only() -> None:
    size = ConvolutionSize(32, 256, 256, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float32")

    assert flop_roofline_us(kernel, find_gpu("V100")) * 2.25 == pytest.approx(
        kernel.flops / 15.7e12 * 1e6
    )
    assert time_us(size, dtype="float32", name="V100") < time_us(
        size._replace(stride=(1, 2)), dtype="float32", name="V100"
    )


@pytest.mark.parametrize(
    ("direction", "channels", "measured_us"),
    [("data_gradient", 256, 284), ("weight_gradient", 256, 276), ("weight_gradient", 512, 294)],
)
def test_winograd_gains_more_in_gradients_the_more_channels_there_are(
    direction: Literal["data_gradient", "weight_gradient"], channels: int, measured_us: float
) -> None:
    """A profile of ResNet-50's training on V100, images that chose no constant."""
    image = (3584 // channels,) * 2
    size = ConvolutionSize(32, channels, channels, 1, image, image, (3, 3), (1, 1), direction)
    few = size._replace(in_channels=16, out_channels=16)

    assert time_us(size, dtype="float32", name="V100") == pytest.approx(measured_us, rel=0.3)
    assert time_us(few, dtype="float32", name="V100") > 16**2 / channels**2 * 2 * measured_us


def test_kernels_in_cpp_reach_a_share_of_the_fp32_peak() -> None:
    size = ConvolutionSize(32, 1024, 256, 1, (14, 14), (14, 14), (1, 1), (1, 1), "data_gradient")
    flops = Kernel.convolution(size, dtype="float32").flops

    assert time_us(size, dtype="float32", name="V100") == pytest.approx(
        flops / (0.62 * 15.7e12) * 1e6
    )


def test_patches_of_few_images_leave_sms_idle() -> None:
    """ViT-base, 4 images, bf16 on H100: 98.2 µs in a profile, on 48 of 132 SMs."""
    patches = ConvolutionSize(4, 3, 768, 1, (224, 224), (14, 14), (16, 16), (16, 16), "forward")

    assert time_us(patches, dtype="bfloat16", name="H100") == pytest.approx(98.2, rel=0.05)


@pytest.mark.parametrize(("edge", "channels", "measured_us"), [(14, 256, 26.2), (7, 512, 26.1)])
def test_gradients_take_longer_than_products_on_amd(
    edge: int, channels: int, measured_us: float
) -> None:
    """ResNet's backward in bf16 on MI300X, half of both gradients; these chose no constant."""
    image = (edge, edge)
    size = ConvolutionSize(10, channels, channels, 1, image, image, (3, 3), (1, 1), "data_gradient")
    weight = size._replace(direction="weight_gradient")

    both = [time_us(one, dtype="bfloat16", name="MI300X") for one in (size, weight)]

    assert sum(both) / 2 == pytest.approx(measured_us, rel=0.2)


@pytest.mark.parametrize(("name", "reaches"), [("RTX 3090", True), ("A40", False)])
def test_a_large_convolution_reaches_the_peak_of_units_at_half_rate(
    name: str, *, reaches: bool
) -> None:
    size = ConvolutionSize(256, 256, 256, 1, (28, 28), (28, 28), (3, 3), (1, 1), "forward")
    kernel = Kernel.convolution(size, dtype="float16")

    share = flop_roofline_us(kernel, find_gpu(name)) / time_us(size, name=name)

    assert (share > 0.95) is reaches


REFUSED = ConvolutionSize(8, 30, 64, 2, (16, 16), (16, 16), (3, 3), (1, 1), "forward")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (REFUSED._replace(groups=7), "in_channels is 30, which 7 groups do not divide"),
        (REFUSED._replace(groups=3), "out_channels is 64, which 3 groups do not divide"),
        (REFUSED._replace(groups=0), "which 0 groups do not divide"),
        (REFUSED._replace(output=(-2, 16)), "output edge is -2; a size cannot be negative"),
        (REFUSED._replace(in_channels=-2), "in_channels is -2; a size cannot be negative"),
    ],
)
def test_a_convolution_that_torch_refuses_is_refused(size: ConvolutionSize, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Kernel.convolution(size, dtype="float16")


ODD_SIZES = {
    "an empty result": ConvolutionSize(8, 16, 16, 1, (4, 4), (0, 0), (7, 7), (1, 1), "forward"),
    "no images": ConvolutionSize(0, 16, 16, 1, (4, 4), (4, 4), (3, 3), (1, 1), "forward"),
    "no channels": ConvolutionSize(8, 0, 16, 1, (4, 4), (4, 4), (3, 3), (1, 1), "forward"),
    "a pixel": ConvolutionSize(1, 1, 1, 1, (1, 1), (1, 1), (1, 1), (1, 1), "forward"),
    "one channel": ConvolutionSize(8, 1, 1, 1, (224, 224), (224, 224), (3, 3), (1, 1), "forward"),
    "a filter larger than the map": ConvolutionSize(
        8, 16, 16, 1, (4, 4), (1, 1), (31, 31), (1, 1), "forward"
    ),
    "10^10 elements": ConvolutionSize(
        10**4, 10**3, 10**3, 1, (10**3, 1), (10**3, 1), (3, 3), (1, 1), "forward"
    ),
    "a point of a volume": ConvolutionSize(
        1, 1, 1, 1, (1, 1, 1), (1, 1, 1), (3, 3, 3), (1, 1, 1), "forward"
    ),
}


@pytest.mark.parametrize("name", ["V100", "T4", "GTX 1080 Ti", "A100", "H100", "MI300X", "RX 6800"])
@pytest.mark.parametrize("what", ODD_SIZES)
def test_odd_convolutions_have_a_price_in_every_pass_and_layout(what: str, name: str) -> None:
    directions: tuple[Pass, ...] = ("forward", "data_gradient", "weight_gradient")
    layouts: tuple[Layout, ...] = ("contiguous", "channels_last")
    variants: tuple[Variant, ...] = ("", "fastest")
    kernels = [
        Kernel.convolution(
            ODD_SIZES[what]._replace(direction=direction),
            dtype=dtype,
            layout=layout,
            variant=variant,
        )
        for direction in directions
        for layout in layouts
        for dtype in ("float32", "float16", "bfloat16")
        for variant in variants
    ]

    for estimate in predict(kernels, find_gpu(name)):
        assert 0.0 < estimate.low_us <= estimate.latency_us <= estimate.high_us < math.inf


def test_patches_of_an_image_on_amd_take_what_their_steps_and_copies_do() -> None:
    """data/profiled_kernels on MI300X: ViT's patches of 4 images 46 us, OWLv2's of one image of
    1008 pixels 105 (by another algorithm)."""
    vit = ConvolutionSize(4, 3, 768, 1, (224, 224), (14, 14), (16, 16), (16, 16), "forward")
    owl = ConvolutionSize(1, 3, 1024, 1, (1008, 1008), (72, 72), (14, 14), (14, 14), "forward")
    kernels = [
        Kernel.convolution(size, dtype="bfloat16", layout="contiguous") for size in (vit, owl)
    ]

    first, second = predict(kernels, "MI300X")

    assert first.latency_us == pytest.approx(46, rel=0.2)
    assert second.latency_us == pytest.approx(105, rel=0.25)
    [plain] = convolution_timings(kernels[:1], find_gpu("H100"), sustained=False)
    assert plain.at_most_us == math.inf
