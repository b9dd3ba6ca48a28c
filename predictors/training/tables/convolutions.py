"""The tables of convolutions by pass: cuDNN's on older GPUs, MIOpen's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import ConvolutionSize, Kernel, Pass, Variant
from neusight.predictors.training.dataset import Group, Launches
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.tables.files import (
    DTYPES,
    DataFrame,
    Table,
    group_of,
    grouped,
)

_PASSES: dict[str, Pass] = {
    "forward": "forward",
    "backward_input": "data_gradient",
    "backward_weight": "weight_gradient",
}

#: Dtypes of the tables that torch computes convolutions in.
_DTYPES = ("fp32", "fp16", "bf16", "fp16_tensor_core", "fp16_storage_fp32_math")
_CHANNELS_LAST = ("NHWC", "fp16_tensor_core")

_DIMENSIONS = ("d", "h", "w")

#: What identifies a layer: of one, all batch sizes, passes and dtypes are held out together.
_LAYER = (
    *("c", "k", "groups", "d", "h", "w"),
    *(f"{name}_{axis}" for name in ("kernel", "stride", "pad", "dilation") for axis in _DIMENSIONS),
)

#: What follows a GPU's name in the tables.
_REMARKS = (" (DGX-1)", " class")


def _groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    frame = _with_all_columns(frame)
    for key, target, rows in grouped(
        frame, ("gpu", "dtype", "layout", "pass"), book, "conv", left_out
    ):
        label, dtype, layout, name = key
        if dtype not in _DTYPES:
            left_out.append(f"conv: {len(rows)} rows of {label}: torch has none in {dtype}")
            continue
        launches: list[Launches] = []
        fits = np.ones(len(rows), dtype=np.bool_)
        is_last = layout in _CHANNELS_LAST or dtype in _CHANNELS_LAST
        for index, row in enumerate(rows.to_dict("records")):
            size = _size_of(row, _PASSES[name])
            fits[index] = min(size.output) >= 1
            kernel = Kernel.convolution(
                size._replace(output=tuple(max(1, edge) for edge in size.output)),
                dtype=DTYPES[dtype],
                layout="channels_last" if is_last else "contiguous",
                compute="fp32" if dtype == "fp32" else None,
                variant=_variant_of(row, target),
            )
            launches.append((kernel,))
        yield group_of(
            rows,
            target,
            (label, "conv", dtype, f"{name} {layout}"),
            launches,
            [rows[column] for column in _LAYER],
            # DeepBench times hundreds of calls in a row; a find database a few of each solver.
            sustained="solver" not in frame.columns,
        ).chosen(fits)


def _with_all_columns(frame: DataFrame) -> DataFrame:
    """The rows of either source in the columns of the richer one."""
    if "filter_h" in frame.columns:
        frame = frame.rename(columns={"filter_h": "kernel_h", "filter_w": "kernel_w"})
        plain = dict.fromkeys(("d", "kernel_d", "stride_d", "groups"), 1)
        dilation = {f"dilation_{axis}": 1 for axis in _DIMENSIONS}
        frame = frame.assign(**plain, **dilation, pad_d=0, layout="NCHW")
    names = frame["gpu"].astype(str)
    for remark in _REMARKS:
        names = names.str.replace(remark, "", regex=False)
    return frame.assign(gpu=names)


def _size_of(row: dict[str, Any], direction: Pass) -> ConvolutionSize:
    axes = _DIMENSIONS if row["layout"] == "NCDHW" else _DIMENSIONS[1:]
    output = []
    for axis in axes:
        reach = row[f"dilation_{axis}"] * (row[f"kernel_{axis}"] - 1) + 1
        rest = row[axis] + 2 * row[f"pad_{axis}"] - reach
        output.append(rest // row[f"stride_{axis}"] + 1)
    return ConvolutionSize(
        row["n"],
        row["c"],
        row["k"],
        row["groups"],
        tuple(row[axis] for axis in axes),
        tuple(output),
        tuple(row[f"kernel_{axis}"] for axis in axes),
        tuple(row[f"stride_{axis}"] for axis in axes),
        direction,
    )


def _variant_of(row: dict[str, Any], gpu: GPU) -> Variant:
    """cuDNN searched for its fastest algorithm; MIOpen does so without being asked."""
    if max(row[f"dilation_{axis}"] for axis in _DIMENSIONS) > 1:
        return "dilated"
    return "fastest" if gpu.vendor == "nvidia" else ""


CONVOLUTION_TABLES: dict[str, Table] = {
    "conv": Table(
        ("gpu", "dtype", "pass", "latency_us", "n", "c", "h", "w", "k"),
        ("n", "c", "h", "w", "k"),
        _groups,
    ),
}
