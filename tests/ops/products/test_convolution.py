"""Convolutions and their gradients, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neusight.recording.recording import MathMode, OpSignature
from op_calls import call, check_flops, kernels, names, spec


def convolution(dtype: str, *, channels_last: bool = False, bias: bool = False) -> OpSignature:
    """8 images of 16 x 32 x 32 to 64 channels by 3 x 3."""
    return call(
        "convolution",
        spec(8, 64, 32, 32, dtype=dtype, channels_last=channels_last),
        input_=spec(8, 16, 32, 32, dtype=dtype, channels_last=channels_last),
        weight=spec(64, 16, 3, 3, dtype=dtype, channels_last=channels_last),
        bias=spec(64, dtype=dtype) if bias else None,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=1,
    )


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
