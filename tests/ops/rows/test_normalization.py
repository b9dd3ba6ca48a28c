"""Normalizations: their kernels, and what these read and write."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.predictors.kernel import Kernel
from neusight.recording.recording import MathMode
from op_calls import call, kernels, names, spec


def test_norms_of_whole_rows_are_contiguous_whatever_their_weights() -> None:
    """An input that is not is copied first."""
    source, row, column = spec(64, 256), spec(64, 1), spec(256)
    forward = call(
        "native_layer_norm", source, row, row,
        input=source, normalized_shape=(256,), weight=column, bias=column, eps=1e-5,
    )  # fmt: skip
    turned = spec(256, 64)._replace(shape=(64, 256), stride=(1, 64))
    strided = call(
        "native_layer_norm", source, row, row,
        input=turned, normalized_shape=(256,), weight=column, bias=column, eps=1e-5,
    )  # fmt: skip

    assert [kernel.layout for kernel in kernels(forward)] == ["contiguous"]
    assert [(kernel.name, kernel.layout) for kernel in kernels(strided)] == [
        ("copy", "strided"),
        ("layer_norm", "contiguous"),
    ]


def test_a_layer_norm_reads_its_input_once_and_writes_it_with_two_statistics_a_row() -> None:
    """128 rows of 768 floats; weight and bias are 768 each."""
    x, column, row = spec(128, 768), spec(768), spec(128, 1)

    (kernel,) = kernels(
        call("native_layer_norm", x, row, row, input_=x, normalized_shape=(768,), weight=column,
             bias=column)
    )  # fmt: skip

    assert kernel.size == (128, 768)
    assert kernel.bytes_read == 4 * (128 * 768 + 2 * 768)
    assert kernel.bytes_written == 4 * (128 * 768 + 2 * 128)


def test_only_gradients_asked_for_are_made() -> None:
    x, column, row = spec(128, 768), spec(768), spec(128, 1)

    def launched(*mask: bool) -> list[str]:
        return names(
            call("native_layer_norm_backward", x, column, column, grad_out=x, input_=x,
                 normalized_shape=(768,), mean=row, rstd=row, weight=column, bias=column,
                 output_mask=mask)
        )  # fmt: skip

    assert launched(True, False, False) == ["layer_norm_backward"]
    assert launched(False, True, False) == ["layer_norm_backward_weight"]
    assert launched(False, False, False) == []


def group_norm(weight: bool) -> tuple[Kernel, ...]:
    """4 images of 16 channels in 2 groups, 8 x 8."""
    x, column = spec(4, 16, 8, 8), spec(16) if weight else None
    return kernels(
        call("native_group_norm", x, spec(4, 2), spec(4, 2), input_=x, weight=column, bias=column,
             N=4, C=16, HxW=64, group=2, eps=1e-5)
    )  # fmt: skip


def test_a_group_norm_has_moments_a_group_then_factors_a_channel_then_a_pass() -> None:
    moments, factors, apply = group_norm(weight=True)

    assert moments.size == (8, 512)
    assert (moments.bytes_read, moments.bytes_written) == (4 * 4096, 2 * 4 * 8)
    assert factors.bytes_written == 2 * 4 * 64
    assert (apply.bytes_read, apply.bytes_written) == (4 * (4096 + 2 * 64), 4 * 4096)
    assert [kernel.name for kernel in group_norm(weight=False)] == [
        "group_norm_moments",
        "group_norm",
    ]


def test_batch_norm_at_inference_and_in_training_are_two_small_kernels_and_a_pass() -> None:
    x, column = spec(8, 16, 4, 4), spec(16)
    arguments: dict[str, Any] = {
        "input_": x, "weight": column, "bias": column, "running_mean": column,
        "running_var": column,
    }  # fmt: skip

    copied, inverted, inference = kernels(
        call("native_batch_norm", x, column, column, **arguments, training=False)
    )
    statistics, update, apply = kernels(
        call("native_batch_norm", x, column, column, **arguments, training=True)
    )

    assert (copied.name, inverted.name) == ("memcpy_d2d", "batch_norm_invstd")
    assert (inference.bytes_read, inference.bytes_written) == (4 * (2048 + 64), 4 * 2048)
    assert inference.size == (8 * 16, 16)
    assert (statistics.size, statistics.bytes_written) == ((16, 128), 4 * 32)
    assert (update.bytes_read, update.bytes_written) == (4 * 64, 4 * 32)
    assert apply.bytes_read == 4 * (2048 + 64)


def test_the_gradient_of_batch_norm_is_one_kernel_in_nchw_and_two_in_nhwc() -> None:
    column = spec(16)

    def launched(channels_last: bool) -> list[str]:
        x = spec(8, 16, 4, 4, channels_last=channels_last)
        return names(
            call("native_batch_norm_backward", x, column, column, grad_out=x, input_=x,
                 weight=column, train=True, output_mask=(True, True, True))
        )  # fmt: skip

    assert launched(False) == ["batch_norm_backward"]
    assert launched(True) == ["batch_norm_backward_sums", "batch_norm_backward"]


def test_a_group_norm_without_an_image_needs_no_factors() -> None:
    rows, channels = spec(8, 512), spec(512)
    statistics = spec(8, 16)
    signature = call("native_group_norm", rows, statistics, statistics, input_=rows, HxW=1,
                     weight=channels, bias=channels, N=8, C=512, group=16, eps=1e-5)  # fmt: skip

    moments, norm = kernels(signature)
    assert (moments.name, norm.name) == ("group_norm_moments", "group_norm")
    assert norm.bytes_read == rows.num_bytes + 2 * channels.num_bytes + 2 * 4 * 8 * 16


def test_before_torch_had_an_rms_norm_it_took_many_passes_in_fp32() -> None:
    """bf16: copy 2+4 bytes of each element, square 8, mean 4, product 8, copy 4+2, weight 4."""
    x, column = spec(128, 4096, dtype="bfloat16"), spec(4096, dtype="bfloat16")
    forward = call("_fused_rms_norm", x, input_=x, normalized_shape=(4096,), weight=column)
    backward = call(
        "_fused_rms_norm_backward", x, column, grad_out=x, input_=x, normalized_shape=(4096,),
        weight=column, output_mask=(True, True),
    )  # fmt: skip

    before, since = (
        [kernels(forward, MathMode(torch=torch)), kernels(backward, MathMode(torch=torch))]
        for torch in ((2, 6), (2, 9))
    )

    assert [len(found) for found in since] == [1, 2]
    assert len(before[0]) == 8
    moved = sum(kernel.num_bytes for kernel in before[0])
    assert moved == pytest.approx(36 * x.numel, rel=0.01)
    assert sum(k.num_bytes for k in before[1]) > 5 * sum(k.num_bytes for k in since[1])
