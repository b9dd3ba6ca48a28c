"""Operands that an op copies before its kernels."""

from __future__ import annotations

from neusight.ops.made_contiguous import copied_operands
from op_calls import call, kernels, names, spec

EXPANDED = spec(64, 256)._replace(stride=(0, 0))


def test_the_expanded_gradient_of_a_sum_is_written_out_before_an_rms_norms_backward() -> None:
    """64 rows of 256 floats: one float is read, 64 KiB are written."""
    x, column, statistic = spec(64, 256), spec(256), spec(64, 1)

    copy, *rest = kernels(
        call(
            "_fused_rms_norm_backward", x, column,
            grad_out=EXPANDED, input=x, normalized_shape=(256,), rstd=statistic, weight=column,
            output_mask=(True, True),
        )
    )  # fmt: skip

    assert (copy.name, copy.bytes_read, copy.bytes_written) == ("copy", 4, 64 * 256 * 4)
    assert [kernel.name for kernel in rest] == ["rms_norm_backward", "rms_norm_backward_weight"]
    assert {kernel.layout for kernel in rest} == {"contiguous"}


def test_after_the_copy_the_op_costs_what_it_does_of_a_contiguous_operand() -> None:
    x = spec(64, 256)

    _, after = kernels(call("_log_softmax", x, self=EXPANDED, dim=1, half_to_float=False))

    assert (after,) == kernels(call("_log_softmax", x, self=x, dim=1, half_to_float=False))


def test_contiguous_operands_are_not_copied() -> None:
    x = spec(64, 256)

    assert copied_operands(call("_log_softmax", x, self=x, dim=1, half_to_float=False)) == {}


def test_pooling_reads_images_in_nhwc_order_as_they_are() -> None:
    image, small = spec(2, 8, 16, 16), spec(2, 8, 8, 8)
    turned = image._replace(stride=(2048, 1, 128, 8))
    sliced = image._replace(stride=(8192, 512, 32, 1))

    def pooled(source: object) -> list[str]:
        return names(call("avg_pool2d", small, self=source, kernel_size=(2, 2)))

    assert pooled(turned) == pooled(image) == ["avg_pool"]
    assert pooled(sliced) == ["copy", "avg_pool"]


def test_operands_on_the_host_are_not_copied_on_the_gpu() -> None:
    mine = EXPANDED._replace(device="cpu")

    assert copied_operands(call("_log_softmax", spec(64, 256), self=mine, dim=1)) == {}
