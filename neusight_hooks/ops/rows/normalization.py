"""Normalizations: layer, RMS, group and batch norm, weight norm, with their gradients."""

from __future__ import annotations

from neusight.ops.operands import (
    boolean,
    flags,
    gpu_tensors,
    integer,
    integers,
    layout_of,
    memory_kernel,
    output,
    pointwise_kernel,
    product,
    read_tensors,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

__all__: list[str] = []


def _vector(size: int, dtype: str, device: str) -> TensorSpec:
    return TensorSpec((size,), (1,), dtype, device)


def _norm_kernel(
    name: str,
    reads: tuple[TensorSpec | None, ...],
    writes: tuple[TensorSpec | None, ...],
    rows: int,
    width: int,
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
        )
    ]


def _rows_and_width(call: OpSignature, source: TensorSpec) -> tuple[int, int]:
    width = product(integers(call, "normalized_shape"))
    return source.numel // max(1, width), width


@register_op("aten::native_layer_norm", "aten::_fused_rms_norm")
def layer_norm(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One kernel that also writes the statistics of each row."""
    source = call.tensor("input")
    name = "rms_norm" if "rms" in call.op else "layer_norm"
    rows, width = _rows_and_width(call, source)
    return _norm_kernel(name, read_tensors(call), written_tensors(call), rows, width)


@register_op("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A kernel along the rows for the input, one along the columns for weight and bias."""
    grad, source = call.tensor("grad_out"), call.tensor("input")
    statistics = (call.optional_tensor("mean"), call.optional_tensor("rstd"))
    weight = call.optional_tensor("weight")
    name = "rms_norm" if "rms" in call.op else "layer_norm"
    rows, width = _rows_and_width(call, source)
    wants_input, wants_weight, wants_bias = flags(call, "output_mask", 3)
    wants_bias = wants_bias and name == "layer_norm"
    kernels: list[Kernel] = []
    if wants_input:
        kernels += _norm_kernel(
            f"{name}_backward", (grad, source, *statistics, weight), (source,), rows, width
        )
    if wants_weight or wants_bias:
        column = _vector(width, weight.dtype if weight else source.dtype, source.device)
        writes = (column,) * (wants_weight + wants_bias)
        reads = (grad, source, *statistics)
        kernels += _norm_kernel(f"{name}_backward_weight", reads, writes, width, rows)
    return kernels


@register_op("aten::native_group_norm")
def group_norm(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Moments a group, one scale and shift a channel, then one pass (group_norm_kernel.cu)."""
    source, result = call.tensor("input"), output(call)
    batch, channels, groups = (integer(call, name) for name in ("N", "C", "group"))
    weight, bias = call.optional_tensor("weight"), call.optional_tensor("bias")
    rows = batch * groups
    if not source.numel or not rows:
        return []
    statistics = _vector(rows, "float32", source.device)
    moments = _norm_kernel(
        "group_norm_moments", (source,), (statistics,) * 2, rows, source.numel // rows
    )
    factors = _vector(batch * channels, "float32", source.device)
    affine = weight is not None or bias is not None
    fused = pointwise_kernel(
        "group_norm_factors", (statistics, statistics, weight, bias), (factors, factors)
    )
    applied = (source, factors, factors) if affine else (source, statistics, statistics)
    return [*moments, *(fused if affine else []), *_apply("group_norm", applied, result)]


def _apply(name: str, reads: tuple[TensorSpec | None, ...], result: TensorSpec) -> list[Kernel]:
    """An elementwise pass of a normalization over the whole tensor."""
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE, name, reads=reads, writes=(result,), width=result.numel
        )
    ]


@register_op("aten::native_group_norm_backward")
def group_norm_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Two sums a channel over the image, small kernels on them, then one pass for the input."""
    grad, source = call.tensor("grad_out"), call.tensor("input")
    batch, channels, groups = (integer(call, name) for name in ("N", "C", "group"))
    weight = call.optional_tensor("weight")
    wants_input, wants_weight, wants_bias = flags(call, "output_mask", 3)
    rows = batch * channels
    if not source.numel or not rows:
        return []
    sums = _vector(rows, "float32", source.device)
    kernels = _norm_kernel(
        "group_norm_backward_sums", (grad, source), (sums, sums), rows, source.numel // rows
    )
    if wants_input:
        grouped = _vector(batch * groups, "float32", source.device)
        if weight is not None:
            kernels += pointwise_kernel("group_norm_factors", (grouped, weight), (sums,))
        kernels += _norm_kernel(
            "group_norm_backward_factors",
            (sums, sums, weight, grouped, grouped),
            (grouped, grouped),
            batch * groups,
            max(1, channels // max(1, groups)),
        )
        kernels += _apply("group_norm_backward", (grad, source, sums, grouped, grouped), source)
    if wants_weight or wants_bias:
        column = _vector(channels, source.dtype, source.device)
        kernels += _norm_kernel(
            "group_norm_backward_weight",
            (sums, sums),
            (column,) * (wants_weight + wants_bias),
            channels,
            batch,
        )
    return kernels


def _channels(source: TensorSpec) -> int:
    return source.shape[1] if len(source.shape) > 1 else max(1, source.numel)


@register_op("aten::cudnn_batch_norm", "aten::miopen_batch_norm")
def cudnn_batch_norm(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One cuDNN kernel, statistics and running averages included."""
    source = call.tensor("input")
    channels = _channels(source)
    vectors = gpu_tensors(
        call.by_name.get(name) for name in ("weight", "bias", "running_mean", "running_var")
    )
    written = (output(call), *vectors[2:], *written_tensors(call)[1:3])
    rows, width = channels, source.numel // max(1, channels)
    return _norm_kernel("batch_norm", (source, *vectors), written, rows, width)


@register_op("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
def cudnn_batch_norm_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One cuDNN kernel for all three gradients."""
    source, grad = call.tensor("input"), call.tensor("grad_output")
    weight = call.optional_tensor("weight")
    saved = (call.optional_tensor("save_mean"), call.optional_tensor("save_var"))
    channels = _channels(source)
    return _norm_kernel(
        "batch_norm_backward",
        (source, grad, weight, *saved),
        (source, weight, weight),
        channels,
        source.numel // max(1, channels),
    )


@register_op(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_batch_norm_with_update",
    "aten::_batch_norm_no_update",
    "aten::_batch_norm_with_update_functional",
    "aten::_native_batch_norm_legit_functional",
)
def native_batch_norm(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Training: statistics, running averages, one pass. Inference: the pass alone."""
    source, result = call.tensor("input"), output(call)
    channels = _channels(source)
    if not source.numel:
        return []
    weight, bias = call.optional_tensor("weight"), call.optional_tensor("bias")
    running = (call.optional_tensor("running_mean"), call.optional_tensor("running_var"))
    trains = boolean(call, "training", "with_update" in call.op)
    if not trains:
        return _apply("batch_norm", (source, weight, bias, *running), result)
    statistics = _vector(channels, "float32", source.device)
    kernels = _norm_kernel(
        "batch_norm_statistics", (source,), (statistics,) * 2, channels, source.numel // channels
    )
    if running[0] is not None:
        kernels += pointwise_kernel(
            "batch_norm_update", (statistics, statistics, *running), running
        )
    return kernels + _apply("batch_norm", (source, weight, bias, statistics, statistics), result)


@register_op("aten::native_batch_norm_backward", "aten::batch_norm_backward")
def native_batch_norm_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Sums a channel over gradient and input, then one pass; in one kernel for NCHW tensors.

    ATen/native/cuda/Normalization.cu: batch_norm_backward_kernel (a block a channel, both loops)
    for contiguous tensors, batch_norm_backward_reduce and _elemt for channels_last ones.
    """
    grad, source = call.tensor("grad_out"), call.tensor("input")
    weight = call.optional_tensor("weight")
    channels = _channels(source)
    if not source.numel:
        return []
    wants_input, wants_weight, wants_bias = flags(call, "output_mask", 3)
    trains = boolean(call, "train", boolean(call, "update", True))
    statistics = _vector(channels, "float32", source.device)
    width = source.numel // channels
    columns = (statistics,) * (wants_weight + wants_bias)
    if trains and not source.is_channels_last:
        writes = (source, *columns) if wants_input else columns
        reads = (grad, source, weight, statistics, statistics)
        return _norm_kernel("batch_norm_backward", reads, writes, channels, width)
    kernels: list[Kernel] = []
    if trains or columns:
        kernels += _norm_kernel(
            "batch_norm_backward_sums",
            (grad, source, statistics, statistics),
            (statistics, statistics, *columns),
            channels,
            width,
        )
    if wants_input:
        reads = (grad, *((source,) if trains else ()), weight, statistics, statistics)
        kernels += _apply("batch_norm_backward", reads, source)
    return kernels


@register_op("aten::batch_norm_stats")
def batch_norm_stats(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Synchronized batch norm: the statistics of this GPU."""
    source = call.tensor("input")
    channels = _channels(source)
    return _norm_kernel(
        "batch_norm_statistics",
        (source,),
        written_tensors(call),
        channels,
        source.numel // max(1, channels),
    )


@register_op(
    "aten::batch_norm_elemt", "aten::batch_norm_backward_elemt", "aten::batch_norm_update_stats"
)
def batch_norm_elemt(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Synchronized batch norm: an elementwise pass."""
    name = "batch_norm_backward" if "backward" in call.op else "batch_norm"
    if "update" in call.op:
        return batch_norm_stats(call, math)
    return _apply(name, read_tensors(call), output(call))


@register_op("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Synchronized batch norm: the statistics of all GPUs joined."""
    mean = call.tensor("mean")
    channels = mean.shape[-1] if mean.shape else 1
    reads = tuple(spec for spec in read_tensors(call) if spec.numel <= mean.numel)
    return _norm_kernel(
        "batch_norm_gather_statistics",
        reads,
        written_tensors(call),
        channels,
        max(1, mean.numel // max(1, channels)),
    )


@register_op("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(call: OpSignature, math: MathMode) -> list[Kernel]:
    """Synchronized batch norm: the sums a channel that the gradients need."""
    source = call.tensor("input")
    channels = _channels(source)
    return _norm_kernel(
        "batch_norm_backward_sums",
        read_tensors(call),
        written_tensors(call),
        channels,
        source.numel // max(1, channels),
    )


@register_op("aten::_weight_norm_interface", "aten::_weight_norm_interface_backward")
def weight_norm(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One kernel: a norm along all dimensions but one, and the scaling by it."""
    reads, writes = read_tensors(call), written_tensors(call)
    largest = max(reads, key=lambda spec: spec.numel)
    gains = min(spec.numel for spec in reads)
    name = "weight_norm_backward" if call.op.endswith("backward") else "weight_norm"
    return _norm_kernel(name, reads, writes, gains, largest.numel // max(1, gains))
