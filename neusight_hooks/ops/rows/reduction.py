"""Reductions, scans, classification losses and distances: many elements in, few out."""

from __future__ import annotations

from dataclasses import replace

from neusight.ops.operands import (
    fill_kernel,
    gpu_tensors,
    is_dense,
    itemsize,
    kernel_name,
    memcpy_d2h,
    memory_kernel,
    op_names,
    output,
    pointwise_kernel,
    read_tensors,
    wrap_dim,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import SERIAL_SUM, Kernel, KernelClass, Variant
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Ops that are one launch of at::native::reduce_kernel (or like it).
REDUCTIONS: tuple[str, ...] = op_names(
    """
    _aminmax _is_all_true _is_any_true all amax amin aminmax any argmax argmin hash_tensor
    linalg__powsum linalg_vector_norm max mean min nansum native_norm norm prod std std_mean sum
    trace var var_mean
    """
)


def reduce_kernel(
    name: str, reads: tuple[TensorSpec, ...], writes: tuple[TensorSpec, ...]
) -> list[Kernel]:
    """One kernel that reduces to the elements of the first tensor written."""
    rows = writes[0].numel if writes else 0
    if rows == 0:
        return []
    largest = max((spec.numel for spec in reads), default=0)
    if largest == 0:
        return pointwise_kernel("fill", (), writes)
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            name,
            reads=reads,
            writes=writes,
            rows=rows,
            width=max(1, largest // rows),
            layout="contiguous" if all(map(is_dense, reads)) else "scalar",
        )
    ]


def temporary(like: TensorSpec, dtype: str | None = None) -> TensorSpec:
    """A tensor of the same shape for a step in between."""
    return like._replace(dtype=dtype or like.dtype)


@register_op("aten::max.other", "aten::max.out", "aten::min.other", "aten::min.out")
def binary_extremum(call: OpSignature) -> list[Kernel]:
    """The larger or smaller of two tensors, element by element."""
    return pointwise_kernel(kernel_name(call), read_tensors(call), written_tensors(call))


#: Ops whose kernel has another's name.
_SAME_KERNEL = {"linalg_vector_norm": "norm", "native_norm": "norm"}


@register_op(*(f"aten::{name}" for name in REDUCTIONS))
def reduce_elements(
    call: OpSignature, *, self: TensorSpec, dim: tuple[int, ...] = ()
) -> list[Kernel]:
    """One kernel."""
    name = kernel_name(call)
    kernels = reduce_kernel(_SAME_KERNEL.get(name, name), (self,), written_tensors(call))
    kernels = [replace(kernel, variant=_variant_of(name, call)) for kernel in kernels]
    if _keeps_innermost(self, dim):
        return [replace(kernel, along_columns=True) for kernel in kernels]
    return kernels


#: Ops that add up, and do no more with a value.
_SUMS = ("mean", "nansum", "sum")


def _variant_of(name: str, call: OpSignature) -> Variant:
    if name in _PLACES or (name in _EXTREMA and len(written_tensors(call)) > 1):
        return "with_index"
    return "" if name in _SUMS else "extremum"


#: Ops that find where the largest or smallest element of a row is, alone, or beside it where they
#: return both.
_PLACES = ("argmax", "argmin")
_EXTREMA = ("max", "min")


def _keeps_innermost(source: TensorSpec, dims: tuple[int, ...]) -> bool:
    """Whether neighbours in memory are not added to each other: a sum over rows, not along them."""
    sizes = [(stride, dim) for dim, stride in enumerate(source.stride) if source.shape[dim] > 1]
    if not dims or not sizes:
        return False
    return min(sizes)[1] not in {wrap_dim(dim, len(source.shape)) for dim in dims}


@register_op("aten::count_nonzero")
def count_nonzero(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """A comparison, then a sum."""
    mask = temporary(self, "bool")
    return pointwise_kernel("ne", (self,), (mask,)) + reduce_kernel(
        "sum", (mask,), written_tensors(call)
    )


@register_op("aten::logsumexp")
def logsumexp(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """Eight kernels: maximum, guard against infinity, sub, exp, sum, log, add (ReduceOps.cpp)."""
    result = output(call)
    kernels = reduce_kernel("amax", (self,), (result,))
    kernels += pointwise_kernel("abs", (result,), (result,))
    kernels += pointwise_kernel("eq", (result,), (temporary(result, "bool"),))
    kernels += pointwise_kernel("masked_fill", (result,), (result,))
    kernels += pointwise_kernel("sub", (self, result), (self,))
    kernels += pointwise_kernel("exp", (self,), (self,))
    kernels += reduce_kernel("sum", (self,), (result,))
    kernels += pointwise_kernel("log", (result,), (result,))
    return kernels + pointwise_kernel("add", (result, result), (result,))


@register_op("aten::equal")
def equal(call: OpSignature, *, self: TensorSpec, other: TensorSpec) -> list[Kernel]:
    """A comparison, all(), and the answer read by the host; shapes that differ need none."""
    if self.shape != other.shape:
        return []
    answer = TensorSpec((), (), "bool", self.device)
    mask = temporary(self, "bool")
    kernels = pointwise_kernel("eq", (self, other), (mask,))
    return [*kernels, *reduce_kernel("all", (mask,), (answer,)), memcpy_d2h(answer)]


@register_op("aten::_nested_tensor_from_mask_left_aligned")
def left_aligned(call: OpSignature, *, t: TensorSpec, mask: TensorSpec) -> list[Kernel]:
    """How long each row is, whether that is where it ends, and the answer read by the host."""
    answer = TensorSpec((), (), "bool", mask.device)
    lengths = TensorSpec(mask.shape[:1], (1,), "int64", mask.device)
    kernels = reduce_kernel("sum", (mask,), (lengths,))
    return [*kernels, *reduce_kernel("all", (lengths,), (answer,)), memcpy_d2h(answer)]


@register_op(
    "aten::cumsum",
    "aten::cumprod",
    "aten::logcumsumexp",
    "aten::_logcumsumexp",
    "aten::cummax",
    "aten::cummin",
    "aten::_cummax_helper",
    "aten::_cummin_helper",
)
def scan(call: OpSignature, *, self: TensorSpec, dim: int, **others: Argument) -> list[Kernel]:
    """A scan along a dimension; over the whole tensor CUB initialises its tile states first. The
    helpers write into tensors that are there."""
    if not self.numel:
        return []
    width = self.shape[wrap_dim(dim, len(self.shape))] if self.shape else 1
    rows = self.numel // max(1, width)
    steps: Variant = "scan" if rows > 1 and _is_innermost(self, dim) else ""
    kernel = memory_kernel(
        KernelClass.REDUCTION,
        kernel_name(call),
        reads=(self,),
        writes=written_tensors(call) or gpu_tensors(others.values()),
        rows=rows,
        width=width,
        variant=steps,
    )
    if rows > 1:
        return [kernel]
    return [memory_kernel(KernelClass.REDUCTION, "scan_init", width=1), kernel]


def _is_innermost(source: TensorSpec, dim: int) -> bool:
    """Whether neighbours along the dimension are neighbours in memory."""
    return bool(source.stride) and source.stride[wrap_dim(dim, len(source.shape))] == 1


def _gathered(scores: TensorSpec, target: TensorSpec) -> int:
    """Bytes of the one score a target picks, and of the targets."""
    return target.numel * (itemsize(scores.dtype) + itemsize(target.dtype))


@register_op("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    target: TensorSpec,
    weight: TensorSpec | None = None,
) -> list[Kernel]:
    """One kernel that reads a score a target: a thread each, or, where they are added up, a single
    CTA, whose threads each take as many after one another (`width`)."""
    if not target.numel:
        return []
    writes = written_tensors(call)
    losses = max(1, writes[0].numel) if writes else 1
    is_serial = losses == 1 and len(self.shape) == 2
    threads = _NLL_THREADS if math.torch >= _WIDE_NLL_SINCE else _NLL_THREADS_BEFORE
    row_bytes = self.shape[-1] * itemsize(self.dtype) if self.shape else 0
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            SERIAL_SUM if is_serial else "nll_loss",
            reads=(self,),
            writes=writes,
            rows=losses,
            width=max(1, -(-target.numel // (threads if is_serial else losses))),
            bytes_read=_gathered(self, target) + (weight.num_bytes if weight else 0),
            layout="strided" if is_serial and row_bytes > _CACHE_LINE_BYTES else "contiguous",
        )
    ]


#: Threads of the one CTA that adds up a loss over classes (Loss.cu), before and since a release of
#: torch: 1,024 rounds of 32 threads take a millisecond, and with torch 2.9 a twentieth of it
#: (data/kernelbench 95).
_NLL_THREADS_BEFORE = 32
_NLL_THREADS = 1024
_WIDE_NLL_SINCE = (2, 9)

#: Scores of neighbouring targets share cache lines where rows are not longer, bytes.
_CACHE_LINE_BYTES = 128


@register_op("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(call: OpSignature, *, target: TensorSpec, **others: Argument) -> list[Kernel]:
    """Zeros everywhere, then one value a target."""
    result = output(call)
    if not result.numel or not target.numel:
        return []
    scatter = memory_kernel(
        KernelClass.GATHER,
        "nll_loss_backward",
        reads=(target,),
        writes=(result,),
        width=target.numel,
        dtype=result.dtype,
        bytes_written=target.numel * itemsize(result.dtype),
        layout="contiguous",
    )
    return [*fill_kernel(result), scatter]


@register_op("aten::multi_margin_loss", "aten::multilabel_margin_loss_forward")
def margin_loss(
    call: OpSignature, *, self: TensorSpec, target: TensorSpec, reduction: int, **others: Argument
) -> list[Kernel]:
    """A row a block; a mean or sum over rows takes a second kernel."""
    writes = written_tensors(call)
    rows = self.shape[0] if len(self.shape) > 1 else 1
    terms = TensorSpec((rows,), (1,), self.dtype, self.device)
    kernels = reduce_kernel("margin_loss", (self, target), (terms,))
    reduced = reduction != 0 and len(self.shape) > 1
    return kernels + (reduce_kernel("sum", (terms,), writes[:1]) if reduced else [])


@register_op("aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward")
def margin_loss_backward(call: OpSignature) -> list[Kernel]:
    """One kernel over the scores."""
    return pointwise_kernel("margin_loss_backward", read_tensors(call), written_tensors(call))


@register_op("aten::_ctc_loss", "aten::_cudnn_ctc_loss", "aten::miopen_ctc_loss")
def ctc_loss(call: OpSignature, *, log_probs: TensorSpec, **others: Argument) -> list[Kernel]:
    """The forward variables, one time step after the other inside one kernel."""
    writes = written_tensors(call)
    rows = log_probs.shape[1] if len(log_probs.shape) > 2 else 1
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            "ctc_loss",
            reads=read_tensors(call),
            writes=writes,
            rows=rows,
            width=max(1, log_probs.numel // max(1, rows)),
        )
    ]


@register_op("aten::_ctc_loss_backward")
def ctc_loss_backward(
    call: OpSignature, *, log_probs: TensorSpec, log_alpha: TensorSpec, **others: Argument
) -> list[Kernel]:
    """The backward variables, then the gradient of every score."""
    result = output(call)
    rows = log_probs.shape[1] if len(log_probs.shape) > 2 else 1
    beta = memory_kernel(
        KernelClass.REDUCTION,
        "ctc_loss_backward",
        reads=(log_probs, log_alpha),
        writes=(log_alpha,),
        rows=rows,
    )
    kernels = [*fill_kernel(result), beta]
    return kernels + pointwise_kernel(
        "ctc_loss_gradient", (log_probs, log_alpha, log_alpha), (result,)
    )


@register_op("aten::_cdist_forward", "aten::_pdist_forward")
def distances(call: OpSignature) -> list[Kernel]:
    """Between the rows of two matrices, or of one: a block a pair, three operations an element."""
    reads, result = read_tensors(call), output(call)
    width = reads[0].shape[-1]
    if not result.numel or not width:
        return fill_kernel(result)
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            "cdist",
            reads=reads,
            writes=(result,),
            rows=result.numel,
            width=width,
            flops=3 * result.numel * width,
        )
    ]


@register_op("aten::_cdist_backward", "aten::_pdist_backward")
def distances_backward(call: OpSignature) -> list[Kernel]:
    """The gradient a pair into a buffer, then its sum over the pairs."""
    reads, result = read_tensors(call), output(call)
    num_pairs = reads[-1].numel  # of the distances
    width = result.shape[-1] if result.shape else 1
    buffer = TensorSpec((num_pairs, width), (width, 1), result.dtype, result.device)
    if not buffer.numel or not result.numel:
        return fill_kernel(result)
    return pointwise_kernel("cdist_backward", reads, (buffer,)) + reduce_kernel(
        "sum", (buffer,), (result,)
    )


@register_op("aten::dist")
def dist(call: OpSignature, math: MathMode, *, self: TensorSpec, other: TensorSpec) -> list[Kernel]:
    """A difference and its norm."""
    terms = temporary(self)
    return pointwise_kernel("sub", (self, other), (terms,)) + reduce_kernel(
        "norm", (terms,), written_tensors(call)
    )


@register_op("aten::renorm")
def renorm(call: OpSignature, *, self: TensorSpec, dim: int) -> list[Kernel]:
    """Norms, the factors from them, and a multiplication."""
    result = output(call)
    rank = len(self.shape)
    rows = self.shape[wrap_dim(dim, rank)] if rank else 1
    norms = TensorSpec((rows,), (1,), self.dtype, self.device)
    kernels = reduce_kernel("norm", (self,), (norms,))
    kernels += pointwise_kernel("renorm_factor", (norms,), (norms,))
    return kernels + pointwise_kernel("mul", (self,), (result,))


@register_op("aten::segment_reduce", "aten::_segment_reduce_backward")
def segment_reduce(call: OpSignature) -> list[Kernel]:
    """One kernel over segments."""
    return reduce_kernel("segment_reduce", read_tensors(call), written_tensors(call))


@register_op(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
)
def fake_quantize_backward(
    call: OpSignature, *, grad: TensorSpec, **others: Argument
) -> list[Kernel]:
    """One pass for three gradients, then two sums."""
    kernels = pointwise_kernel("fake_quantize_backward", read_tensors(call), (grad,) * 3)
    for result in written_tensors(call)[1:3]:
        kernels += reduce_kernel("sum", (grad,), (result,))
    return kernels


@register_op("aten::_fused_moving_avg_obs_fq_helper")
def moving_average_observer(
    call: OpSignature, *, self: TensorSpec, **others: Argument
) -> list[Kernel]:
    """Minimum and maximum, the quantization parameters, then the fake quantization."""
    limits = TensorSpec((2,), (1,), self.dtype, self.device)
    kernels = reduce_kernel("aminmax", (self,), (limits,))
    kernels += pointwise_kernel("quantization_parameters", (limits,), (limits,))
    return kernels + pointwise_kernel("fake_quantize", (self,), written_tensors(call))
