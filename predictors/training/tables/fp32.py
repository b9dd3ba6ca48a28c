"""The FP32 tables: operators of models, whose labels hold the host's overhead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass, Variant, size_of
from neusight.predictors.training.dataset import Group, Launches, is_held_out
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.tables.files import (
    DataFrame,
    Table,
    group_of,
    grouped,
)

#: Inputs of the FP32 vector ops; a trailing u (addu, divu, mulu, powu): with a scalar.
_VECTOR_INPUTS = {"add": 2, "div": 2, "mul": 2, "pow": 2}

_WITH_SCALAR = "u"

#: Softmax rows up to which a warp takes the row. Wider ones went three times through every row in
#: the release of these tables (torch 2.1), whatever its alignment.
_WARP_SOFTMAX = 1024


def _fp32_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    for (label, op), target, rows in grouped(frame, ("gpu", "op"), book, "kernels", left_out):
        columns = {
            name: rows[name].fillna(0).astype(np.int64).tolist()
            for name in ("B", "M", "N", "K", "H")
        }
        launches: list[Launches] = []
        for batch, m, inner, outer, width in zip(*columns.values(), strict=True):
            if op == "linear":
                kernel = Kernel.gemm(m, outer, inner, dtype="float32", bias=True)
            elif op == "bmm":
                kernel = Kernel.gemm(m, outer, inner, batch=batch, dtype="float32", layout="nn")
            else:
                kernel = _vector_op(op, batch, width)
            launches.append((kernel,))
        yield group_of(
            rows,
            target,
            (label, "kernels", "fp32", op),
            launches,
            [*columns.values()],
            has_overhead=True,
            is_model_shape=(rows["split"] == "model_shapes").to_numpy()
            if "split" in rows.columns
            else None,
        )


def _vector_op(op: str, rows: int, width: int) -> Kernel:
    if op not in ("softmax", "ln"):
        stem = op.removesuffix(_WITH_SCALAR)
        return Kernel.elementwise(
            stem if stem in _VECTOR_INPUTS else op,
            rows * width,
            dtype="float32",
            num_inputs=_VECTOR_INPUTS.get(op, 1),
        )
    is_softmax = op == "softmax"
    name: Variant = "softmax" if is_softmax else "layer_norm"
    return Kernel.rows(
        KernelClass.SOFTMAX if is_softmax else KernelClass.NORMALIZATION,
        name,
        rows,
        width,
        dtype="float32",
        variant=name,
        layout="scalar" if is_softmax and width > _WARP_SOFTMAX else "contiguous",
        bytes_read=4 * rows * width,
        bytes_written=4 * rows * width,
    )


def _convolution_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    for (label,), target, rows in grouped(frame, ("gpu",), book, "conv_kernels", left_out):
        sizes = [rows[column].astype(np.int64).tolist() for column in _CONVOLUTION_SIZES]
        launches: list[Launches] = []
        fits = np.ones(len(rows), dtype=np.bool_)
        for index, (batch, inputs, outputs, edge, image, stride, padding) in enumerate(
            zip(*sizes, strict=True)
        ):
            result = (image + 2 * padding - edge) // max(1, stride) + 1
            fits[index] = result > 0 and stride > 0
            size = ConvolutionSize(
                batch,
                inputs,
                outputs,
                1,
                (image, image),
                (max(1, result), max(1, result)),
                (edge, edge),
                (max(1, stride), max(1, stride)),
                "forward",
            )
            launches.append((Kernel.convolution(size, dtype="float32"),))
        names = (label, "conv_kernels", "fp32", "conv")
        group = group_of(rows, target, names, launches, sizes, has_overhead=True)
        yield _without_growth(group.chosen(fits))


def _without_growth(group: Group) -> Group:
    """The group without what the host's overhead grew by from its first row to its last.

    The rows stand in the order in which they were measured, and the labels of short convolutions
    rise along them: from 65 to 360 µs on an A100, 110 to 760 on a P100, whatever their sizes, and
    those of long ones by as much. A parabola over the order, from half of the short ones (by their
    hash), which are left out; a table that has too few of them is taken as it is.
    """
    order = np.linspace(0.0, 1.0, len(group.launches))
    # A kernel that takes less than the growth of the overhead.
    is_short = np.array(
        [
            kernel.flops < _SHORT_FLOPS
            and size_of(kernel, ConvolutionSize).in_channels < _SHORT_CHANNELS
            for [kernel] in group.launches
        ]
    )
    fitted = is_short & is_held_out(group.shape, share=_GROWTH_SHARE, salt=_GROWTH_SALT)
    if fitted.sum() < _LEAST_SHORT:
        return group
    curve = np.polyfit(order[fitted], group.latency_us[fitted], 2)
    growth_us = np.polyval(curve, order) - curve[-1]
    left = group.chosen(~fitted)
    labels_us = np.maximum(left.latency_us - growth_us[~fitted], _LEAST_LABEL_US)
    return replace(left, latency_us=labels_us)


#: FLOPs and input channels, which a CTA sums one after the other, below which a convolution takes
#: 10 to 60 us of the 60 to 760 of its label on the GPUs of data/paper_fp32.
_SHORT_FLOPS = 6e8
_SHORT_CHANNELS = 200

#: Labels stay above zero where the parabola takes more than they have.
_LEAST_LABEL_US = 1.0

#: Share of the short rows that a parabola is fitted to, and the number that chooses them.
_GROWTH_SHARE = 0.5
_GROWTH_SALT = 11
#: Short rows that a parabola is fitted to, at least.
_LEAST_SHORT = 50


#: Kernel_Szie is the table's own spelling.
_CONVOLUTION_SIZES = (
    "B",
    "Input_Channel",
    "Output_Channel",
    "Kernel_Szie",
    "Input_Size",
    "Stride",
    "Padding",
)


FP32_TABLES: dict[str, Table] = {
    "kernels": Table(
        ("op", "latency_us", "gpu", "B", "M", "N", "K", "H"),
        ("B", "M", "N", "K", "H"),
        _fp32_groups,
    ),
    "conv_kernels": Table(
        ("latency_us", "gpu", *_CONVOLUTION_SIZES),
        ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride"),
        _convolution_groups,
    ),
}
