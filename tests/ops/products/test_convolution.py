"""Convolutions and their gradients, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.ops.products.convolution import is_depthwise_of_torch
from neusight.predictors.gpu import find_gpu
from neusight.predictors.registry import predict
from neusight.recording.recording import MathMode
from op_calls import call, check_flops, convolution, kernels, names, spec


def test_a_convolution_counts_every_tap() -> None:
    (kernel,) = kernels(convolution("float32"))

    assert kernel.flops == 2 * 8 * 64 * 32 * 32 * 16 * 9
    assert (kernel.compute, kernel.layout) == ("tf32", "contiguous")
    assert kernels(convolution("float32"), MathMode(cudnn_tf32=False))[0].compute == "fp32"


def test_half_precision_images_in_nchw_are_turned_and_turned_back() -> None:
    assert names(convolution("bfloat16", bias=True)) == [
        "nchw_to_nhwc",
        "nchw_to_nhwc",
        "convolution_forward",
        "nhwc_to_nchw",
        "add",
    ]
    assert names(convolution("bfloat16", channels_last=True)) == ["convolution_forward"]


def test_miopen_gets_contiguous_tensors() -> None:
    """Each operand in NHWC is copied; a recording for cuDNN, whose result is NHWC, shows no copy,
    as all images would have been NCHW here."""
    miopen = MathMode(miopen=True)

    *copies, kernel = kernels(convolution("float16", channels_last=True, result=False), miopen)

    assert [copy.name for copy in copies] == ["copy", "copy"]
    assert kernel.layout == "contiguous"
    assert kernels(convolution("float16", channels_last=True), miopen) == (kernel,)
    assert kernels(convolution("float16"), miopen) == (kernel,)


def test_a_transform_turns_tiles_of_32_pixels_by_32_channels_full_or_not() -> None:
    image, weight, _, result, _ = kernels(convolution("bfloat16", bias=True))

    assert [kernel.size for kernel in (image, weight, result)] == [
        (8 * 1 * 32, 1024),
        (64 * 1 * 1, 1024),
        (8 * 2 * 32, 1024),
    ]
    assert image.num_bytes == 2 * 2 * 8 * 16 * 32 * 32


def test_one_tap_at_every_pixel_is_a_product_that_turns_nothing() -> None:
    def pointwise(*stride: int) -> list[str]:
        signature = call(
            "convolution",
            spec(8, 64, 32 // stride[0], 32 // stride[1], dtype="float16"),
            input_=spec(8, 16, 32, 32, dtype="float16"),
            weight=spec(64, 16, 1, 1, dtype="float16"),
            bias=None,
            stride=stride,
            transposed=False,
            groups=1,
        )
        return names(signature)

    assert pointwise(1, 1) == ["convolution_forward"]
    assert len(pointwise(2, 2)) == 4


def test_convolutions_of_volumes_say_which_cudnn_they_run_on() -> None:
    volume = call(
        "convolution",
        spec(8, 64, 30, 30, 30),
        input_=spec(8, 16, 32, 32, 32),
        weight=spec(64, 16, 3, 3, 3),
        bias=None,
        stride=(1, 1, 1),
        transposed=False,
        groups=1,
    )
    releases = [(2, 7), (2, 9), (2, 11)]

    variants = [kernels(volume, MathMode(torch=release))[0].variant for release in releases]

    assert variants == ["cudnn_9_1", "", ""]
    assert kernels(convolution("float32"), MathMode(torch=(2, 7)))[0].variant == ""


@pytest.mark.parametrize(("groups", "old"), [(1, ""), (4, "cudnn_9_1"), (16, "")])
def test_convolutions_of_groups_but_depthwise_say_that_their_cudnn_is_old(
    groups: int, old: str
) -> None:
    grouped = call(
        "convolution",
        spec(8, 16, 32, 32),
        input_=spec(8, 16, 32, 32),
        weight=spec(16, 16 // groups, 1, 1),
        bias=None,
        stride=(1, 1),
        transposed=False,
        groups=groups,
    )
    modes = [MathMode(torch=(2, 5)), MathMode(torch=(2, 9)), MathMode(torch=(2, 5), miopen=True)]

    assert [kernels(grouped, mode)[0].variant for mode in modes] == [old, "", ""]


@pytest.mark.parametrize(
    ("channels", "taps", "stride", "old"),
    [(3, 16, 16, "cudnn_9_1"), (3, 16, 8, ""), (8, 16, 16, ""), (3, 1, 1, "")],
)
def test_only_patches_of_images_say_that_their_cudnn_is_old(
    channels: int, taps: int, stride: int, old: str
) -> None:
    edge = (224 - taps) // stride + 1
    embedding = call(
        "convolution",
        spec(8, 768, edge, edge),
        input_=spec(8, channels, 224, 224),
        weight=spec(768, channels, taps, taps),
        bias=None,
        stride=(stride, stride),
        transposed=False,
        groups=1,
    )
    modes = [MathMode(torch=(2, 7)), MathMode(torch=(2, 9)), MathMode(torch=(2, 7), miopen=True)]

    assert [kernels(embedding, mode)[0].variant for mode in modes] == [old, "", ""]


@pytest.mark.parametrize(
    ("stride", "dilation", "variant"), [(2, 2, "dilated"), (2, 1, ""), (1, 2, "dilated")]
)
def test_a_convolution_says_whether_it_has_a_dilation(
    stride: int, dilation: int, variant: str
) -> None:
    signature = call(
        "convolution",
        spec(8, 32, 65, 65),
        input_=spec(8, 16, 32, 32),
        weight=spec(16, 32, 3, 3),
        bias=None,
        stride=(stride, stride),
        dilation=(dilation, dilation),
        transposed=True,
        groups=1,
    )

    (kernel,) = kernels(signature)

    assert kernel.variant == variant


def test_gradients_of_a_convolution_are_those_asked_for() -> None:
    def gradients(*mask: bool) -> list[str]:
        signature = call(
            "convolution_backward",
            None,
            None,
            None,
            grad_output=spec(8, 64, 32, 32),
            input_=spec(8, 16, 32, 32),
            weight=spec(64, 16, 3, 3),
            bias_sizes=(64,),
            stride=(1, 1),
            padding=(1, 1),
            dilation=(1, 1),
            transposed=False,
            output_padding=(0, 0),
            groups=1,
            output_mask=mask,
        )
        return names(signature)

    both = ["convolution_data_gradient", "convolution_weight_gradient"]
    assert gradients(True, True, True) == [*both, "sum"]
    assert gradients(False, True, False) == both[1:]


def test_a_transposed_convolution_is_the_data_gradient_of_another() -> None:
    signature = call(
        "convolution",
        spec(4, 8, 16, 16),
        input_=spec(4, 32, 8, 8),
        weight=spec(32, 8, 4, 4),
        bias=None,
        stride=(2, 2),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=True,
        output_padding=(0, 0),
        groups=1,
    )

    (kernel,) = kernels(signature)
    assert kernel.name == "convolution_data_gradient"
    assert kernel.flops == 2 * 4 * 32 * 8 * 8 * 8 * 16


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv1d(8, 16, 3, padding=1),
        lambda: nn.Conv2d(8, 16, (3, 5), stride=2, padding=1),
        lambda: nn.Conv2d(8, 16, 3, dilation=2),
        lambda: nn.Conv3d(8, 16, 3, stride=(1, 2, 2)),
        lambda: nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1),
    ],
    ids=["1d", "strided", "dilated", "3d", "transposed"],
)
def test_flops_of_convolutions_are_those_of_torch(layer: Callable[[], nn.Module]) -> None:
    def program() -> None:
        module: Any = layer()
        rank = module.weight.dim() - 2
        image = torch.empty(2, 8, *(12, 14, 16)[:rank], requires_grad=True)
        out = module(image)
        out.backward(torch.empty_like(out))

    check_flops(program, 2)


def test_a_bias_is_added_by_a_pass_of_its_own_unless_it_is_fused() -> None:
    image, weight, bias = spec(1, 4, 8, 8), spec(6, 4, 1, 1), spec(6)
    result = spec(1, 6, 8, 8)
    arguments: dict[str, Any] = {
        "self": image,
        "weight": weight,
        "bias": bias,
        "stride": (1, 1),
        "groups": 1,
    }

    (fused,) = kernels(call("cudnn_convolution_relu", result, **arguments))
    plain, add = kernels(call("slow_conv_dilated2d", result, **arguments))

    assert fused.flops == plain.flops == 2 * 6 * 64 * 4
    assert (add.bytes_read, add.bytes_written) == (4 * (384 + 6), 4 * 384)


def test_groups_are_derived_from_the_weight_where_the_op_does_not_say() -> None:
    """Depthwise: each of 8 filters reads one of 8 channels."""
    (kernel,) = kernels(
        call("_conv_depthwise2d", spec(1, 8, 6, 6), self=spec(1, 8, 8, 8), weight=spec(8, 1, 3, 3),
             kernel_size=(3, 3), bias=None, stride=(1, 1))
    )  # fmt: skip

    assert kernel.flops == 2 * 8 * 36 * 9


@pytest.mark.parametrize(
    ("math", "launched"),
    [
        (MathMode(), ["convolution_forward"]),
        (MathMode(miopen=True), ["convolution_forward", "add"]),
    ],
)
def test_torchs_own_depthwise_kernel_begins_with_the_bias(
    math: MathMode, launched: list[str]
) -> None:
    signature = call(
        "convolution", spec(1, 8, 8, 8), input_=spec(1, 8, 8, 8), weight=spec(8, 1, 7, 7),
        bias=spec(8), stride=(1, 1), padding=(3, 3), dilation=(1, 1), transposed=False,
        output_padding=(0, 0), groups=8,
    )  # fmt: skip

    kernel, *_ = found = kernels(signature, math)

    assert [one.name for one in found] == launched
    assert kernel.bytes_read == 4 * (512 + 8 * 49 + 8 * (not math.miopen))


@pytest.mark.parametrize(
    ("batch", "channels", "edge", "measured_us"),
    [(32, 64, 224, 167.5), (32, 128, 112, 200.7), (32, 512, 28, 38.2), (32, 512, 14, 14.3)],
)
def test_the_bias_gradient_of_nhwc_is_summed_over_rows(
    batch: int, channels: int, edge: int, measured_us: float
) -> None:
    """`tv_vgg16_fp16_nhwc` in benchmarks/measured/h100."""
    times = []
    for is_last in (True, False):
        given = spec(batch, channels, edge, edge, dtype="float16", channels_last=is_last)
        backward = call(
            "convolution_backward", None, None, spec(channels, dtype="float16"), grad_output=given,
            input_=given, weight=spec(channels, channels, 3, 3), stride=(1, 1), padding=(1, 1),
            dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1,
            output_mask=(False, False, True),
        )  # fmt: skip
        [estimate] = predict(kernels(backward), find_gpu("H100"), "tiled_burst")
        times.append(estimate.latency_us)

    assert times[0] == pytest.approx(measured_us, rel=0.15)
    assert times[1] < 0.9 * times[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_last", [False, True])
def test_depthwise_convolutions_of_torchs_own_are_those_that_torch_says(
    dtype: torch.dtype, is_last: bool
) -> None:
    """torch._C._select_conv_backend, asked in a forecast."""
    asked: Any = torch._C
    with neusight.forecast_on("H100"):
        for channels, size, stride, dilation in product(
            (8, 31, 32, 512), (3, 5, 7), (1, 2, 3), (1, 2)
        ):
            image: Any = torch.empty(2, channels, 56, 56, dtype=dtype, device="cuda")
            weight = torch.empty(channels, 1, size, size, dtype=dtype, device="cuda")
            if is_last:
                image = image.to(memory_format=torch.channels_last)
            pair = ([stride] * 2, [dilation * (size // 2)] * 2, [dilation] * 2)
            backend = asked._select_conv_backend(
                image, weight, None, *pair, False, [0, 0], channels
            )
            signature = call(
                "convolution",
                input_=spec(*image.shape, dtype=str(dtype)[6:], channels_last=is_last),
                weight=spec(*weight.shape, dtype=str(dtype)[6:]),
                stride=(stride, stride),
                dilation=(dilation, dilation),
                transposed=False,
                groups=channels,
            )

            is_own = str(backend).endswith("CudaDepthwise2d")
            assert is_depthwise_of_torch(signature) == is_own, (channels, size, stride, dilation)
