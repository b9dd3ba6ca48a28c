"""Indexing: embeddings, gathers and scatters, masks and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from neusight.ops.operands import (
    copy_kernel,
    fill_kernel,
    gpu_tensors,
    is_in_place,
    itemsize,
    kernel_name,
    memcpy_d2h,
    memcpy_h2d,
    memory_kernel,
    output,
    pointwise_kernel,
    read_tensors,
    vector,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel
from neusight.ops.rows.sort import deterministic_order, select_flagged
from neusight.predictors.kernel import Kernel, KernelClass, Layout, Variant
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Indices up to which embedding's gradient adds rows in one kernel, without a sort
#: (embedding_dense_backward_cuda, Embedding.cu).
_UNSORTED_EMBEDDING = 3072


#: Dtypes of an index that says of each place whether it is meant.
_MASKS = ("bool", "uint8")


def _gather_kernel(
    name: str,
    moved: TensorSpec,
    indices: tuple[TensorSpec, ...],
    *,
    writes: TensorSpec | None = None,
    reads_target: bool = False,
    scatters: bool = False,
    layout: Layout = "scalar",
    variant: Variant = "",
) -> list[Kernel]:
    """A kernel that moves the elements of `moved`, each read and written once, by `indices`."""
    if not moved.numel:
        return []
    target = writes or moved
    moved_bytes = moved.numel * itemsize(moved.dtype)
    written = moved.numel * itemsize(target.dtype)
    index_bytes = sum(index.num_bytes for index in indices)
    rows = max((index.numel for index in indices), default=1)
    rows = max(1, min(rows, moved.numel))
    return [
        Kernel.rows(
            KernelClass.GATHER,
            name,
            rows,
            max(1, moved.numel // rows),
            dtype=moved.dtype,
            out_dtype=target.dtype,
            bytes_read=moved_bytes + index_bytes + (written if reads_target else 0),
            bytes_written=written,
            flops=moved.numel if reads_target else 0,
            layout=layout,
            variant=variant,
            scatters=scatters,
        )
    ]


#: The release of torch from which on rows that are whole 16-byte words are gathered by wide loads
#: (vectorized_gather_kernel, IndexKernelUtils.cu).
_WIDE_GATHER = (2, 8)
_WIDEST_LOAD = 16


def _is_wide(row: int, dtype: str, torch: tuple[int, int]) -> bool:
    """Whether rows of so many elements are gathered whole, a CTA a row, not element by element."""
    return torch >= _WIDE_GATHER and row * itemsize(dtype) % _WIDEST_LOAD == 0


#: Indices up to which a thread goes through all of them (indexSelectSmallIndex, Indexing.cu).
_SMALL_INDEX = 16


def _gather_rows(name: str, result: TensorSpec, indices: tuple[TensorSpec, ...]) -> list[Kernel]:
    """Rows gathered whole."""
    return _gather_kernel(name, result, indices, layout="contiguous", variant="whole_rows")


def _select_rows(
    name: str, result: TensorSpec, index: TensorSpec, row: int, torch: tuple[int, int]
) -> list[Kernel]:
    """Rows of so many elements, one per index."""
    indices = gpu_tensors((index,))
    if _is_wide(row, result.dtype, torch):
        return _gather_rows(name, result, indices)
    is_small = row > 1 and index.numel <= _SMALL_INDEX
    return _gather_kernel(name, result, indices, variant="small_index" if is_small else "")


@register_op("aten::embedding")
def embedding(
    call: OpSignature, math: MathMode, *, indices: TensorSpec, **others: Argument
) -> list[Kernel]:
    """A row per index."""
    result = output(call)
    row = result.numel // max(1, indices.numel)
    return _select_rows("embedding", result, indices, row, math.torch)


@register_op("aten::embedding_dense_backward")
def embedding_backward(
    call: OpSignature,
    *,
    grad_output: TensorSpec,
    indices: TensorSpec,
    num_weights: int,
    scale_grad_by_freq: bool = False,
) -> list[Kernel]:
    """Zeros, then rows added: in one kernel for few indices, by sorted segments for many."""
    return _embedding_gradient(grad_output, indices, output(call), num_weights, scale_grad_by_freq)


def _embedding_gradient(
    grad: TensorSpec,
    indices: TensorSpec,
    weight: TensorSpec,
    num_weights: int,
    scales: bool,
    *,
    always_sorts: bool = False,
) -> list[Kernel]:
    kernels = fill_kernel(weight)
    count = indices.numel
    if not count or not grad.numel:
        return kernels
    if count <= _UNSORTED_EMBEDDING and not scales and not always_sorts:
        return kernels + _gather_kernel(
            "embedding_dense_backward",
            grad,
            (indices,),
            writes=weight,
            reads_target=True,
            scatters=True,
        )
    kernels += deterministic_order(count, None, indices.device)  # embedding_dense_backward_cuda
    positions = vector(count, "int64", indices.device)
    if scales:
        kernels.append(
            memory_kernel(
                KernelClass.REDUCTION, "index_counts", reads=(positions,), writes=(positions,)
            )
        )
    segments = vector(min(count, max(1, num_weights)), "int64", indices.device)
    return kernels + _summed_segments(grad, weight, positions, segments)


def _summed_segments(
    grad: TensorSpec, weight: TensorSpec, positions: TensorSpec, segments: TensorSpec
) -> list[Kernel]:
    """embedding_backward_cuda_kernel (EmbeddingBackwardKernel.cu): segments of equal indices, split
    into parts of bounded length, summed in parts and then a segment."""
    count = positions.numel
    kernels = [
        memory_kernel(KernelClass.REDUCTION, "scan_init", width=1),
        memory_kernel(
            KernelClass.REDUCTION, "unique", reads=(positions,), writes=(segments,), width=count
        ),
        *pointwise_kernel("partials_per_segment", (segments,), (segments,)),
        memory_kernel(KernelClass.REDUCTION, "scan_init", width=1),
        memory_kernel(KernelClass.REDUCTION, "cumsum", reads=(segments,), writes=(segments,)),
        *pointwise_kernel("partial_segment_offset", (segments,), (segments,)),
    ]
    width = max(1, grad.numel // count)
    partial = TensorSpec((segments.numel, width), (width, 1), "float32", grad.device)
    kernels += _gather_kernel("embedding_backward", grad, (positions, positions), writes=partial)
    return kernels + _gather_kernel(
        "sum_and_scatter", partial, (segments,), writes=weight, scatters=True
    )


@register_op("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    call: OpSignature,
    *,
    weight: TensorSpec,
    indices: TensorSpec,
    offsets: TensorSpec,
    per_sample_weights: TensorSpec | None = None,
) -> list[Kernel]:
    """One kernel that sums or averages the rows of each bag."""
    result = output(call)
    width = weight.shape[1] if len(weight.shape) > 1 else 1
    if not indices.numel:
        return fill_kernel(result)
    rows = indices.numel * width * itemsize(weight.dtype)
    others = (indices, offsets, per_sample_weights)
    read = rows + sum(spec.num_bytes for spec in others if spec is not None)
    return [
        memory_kernel(
            KernelClass.GATHER,
            "embedding_bag",
            reads=(weight,),
            writes=written_tensors(call),
            rows=indices.numel,
            width=width,
            bytes_read=read,
            layout="contiguous",
        )
    ]


@register_op("aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward")
def embedding_bag_backward(
    call: OpSignature,
    *,
    grad: TensorSpec,
    indices: TensorSpec,
    num_weights: int,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    **others: Argument,
) -> list[Kernel]:
    """The gradient of the weight by sorted segments (sum, mean), or by atomics (max)."""
    width = grad.shape[-1] if grad.shape else 1
    weight = TensorSpec((num_weights, width), (width, 1), grad.dtype, grad.device)
    spread = TensorSpec((indices.numel, width), (width, 1), grad.dtype, grad.device)
    is_max = mode == 2
    if is_max:
        fill = fill_kernel(weight)
        return fill + _gather_kernel(
            "embedding_bag_backward", grad, (indices,), writes=weight, reads_target=True
        )
    return _embedding_gradient(
        spread, indices, weight, num_weights, scale_grad_by_freq, always_sorts=True
    )


@register_op("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    call: OpSignature, *, grad: TensorSpec, **others: Argument
) -> list[Kernel]:
    """A dot product per index."""
    return reduce_kernel("embedding_bag_weights_backward", (grad,), written_tensors(call))


@register_op("aten::embedding_renorm")
def embedding_renorm(call: OpSignature, *, self: TensorSpec, indices: TensorSpec) -> list[Kernel]:
    """The indices made unique, then the norm of each row."""
    kernels = deterministic_order(indices.numel, self.shape[0], indices.device)
    width = self.shape[1] if len(self.shape) > 1 else 1
    rows = TensorSpec((indices.numel, width), (width, 1), self.dtype, self.device)
    return kernels + _gather_kernel("embedding_renorm", rows, (indices,), reads_target=True)


def _positions(
    source: TensorSpec, given: tuple[TensorSpec, ...], moved_shape: tuple[int, ...]
) -> tuple[list[Kernel], tuple[TensorSpec, ...]]:
    """The index tensors as numbers on the GPU, and the kernels that make them so.

    A mask is first turned into positions (nonzero); an index on the host is copied. What the mask
    lets through is known from the shape of what is moved.
    """
    kernels: list[Kernel] = []
    indices: list[TensorSpec] = []
    for index in given:
        if index.device == "cpu":
            kernels.append(memcpy_h2d(index))
            indices.append(index._replace(device="cuda"))
        elif index.dtype in _MASKS:
            rest = prod(source.shape[len(index.shape) :])
            selected = min(index.numel, prod(moved_shape) // max(1, rest))
            kernels += select_flagged(index, selected)
            indices.append(vector(selected, "int64", index.device))
        else:
            indices.append(index)
    return kernels, tuple(indices)


@register_op("aten::index", "aten::_unsafe_index")
def index(
    call: OpSignature, math: MathMode, *, self: TensorSpec, indices: tuple[TensorSpec | None, ...]
) -> list[Kernel]:
    """One gather, of whole rows where the first dimension alone is indexed; masks are turned into
    positions first."""
    result = output(call)
    given = tuple(index for index in indices if index is not None)
    kernels, positions = _positions(self, given, result.shape)
    is_first = len(positions) == 1 and indices[0] is not None and self.is_contiguous
    row = _elements_an_index(self.shape, indices)
    if is_first and _is_wide(row, self.dtype, math.torch):
        return kernels + _gather_rows("index", result, positions)
    return kernels + _gather_kernel("index", result, positions)


@register_op("aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put")
def index_put(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    indices: tuple[TensorSpec | None, ...],
    values: TensorSpec,
    accumulate: bool = False,
) -> list[Kernel]:
    """One scatter; to accumulate, the indices are sorted so that equal ones meet."""
    given = tuple(index for index in indices if index is not None)
    kernels, positions = _positions(self, given, values.shape)
    if not is_in_place(call):
        kernels = copy_kernel(self, output(call)) + kernels
    count = prod(_broadcast(tuple(spec.shape for spec in positions))) if positions else 1
    rest = _elements_an_index(self.shape, indices)
    moved = TensorSpec((count, rest), (rest, 1), self.dtype, self.device)
    if not moved.numel:
        return kernels
    if accumulate or math.deterministic:
        order = _linear_order(self, count, len(positions))
        return kernels + order + _put_in_order(moved, accumulates=accumulate)
    return kernels + _put(moved, positions, values)


def _put(moved: TensorSpec, positions: tuple[TensorSpec, ...], values: TensorSpec) -> list[Kernel]:
    """Writes values to their indices, in any order."""
    put = _gather_kernel("index_put", moved, positions, scatters=True)
    if values.numel < moved.numel:  # one value for many places
        saved = moved.numel * itemsize(moved.dtype) - values.num_bytes
        put = [replace(kernel, bytes_read=max(0, kernel.bytes_read - saved)) for kernel in put]
    return put


def _put_in_order(moved: TensorSpec, *, accumulates: bool) -> list[Kernel]:
    """Writes values to their indices, one after the other where an index repeats."""
    linear = vector(moved.shape[0], "int64", moved.device)
    return _gather_kernel(
        "index_put_accumulate",
        moved,
        (linear, linear),
        reads_target=accumulates,
        scatters=True,
    )


def _elements_an_index(shape: tuple[int, ...], indices: Sequence[TensorSpec | None]) -> int:
    """What one place holds: the dimensions without an index (None stands for a whole one). A mask
    takes as many as it has itself."""
    rest = 1
    dim = 0
    for index in indices:
        if index is None:
            rest *= shape[dim]
        dim += len(index.shape) if index is not None and index.dtype in _MASKS else 1
    return rest * prod(shape[dim:])


def _linear_order(target: TensorSpec, count: int, num_indices: int) -> list[Kernel]:
    """index_put_with_sort_kernel (Indexing.cu): a linear index and its sort, so that rows are added
    in order."""
    linear = vector(count, "int64", target.device)
    step = pointwise_kernel("mul", (linear,), (linear,))
    step += pointwise_kernel("add", (linear, linear), (linear,))
    return step * num_indices + deterministic_order(count, target.numel, target.device)


def _broadcast(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*aligned, strict=True))


@register_op("aten::gather", "aten::index_select", "aten::take")
def gather_elements(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    index: TensorSpec,
    dim: int | None = None,
) -> list[Kernel]:
    """One gather; of whole rows where the first dimension is selected."""
    result = output(call)
    selects = kernel_name(call) == "index_select" and dim == 0
    row = result.numel // max(1, index.numel) if selects else 1
    return _select_rows(kernel_name(call), result, index, row, math.torch)


@register_op("aten::scatter", "aten::scatter_add", "aten::scatter_reduce")
def scatter(
    call: OpSignature, *, self: TensorSpec, index: TensorSpec, src: TensorSpec | None = None
) -> list[Kernel]:
    """As many elements as there are indices; sums also read what is there."""
    adds = kernel_name(call) != "scatter" or call.overload.endswith("reduce")
    moved = TensorSpec(index.shape, index.shape, self.dtype, self.device)
    return _scattered(call, self, index, moved, adds=adds)


@register_op("aten::index_add", "aten::index_copy", "aten::index_reduce", "aten::put")
def index_add(
    call: OpSignature,
    *,
    self: TensorSpec,
    index: TensorSpec,
    source: TensorSpec,
    accumulate: bool = False,
) -> list[Kernel]:
    """The whole source; sums also read what is there."""
    adds = kernel_name(call) in ("index_add", "index_reduce") or accumulate
    scalar = TensorSpec(index.shape, index.shape, self.dtype, self.device)
    return _scattered(call, self, index, source if source.shape else scalar, adds=adds)


@register_op("aten::index_fill")
def index_fill(
    call: OpSignature, *, self: TensorSpec, dim: int, index: TensorSpec, value: Argument
) -> list[Kernel]:
    """A slice per index."""
    slices = self.numel // max(1, self.shape[dim] if self.shape else 1)
    shape = (index.numel, slices)
    return _scattered(
        call, self, index, TensorSpec(shape, shape, self.dtype, self.device), adds=False
    )


def _scattered(
    call: OpSignature, target: TensorSpec, index: TensorSpec, moved: TensorSpec, *, adds: bool
) -> list[Kernel]:
    """A copy for the out-of-place form, then one scatter."""
    copies = [] if is_in_place(call) else copy_kernel(target, output(call))
    return copies + _gather_kernel(
        kernel_name(call),
        moved,
        (index,),
        writes=target,
        reads_target=adds,
        scatters=kernel_name(call) in _SCATTERING,
    )


#: What is priced as a scatter: index_copy, index_fill and put write each place once.
_SCATTERING = frozenset({"scatter", "scatter_add", "scatter_reduce", "index_add"})


@register_op("aten::searchsorted", "aten::bucketize")
def searchsorted(call: OpSignature) -> list[Kernel]:
    """A binary search per element."""
    reads, writes = read_tensors(call), written_tensors(call)
    if not writes or not writes[0].numel:
        return []
    return [
        memory_kernel(
            KernelClass.GATHER,
            kernel_name(call),
            reads=reads,
            writes=writes,
            width=writes[0].numel,
        )
    ]


@register_op("aten::nonzero", "aten::argwhere")
def nonzero(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """Count, read by the host, select, and the split into coordinates for several dimensions."""
    result = output(call)
    if not self.numel:
        return []
    kernels = select_flagged(self, result.shape[0])
    if len(self.shape) > 1 and result.numel:
        kernels += pointwise_kernel("nonzero_coordinates", (result,), (result,))
    return kernels


@register_op("aten::nonzero_static")
def nonzero_static(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """Like nonzero, but of a given size and so without a wait of the host."""
    result = output(call)
    steps = [k for k in select_flagged(self, result.shape[0]) if k.name != "memcpy_d2h"]
    return steps + pointwise_kernel("nonzero_coordinates", (result,), (result,))


@register_op("aten::masked_select")
def masked_select(call: OpSignature, *, mask: TensorSpec, **others: Argument) -> list[Kernel]:
    """The mask as positions, then a gather."""
    result = output(call)
    positions = vector(result.numel, "int64", result.device)
    return select_flagged(mask, result.numel) + _gather_kernel("index", result, (positions,))


@register_op("aten::masked_scatter")
def masked_scatter(
    call: OpSignature, *, self: TensorSpec, mask: TensorSpec, source: TensorSpec
) -> list[Kernel]:
    """A scan of the mask, then each chosen place takes the next value."""
    result = output(call)
    kernels = [] if is_in_place(call) else copy_kernel(self, result)
    order = vector(mask.numel, "int64", mask.device)
    return [
        *kernels,
        memory_kernel(KernelClass.REDUCTION, "scan_init", width=1),
        memory_kernel(KernelClass.REDUCTION, "cumsum", reads=(mask,), writes=(order,)),
        *pointwise_kernel(
            "masked_scatter", (result, mask, order, source), (result,), scatters=True
        ),
    ]


@register_op("aten::masked_scatter_backward")
def masked_scatter_backward(
    call: OpSignature, *, grad_output: TensorSpec, mask: TensorSpec
) -> list[Kernel]:
    """The masked gradient, padded with zeros."""
    result = output(call)
    positions = vector(mask.numel, "int64", mask.device)
    chosen = select_flagged(mask, min(mask.numel, result.numel))
    fill = fill_kernel(result)
    return (
        chosen
        + _gather_kernel("index", grad_output, (positions,))
        + fill
        + copy_kernel(result, result)
    )


@register_op("aten::bincount")
def bincount(call: OpSignature, *, self: TensorSpec, weights: TensorSpec | None) -> list[Kernel]:
    """Smallest and largest value, both read by the host, then a histogram."""
    result = output(call)
    limit = vector(1, self.dtype, self.device)
    if not self.numel:
        return fill_kernel(result)
    return [
        *reduce_kernel("min", (self,), (limit,)),
        memcpy_d2h(limit),
        *reduce_kernel("max", (self,), (limit,)),
        memcpy_d2h(limit),
        *fill_kernel(result),
        _histogram("bincount", self, weights, result),
    ]


@register_op("aten::histc", "aten::histogram")
def histc(
    call: OpSignature, *, self: TensorSpec, bins: Argument, weight: TensorSpec | None = None
) -> list[Kernel]:
    """The limits, then a histogram."""
    result = output(call)
    limits = vector(2, self.dtype, self.device)
    return [
        *reduce_kernel("aminmax", (self,), (limits,)),
        *fill_kernel(result),
        _histogram("histc", self, weight, result),
    ]


def _histogram(
    name: str, source: TensorSpec, weights: TensorSpec | None, result: TensorSpec
) -> Kernel:
    return memory_kernel(
        KernelClass.GATHER,
        name,
        reads=(source, weights),
        writes=(result,),
        width=source.numel,
        scatters=True,
    )
