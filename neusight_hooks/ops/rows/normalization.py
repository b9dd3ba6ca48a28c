"""Normalizations: layer, RMS, group and batch norm, weight norm, with their gradients."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from neusight.ops.operands import (
    flags,
    gpu_tensors,
    itemsize,
    layout_of,
    memory_kernel,
    output,
    pointwise_kernel,
    read_tensors,
    vector,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.rms_norm import (
    FUSED_RMS_NORM_SINCE,
    separate_rms_norm,
    separate_rms_norm_backward,
)
from neusight.predictors.kernel import Kernel, KernelClass, KernelTraits, RowsSize, Variant
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _norm_kernel(
    name: str,
    reads: tuple[TensorSpec | None, ...],
    writes: tuple[TensorSpec | None, ...],
    rows: int,
    width: int,
    **traits: Unpack[KernelTraits],
) -> list[Kernel]:
    if rows * width == 0:
        return []
    whole = [spec for spec in gpu_tensors((*reads, *writes)) if spec.numel == rows * width]
    return [
        memory_kernel(
            KernelClass.NORMALIZATION,
            name,
            reads=reads,
            writes=writes,
            rows=rows,
            width=width,
            layout=layout_of(whole),  # weights and statistics are indexed by row or column anyway
            **traits,
        )
    ]


def _rows_and_width(source: TensorSpec, normalized_shape: tuple[int, ...]) -> tuple[int, int]:
    width = prod(normalized_shape)
    return source.numel // max(1, width), width


def _kind_of(call: OpSignature) -> Variant:
    return "rms_norm" if "rms" in call.op else "layer_norm"


@register_op("aten::native_layer_norm", "aten::_fused_rms_norm")
def layer_norm(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    normalized_shape: tuple[int, ...],
    weight: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """One kernel that also writes the statistics of each row."""
    kind = _kind_of(call)
    rows, width = _rows_and_width(input, normalized_shape)
    if kind == "rms_norm" and math.torch < FUSED_RMS_NORM_SINCE:
        return separate_rms_norm(input, weight, rows, width)
    return _norm_kernel(kind, read_tensors(call), written_tensors(call), rows, width, variant=kind)


@register_op("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward(
    call: OpSignature,
    math: MathMode,
    *,
    grad_out: TensorSpec,
    input: TensorSpec,
    normalized_shape: tuple[int, ...],
    mean: TensorSpec | None = None,
    rstd: TensorSpec | None = None,
    weight: TensorSpec | None = None,
    output_mask: tuple[bool, ...],
    **others: Argument,
) -> list[Kernel]:
    """A kernel along the rows for the input, one along the columns for weight and bias."""
    kind = _kind_of(call)
    rows, width = _rows_and_width(input, normalized_shape)
    wants_input, wants_weight, wants_bias = flags(output_mask, 3)
    wants_bias = wants_bias and kind == "layer_norm"
    if kind == "rms_norm" and math.torch < FUSED_RMS_NORM_SINCE:
        return separate_rms_norm_backward(input, weight, rows, width, wants_weight=wants_weight)
    reads = (grad_out, input, mean, rstd)
    kernels: list[Kernel] = []
    if wants_input:
        kernels += _gradients(kind, (*reads, weight), (input,), rows, width)
    if wants_weight or wants_bias:
        column = vector(width, (weight or input).dtype, input.device)
        writes = (column,) * (wants_weight + wants_bias)
        kernels += _weight_gradients(kind, reads, writes, rows, width)
    return kernels


def _gradients(
    kind: Variant,
    reads: tuple[TensorSpec | None, ...],
    writes: tuple[TensorSpec | None, ...],
    rows: int,
    width: int,
) -> list[Kernel]:
    """The kernel along the rows that gives the input's gradient, if not all."""
    return _norm_kernel(
        f"{kind}_backward", reads, writes, rows, width, variant=kind, is_backward=True
    )


def _weight_gradients(
    kind: Variant,
    reads: tuple[TensorSpec | None, ...],
    writes: tuple[TensorSpec, ...],
    rows: int,
    width: int,
) -> list[Kernel]:
    """The kernel along the columns that gives the gradients of weight and bias."""
    return _norm_kernel(
        f"{kind}_backward_weight",
        reads,
        writes,
        width,
        rows,
        variant=kind,
        is_backward=True,
        along_columns=True,
    )


@register_op("aten::native_group_norm")
def group_norm(
    call: OpSignature,
    *,
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    N: int,
    C: int,
    group: int,
) -> list[Kernel]:
    """Moments a group, one scale and shift a channel, then one pass (group_norm_kernel.cu);
    without an image (GroupNorm1dForward) and without weights the pass takes the moments."""
    result = output(call)
    rows = N * group
    if not input.numel or not rows:
        return []
    moments = (vector(rows, "float32", input.device),) * 2
    width = input.numel // rows
    kernels = _norm_kernel(
        "group_norm_moments", (input,), moments, rows, width, variant="group_norm"
    )
    if input.numel == N * C or (weight is None and bias is None):
        return kernels + _apply("group_norm", (input, *moments, weight, bias), result)
    factors = (vector(N * C, "float32", input.device),) * 2
    kernels += pointwise_kernel("group_norm_factors", (*moments, weight, bias), factors)
    return kernels + _apply("group_norm", (input, *factors), result)


def _apply(name: str, reads: tuple[TensorSpec | None, ...], result: TensorSpec) -> list[Kernel]:
    """An elementwise pass of a normalization over the whole tensor, which broadcasts the others."""
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE, name, reads=reads, writes=(result,), width=result.numel
        )
    ]


def _apply_by_channel(
    name: str, reads: tuple[TensorSpec | None, ...], result: TensorSpec
) -> list[Kernel]:
    """The same in a kernel of its own, which goes plane by plane (batch_norm_transform_input), or
    row by row of channels that lie side by side (batch_norm_transform_input_channels_last)."""
    whole = [spec for spec in gpu_tensors(reads) if spec.numel == result.numel]
    layout = layout_of((*whole, result))
    kernels = [replace(kernel, layout=layout) for kernel in _apply(name, reads, result)]
    if result.is_channels_last:
        size = RowsSize(result.shape[1], result.numel // max(1, result.shape[1]))
        return [replace(kernel, size=size, variant="by_channel") for kernel in kernels]
    if len(result.shape) < 3:
        return kernels
    planes = max(1, result.shape[0] * result.shape[1])
    size = RowsSize(planes, result.numel // planes)
    return [replace(kernel, size=size, variant="by_plane") for kernel in kernels]


@register_op("aten::native_group_norm_backward")
def group_norm_backward(
    call: OpSignature,
    *,
    grad_out: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec | None,
    N: int,
    C: int,
    group: int,
    output_mask: tuple[bool, ...],
    **others: Argument,
) -> list[Kernel]:
    """Two sums a channel over the image, small kernels on them, then one pass for the input."""
    if not input.numel or not N * C:
        return []
    wants_input, wants_weight, wants_bias = flags(output_mask, 3)
    sums = vector(N * C, "float32", input.device)
    kernels = _sums_a_channel(grad_out, input, sums)
    if wants_input:
        moments = vector(N * group, "float32", input.device)
        kernels += _group_factors(weight, sums, moments, max(1, C // max(1, group)))
        kernels += _apply("group_norm_backward", (grad_out, input, sums, moments, moments), input)
    if wants_weight or wants_bias:
        columns = (vector(C, input.dtype, input.device),) * (wants_weight + wants_bias)
        kernels += _weight_gradients("group_norm", (sums, sums), columns, N, C)
    return kernels


def _sums_a_channel(grad: TensorSpec, source: TensorSpec, sums: TensorSpec) -> list[Kernel]:
    """Gradient, and gradient times input, summed over each channel's image."""
    return _norm_kernel(
        "group_norm_backward_sums",
        (grad, source),
        (sums, sums),
        sums.numel,
        source.numel // sums.numel,
        variant="group_norm",
        is_backward=True,
    )


def _group_factors(
    weight: TensorSpec | None, sums: TensorSpec, grouped: TensorSpec, channels: int
) -> list[Kernel]:
    """What gradient and input are multiplied with, out of the sums of so many channels a group."""
    scaled: list[Kernel] = []
    if weight is not None:
        scaled = pointwise_kernel("group_norm_factors", (grouped, weight), (sums,))
    return scaled + _norm_kernel(
        "group_norm_backward_factors",
        (sums, sums, weight, grouped, grouped),
        (grouped, grouped),
        grouped.numel,
        channels,
        variant="group_norm",
        is_backward=True,
    )


def _channels(source: TensorSpec) -> int:
    return source.shape[1] if len(source.shape) > 1 else max(1, source.numel)


@register_op("aten::cudnn_batch_norm", "aten::miopen_batch_norm")
def cudnn_batch_norm(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    training: bool = True,
) -> list[Kernel]:
    """One cuDNN kernel, statistics and running averages included; in inference one pass."""
    if not training:
        reads = (input, weight, bias, running_mean, running_var)
        return _apply_by_channel("batch_norm", reads, output(call)) if input.numel else []
    channels = _channels(input)
    vectors = gpu_tensors((weight, bias, running_mean, running_var))
    written = (output(call), *vectors[2:], *written_tensors(call)[1:3])
    width = input.numel // max(1, channels)
    read = (input, *vectors)
    kernels = _norm_kernel("batch_norm", read, written, channels, width, variant="batch_norm")
    return _in_layout_of(input, kernels, math)


def _in_layout_of(source: TensorSpec, kernels: list[Kernel], mode: MathMode) -> list[Kernel]:
    """The same kernels, whose channels are columns where they lie side by side in memory; cuDNN
    reads planes of 16 bits that are no multiple of `_VECTOR` one by one."""
    is_last = source.is_channels_last
    kernels = [replace(kernel, along_columns=is_last) for kernel in kernels]
    is_ragged = itemsize(source.dtype) <= 2 and prod(source.shape[2:]) % _VECTOR != 0
    if is_last or not is_ragged or mode.miopen or not source.is_contiguous:
        return kernels
    return [replace(kernel, layout="scalar") for kernel in kernels]


#: Elements that cuDNN's batch norms of 16 bits read at once (bn_fw_tr_1C11_singleread_spec in
#: `benchmarks/measured/h100` with planes of 14 x 14 and more, not of 7 x 7).
_VECTOR = 4


@register_op("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
def cudnn_batch_norm_backward(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    grad_output: TensorSpec,
    weight: TensorSpec | None = None,
    save_mean: TensorSpec | None = None,
    save_var: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """One cuDNN kernel for all three gradients."""
    channels = _channels(input)
    reads = (input, grad_output, weight, save_mean, save_var)
    width = input.numel // max(1, channels)
    writes = (input, weight, weight)
    return _in_layout_of(input, _gradients("batch_norm", reads, writes, channels, width), math)


@register_op(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_batch_norm_with_update",
    "aten::_batch_norm_no_update",
    "aten::_batch_norm_with_update_functional",
    "aten::_native_batch_norm_legit_functional",
)
def native_batch_norm(
    call: OpSignature,
    *,
    input: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None = None,
    running_var: TensorSpec | None = None,
    training: bool | None = None,
) -> list[Kernel]:
    """Training: statistics, running averages, one pass. Inference: the running mean is copied, the
    inverse deviation computed, then one pass (batch_norm_calc_invstd)."""
    result = output(call)
    if not input.numel:
        return []
    running = (running_mean, running_var)
    trains = "with_update" in call.op if training is None else training
    if not trains:
        kernels = _apply_by_channel("batch_norm", (input, weight, bias, *running), result)
        if running_mean is None or running_var is None:
            return kernels
        saved = vector(_channels(input), "float32", input.device)
        copied = pointwise_kernel("memcpy_d2d", (running_mean,), (saved,))
        return [*copied, *pointwise_kernel("batch_norm_invstd", (running_var,), (saved,)), *kernels]
    statistics = (vector(_channels(input), "float32", input.device),) * 2
    kernels = _batch_statistics(input, statistics)
    if running_mean is not None:
        kernels += pointwise_kernel("batch_norm_update", (*statistics, *running), running)
    return kernels + _apply_by_channel("batch_norm", (input, weight, bias, *statistics), result)


def _batch_statistics(source: TensorSpec, writes: tuple[TensorSpec, ...]) -> list[Kernel]:
    """The moments of each channel over a batch: a CTA a channel, or shared where neighbours in
    memory are channels."""
    channels = _channels(source)
    return _norm_kernel(
        "batch_norm_statistics",
        (source,),
        writes,
        channels,
        source.numel // max(1, channels),
        variant="batch_norm_sums",
        along_columns=source.is_channels_last or len(source.shape) < 3,
    )


@register_op("aten::native_batch_norm_backward", "aten::batch_norm_backward")
def native_batch_norm_backward(
    call: OpSignature,
    *,
    grad_out: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec | None,
    train: bool | None = None,
    update: bool = True,
    output_mask: tuple[bool, ...],
    **others: Argument,
) -> list[Kernel]:
    """Sums a channel over gradient and input, then one pass; in one kernel for NCHW tensors.

    ATen/native/cuda/Normalization.cu: batch_norm_backward_kernel (a block a channel, both loops)
    for contiguous tensors, batch_norm_backward_reduce and _elemt for channels_last ones.
    """
    if not input.numel:
        return []
    wants_input, wants_weight, wants_bias = flags(output_mask, 3)
    trains = update if train is None else train
    channels = _channels(input)
    a_channel = vector(channels, "float32", input.device)
    statistics, columns = (a_channel,) * 2, (a_channel,) * (wants_weight + wants_bias)
    if trains and not input.is_channels_last:
        reads: tuple[TensorSpec | None, ...] = (grad_out, input, weight, *statistics)
        writes = (input, *columns) if wants_input else columns
        kernels = _gradients("batch_norm", reads, writes, channels, input.numel // channels)
        return [replace(kernel, variant="batch_norm_gradients") for kernel in kernels]
    kernels = []
    if trains or columns:
        reads = (grad_out, input, *statistics)
        kernels += _gradient_sums(input, reads, (*statistics, *columns))
    if wants_input:
        reads = (grad_out, *((input,) if trains else ()), weight, *statistics)
        kernels += _apply_by_channel("batch_norm_backward", reads, input)
    return kernels


def _gradient_sums(
    source: TensorSpec, reads: tuple[TensorSpec | None, ...], writes: tuple[TensorSpec, ...]
) -> list[Kernel]:
    """The sums a channel that the gradients need."""
    channels = _channels(source)
    return _norm_kernel(
        "batch_norm_backward_sums",
        reads,
        writes,
        channels,
        source.numel // max(1, channels),
        variant="batch_norm_sums",
        is_backward=True,
        along_columns=source.is_channels_last,
    )


@register_op("aten::batch_norm_stats", "aten::batch_norm_update_stats")
def batch_norm_stats(call: OpSignature, *, input: TensorSpec, **others: Argument) -> list[Kernel]:
    """Synchronized batch norm: the statistics of this GPU."""
    return _batch_statistics(input, written_tensors(call))


@register_op("aten::batch_norm_elemt", "aten::batch_norm_backward_elemt")
def batch_norm_elemt(call: OpSignature) -> list[Kernel]:
    """Synchronized batch norm: an elementwise pass."""
    name = "batch_norm_backward" if "backward" in call.op else "batch_norm"
    return _apply_by_channel(name, read_tensors(call), output(call))


@register_op("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(
    call: OpSignature, *, mean: TensorSpec, **others: Argument
) -> list[Kernel]:
    """Synchronized batch norm: the statistics of all GPUs joined."""
    channels = mean.shape[-1] if mean.shape else 1
    reads = tuple(spec for spec in read_tensors(call) if spec.numel <= mean.numel)
    return _norm_kernel(
        "batch_norm_gather_statistics",
        reads,
        written_tensors(call),
        channels,
        max(1, mean.numel // max(1, channels)),
        variant="batch_norm_join",
    )


@register_op("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    call: OpSignature, *, input: TensorSpec, **others: Argument
) -> list[Kernel]:
    """Synchronized batch norm: the sums a channel that the gradients need."""
    return _gradient_sums(input, read_tensors(call), written_tensors(call))


@register_op("aten::_weight_norm_interface", "aten::_weight_norm_interface_backward")
def weight_norm(call: OpSignature) -> list[Kernel]:
    """One kernel: a norm along all dimensions but one, and the scaling by it."""
    reads, writes = read_tensors(call), written_tensors(call)
    largest = max(reads, key=lambda spec: spec.numel)
    gains = min(spec.numel for spec in reads)
    is_backward = call.op.endswith("backward")
    return _norm_kernel(
        "weight_norm_backward" if is_backward else "weight_norm",
        reads,
        writes,
        gains,
        largest.numel // max(1, gains),
        variant="weight_norm",
        is_backward=is_backward,
    )
