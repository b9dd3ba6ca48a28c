"""Normalizations: their kernels, and what these read and write."""

from __future__ import annotations

from typing import Any

from op_calls import call, kernels, names, spec


def test_layer_norm_has_two_kernels_backward() -> None:
    x, column, statistic = spec(128, 768), spec(768), spec(128, 1)

    rows, columns = kernels(
        call(
            "native_layer_norm_backward",
            x,
            column,
            column,
            grad_out=x,
            input_=x,
            normalized_shape=(768,),
            mean=statistic,
            rstd=statistic,
            weight=column,
            bias=column,
            output_mask=(True, True, True),
        )
    )

    assert (rows.name, rows.size) == ("layer_norm_backward", (128, 768))
    assert (columns.name, columns.size) == ("layer_norm_backward_weight", (768, 128))
    assert columns.bytes_written == 2 * 768 * 4


def test_cudnn_batch_norm_is_one_kernel_and_the_native_one_three() -> None:
    x, column = spec(8, 16, 4, 4), spec(16)
    arguments: dict[str, Any] = {
        "input_": x,
        "weight": column,
        "bias": column,
        "running_mean": column,
        "running_var": column,
        "training": True,
    }

    assert names(call("cudnn_batch_norm", x, column, column, **arguments)) == ["batch_norm"]
    assert names(call("native_batch_norm", x, column, column, **arguments)) == [
        "batch_norm_statistics",
        "batch_norm_update",
        "batch_norm",
    ]


def test_norms_of_whole_rows_are_contiguous_whatever_their_weights() -> None:
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
    assert [kernel.layout for kernel in kernels(strided)] == ["strided"]
