"""Copies: casts, moves between host and GPU, concatenation, padding, and views made real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neusight.ops.operands import (
    contiguous,
    copy_kernel,
    fill_kernel,
    gpu_tensors,
    itemsize,
    kernel_name,
    layout_of,
    memcpy_d2h,
    memcpy_h2d,
    memcpy_p2p,
    memory_kernel,
    new_tensor,
    op_names,
    output,
    pointwise_kernel,
    read_tensors,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass, Layout
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Tensors that one launch of CatArrayBatchedCopy takes (CAT_ARRAY_BATCH_SIZE, cuda/Shape.cu).
_CAT_BATCH = 128

#: Views by name that copy: the `_copy` forms and ops that are an expand plus a copy.
MATERIALIZED_VIEWS: tuple[str, ...] = op_names(
    """
    _conj_copy _fw_primal_copy _indices_copy _make_dual_copy _neg_view_copy
    _nested_get_values_copy _reshape_alias_copy _reshape_copy _sparse_broadcast_to_copy
    _test_autograd_multiple_dispatch_view_copy _values_copy alias_copy as_strided_copy
    ccol_indices_copy channel_shuffle clone col_indices_copy crow_indices_copy detach_copy
    diagonal_copy expand_copy indices_copy lift_fresh_copy narrow_copy native_channel_shuffle
    permute_copy pixel_shuffle pixel_unshuffle repeat row_indices_copy select_copy slice_copy
    squeeze_copy t_copy transpose_copy unfold_copy unsqueeze_copy values_copy
    view_as_complex_copy view_as_real_copy view_copy
    """
)


def move(source: TensorSpec, target: TensorSpec) -> list[Kernel]:
    """What copies `source` into `target`, across devices and dtypes.

    Between host and GPU, ATen/native/cuda/Copy.cu casts on the source's side and needs both
    sides contiguous; a memcpy moves the bytes.
    """
    if not target.numel or (source.device == "cpu" and target.device == "cpu"):
        return []
    if source.device == "cpu":
        staged = [] if layout_of((target,)) == "contiguous" else copy_kernel(target, target, "copy")
        return [memcpy_h2d(target), *staged]
    if target.device == "cpu":
        plain = source.dtype == target.dtype and layout_of((source,)) == "contiguous"
        ready = contiguous(target)._replace(device=source.device)
        staged = [] if plain else copy_kernel(source, ready, "copy")
        return [*staged, memcpy_d2h(target)]
    return copy_kernel(source, target)


@register_op("aten::copy")
def copy_into(
    call: OpSignature, *, self: TensorSpec, src: Argument, **others: Argument
) -> list[Kernel]:
    """A copy into an existing tensor (copy_), on the GPU or across the bus."""
    if not isinstance(src, TensorSpec):  # a Python number
        return fill_kernel(self)
    return move(src, self)


@register_op("neusight::peer_copy")
def copy_from_peer(call: OpSignature, *, self: TensorSpec, src: TensorSpec) -> list[Kernel]:
    """A copy out of the memory of another rank (symmetric memory)."""
    return [memcpy_p2p(self)]


@register_op("aten::_copy_from", "aten::_copy_from_and_resize")
def copy_from(call: OpSignature, *, self: TensorSpec, dst: TensorSpec) -> list[Kernel]:
    """The same, said the other way round."""
    return move(self, dst)


@register_op("aten::_to_copy")
def to_copy(
    call: OpSignature, *, self: TensorSpec, dtype: str = "", device: str = ""
) -> list[Kernel]:
    """A cast, a change of memory format or a move, into a new tensor."""
    if call.output_tensors:
        return move(self, call.output_tensors[0])
    # The result left the GPU and was not written down: what was asked for says what it is.
    target = contiguous(self)._replace(device=device or self.device)
    return move(self, target._replace(dtype=dtype or self.dtype))


@register_op(*(f"aten::{name}" for name in MATERIALIZED_VIEWS))
def clone(call: OpSignature) -> list[Kernel]:
    """One copy of what a view shows, its only tensor."""
    (source, *_), target = read_tensors(call), output(call)
    kernels = copy_kernel(_shown(source, target), target)
    if source.numel < target.numel and kernels:  # repeat and expand read less than they write
        read = min(source.num_bytes, kernels[0].bytes_read)
        return [replace(kernels[0], name="copy", bytes_read=read, layout="scalar")]
    return kernels


def _shown(source: TensorSpec, target: TensorSpec) -> TensorSpec:
    """The part of the source that a copying view reads; reordered dimensions are strided."""
    if source.shape == target.shape or source.numel < target.numel:
        return source
    if source.numel == target.numel and source.is_contiguous and target.is_contiguous:
        return source
    step = max(1, source.numel // max(1, target.numel))
    return target._replace(dtype=source.dtype, stride=tuple(s * step for s in target.stride))


@register_op("aten::_local_scalar_dense", "aten::is_nonzero")
def local_scalar(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """item(): one element to the host, which waits for it."""
    return [memcpy_d2h(self)]


@register_op("aten::cat", "aten::stack", "aten::_stack", "aten::_chunk_cat")
def cat(call: OpSignature, math: MathMode, *, tensors: tuple[TensorSpec, ...] = ()) -> list[Kernel]:
    """A batched copy, or a copy a tensor where dtypes differ."""
    target = output(call)
    sources = [spec for spec in tensors if spec.numel and spec.device != "cpu"]
    if not target.numel or not sources:
        return []
    if any(spec.dtype != target.dtype for spec in sources):
        return [k for spec in sources for k in copy_kernel(spec, spec._replace(dtype=target.dtype))]
    kernels: list[Kernel] = []
    for start in range(0, len(sources), _CAT_BATCH):
        batch = sources[start : start + _CAT_BATCH]
        elements = sum(spec.numel for spec in batch)
        moved = elements * target.num_bytes // target.numel
        kernels.append(
            memory_kernel(
                KernelClass.COPY,
                "cat",
                reads=batch,
                writes=(target,),
                width=elements,
                flops=0,
                bytes_written=moved,
                layout=_layout_of_cat(batch, target, math.torch),
                variant="cat",
                num_parts=len(batch),
                widest_part=max(spec.numel for spec in batch),
            )
        )
    return kernels


#: Bytes that one load of a cat takes at best (ALIGNED_VEC_LOAD_BYTES_16, cuda/Shape.cu).
_CAT_VECTOR = 16

#: The release of torch from which on a cat of 16-bit types loads several at once too.
_CAT_OF_HALVES = (2, 8)


def _layout_of_cat(
    sources: Sequence[TensorSpec], target: TensorSpec, torch: tuple[int, int]
) -> Layout:
    """How a cat goes through its tensors: several elements at once where all are contiguous and
    each piece begins at a multiple of the widest load, be they all NCHW or all NHWC (parallel_cat,
    which goes by their common memory format)."""
    is_nhwc = target.is_channels_last and all(spec.is_channels_last for spec in sources)
    if is_nhwc:
        sources = [_channels_behind(spec) for spec in sources]
        target = _channels_behind(target)
    if any(_is_transposed_piece(spec) for spec in sources):
        return "strided"
    item = itemsize(target.dtype)
    is_wide = item >= 4 or torch >= _CAT_OF_HALVES
    pieces = (spec.numel // max(1, _outer(spec, target)) * item for spec in sources)
    is_aligned = all(num_bytes % _CAT_VECTOR == 0 for num_bytes in pieces)
    flat = target.is_contiguous and all(spec.is_contiguous for spec in sources)
    if not (flat and is_wide and is_aligned):
        return "scalar"
    return "channels_last" if is_nhwc else "contiguous"


def _channels_behind(spec: TensorSpec) -> TensorSpec:
    """A tensor of channels_last as the contiguous one that it is in memory."""
    batch, channels, *pixels = spec.shape
    return contiguous(spec._replace(shape=(batch, *pixels, channels)))


def _outer(spec: TensorSpec, target: TensorSpec) -> int:
    """The pieces that a source falls into: the sizes before the dimension along which they are
    joined."""
    outer = 1
    for size, whole in zip(spec.shape, target.shape, strict=False):
        if size != whole:
            break
        outer *= size
    return outer


def _is_transposed_piece(spec: TensorSpec) -> bool:
    """Whether its neighbours lie apart in the order of its dimensions, in which a cat goes."""
    return layout_of((spec, contiguous(spec))) == "strided"


@register_op("aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy")
def split_copy(
    call: OpSignature, *, self: TensorSpec, out: tuple[TensorSpec, ...] = ()
) -> list[Kernel]:
    """A copy a part; split_with_sizes_copy.out is one kernel (FSDP's unpacking)."""
    parts = gpu_tensors(out) or written_tensors(call)
    if call.op == "aten::split_with_sizes_copy" and call.overload == "out":
        return [
            memory_kernel(
                KernelClass.COPY, "split_with_sizes_copy", reads=(self,), writes=parts, flops=0
            )
        ]
    return [k for part in parts for k in copy_kernel(part._replace(stride=_gapped(part)), part)]


def _gapped(part: TensorSpec) -> tuple[int, ...]:
    """Strides of a part inside a larger tensor."""
    return tuple(2 * stride for stride in part.stride)


@register_op("aten::roll", "aten::flip", "aten::rot90")
def permuted_copy(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """One kernel that computes where each element comes from."""
    target = output(call)
    if not target.numel:
        return []
    return [
        memory_kernel(
            KernelClass.COPY,
            kernel_name(call),
            reads=(self,),
            writes=(target,),
            width=target.numel,
            layout="scalar",
        )
    ]


@register_op("aten::constant_pad_nd")
def constant_pad(call: OpSignature, *, self: TensorSpec, pad: tuple[int, ...] = ()) -> list[Kernel]:
    """The constant everywhere, then the input into its place; only cropping is one copy."""
    target = output(call)
    inside = _shrunk(self, target)
    copies = copy_kernel(inside._replace(stride=_gapped(inside)), inside)
    if all(pad <= 0 for pad in pad):
        return copies
    return fill_kernel(target) + copies


def _shrunk(first: TensorSpec, second: TensorSpec) -> TensorSpec:
    """The common part of two shapes, contiguous."""
    shape = tuple(min(a, b) for a, b in zip(first.shape, second.shape, strict=True))
    return new_tensor(shape, first.dtype, first.device)


_PADS = [f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)]


@register_op(*(f"aten::{name}" for name in _PADS))
def pad(call: OpSignature, math: MathMode, *, self: TensorSpec) -> list[Kernel]:
    """One kernel."""
    return pointwise_kernel(kernel_name(call)[:-2], (self,), written_tensors(call))


@register_op(*(f"aten::{name}_backward" for name in _PADS))
def pad_backward(call: OpSignature, *, grad_output: TensorSpec, **others: Argument) -> list[Kernel]:
    """Zeros, then a kernel that adds each gradient to where it came from."""
    target = output(call)
    name = kernel_name(call).replace("1d_", "_").replace("2d_", "_").replace("3d_", "_")
    return fill_kernel(target) + pointwise_kernel(name, (grad_output,), (target,))


@register_op("aten::im2col", "aten::col2im")
def im2col(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """unfold launches a kernel an image, fold one for all."""
    target = output(call)
    batch = self.shape[0] if kernel_name(call) == "im2col" and len(self.shape) == 4 else 1
    if not target.numel:
        return []
    kernel = Kernel.rows(
        KernelClass.COPY,
        kernel_name(call),
        1,
        target.numel // batch,
        dtype=self.dtype,
        bytes_read=self.num_bytes // batch,
        bytes_written=target.num_bytes // batch,
        flops=0,
        layout="scalar",
    )
    return [kernel] * batch


_EMBEDDED = ("select", "slice", "diagonal", "_nested_select")


@register_op(*(f"aten::{name}_backward" for name in _EMBEDDED))
def view_backward(
    call: OpSignature, *, grad_output: TensorSpec, **others: Argument
) -> list[Kernel]:
    """Zeros, then the gradient into its place."""
    target = output(call)
    place = grad_output._replace(stride=_gapped(grad_output))
    return fill_kernel(target) + copy_kernel(grad_output, place)


@register_op("aten::unfold_backward")
def unfold_backward(call: OpSignature, *, grad_in: TensorSpec) -> list[Kernel]:
    """Zeros, then a kernel that adds overlapping windows."""
    target = output(call)
    return fill_kernel(target) + pointwise_kernel("unfold_backward", (grad_in,), (target,))


@register_op(
    "aten::select_scatter",
    "aten::slice_scatter",
    "aten::diagonal_scatter",
    "aten::as_strided_scatter",
)
def view_scatter(call: OpSignature, *, self: TensorSpec, src: TensorSpec) -> list[Kernel]:
    """A copy of the whole, then the new part into its place."""
    return copy_kernel(self, output(call)) + copy_kernel(src, src._replace(stride=_gapped(src)))


@register_op("aten::diag_embed")
def diag_embed(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """Zeros, then the diagonal."""
    target = output(call)
    place = self._replace(stride=_gapped(self))
    return fill_kernel(target) + copy_kernel(self, place)


@register_op("aten::block_diag")
def block_diag(call: OpSignature, *, tensors: tuple[TensorSpec, ...] = ()) -> list[Kernel]:
    """Zeros, then a copy a block."""
    kernels = pointwise_kernel("fill", (), written_tensors(call))
    for block in tensors:
        kernels += copy_kernel(block, block._replace(stride=_gapped(block)))
    return kernels


@register_op("aten::_pack_padded_sequence")
def pack_padded_sequence(
    call: OpSignature, *, input: TensorSpec, **others: Argument
) -> list[Kernel]:
    """A concatenation of the steps of equal batch size, taken as one."""
    return copy_kernel(input, output(call), "pack_padded_sequence")


@register_op("aten::_pack_padded_sequence_backward")
def pack_padded_sequence_backward(
    call: OpSignature, *, grad: TensorSpec, **others: Argument
) -> list[Kernel]:
    """Zeros, then the gradients into their places."""
    target = output(call)
    return fill_kernel(target) + pointwise_kernel("pack_padded_sequence_backward", (grad,), (grad,))


@register_op("aten::_cudnn_rnn_flatten_weight")
def flatten_rnn_weight(
    call: OpSignature, *, weight_arr: tuple[TensorSpec, ...] = ()
) -> list[Kernel]:
    """Zeros, then a copy a weight into one buffer."""
    kernels = pointwise_kernel("fill", (), written_tensors(call))
    for weight in weight_arr:
        kernels += copy_kernel(weight, weight)
    return kernels


@register_op(
    "aten::_jagged_to_padded_dense_forward",
    "aten::_padded_dense_to_jagged_forward",
    "aten::_nested_from_padded",
    "aten::to_padded_tensor",
    "aten::_nested_tensor_from_mask",
)
def jagged_copy(call: OpSignature) -> list[Kernel]:
    """One kernel between padded and packed sequences."""
    return pointwise_kernel("jagged_copy", read_tensors(call), written_tensors(call))


@register_op("aten::repeat_interleave")
def repeat_interleave(
    call: OpSignature, *, repeats: Argument, output_size: int | None = None, **others: Argument
) -> list[Kernel]:
    """A scan of the repeats, their total read by the host unless given, then the indices."""
    target = output(call)
    if not isinstance(repeats, TensorSpec):  # one number for all
        return pointwise_kernel("repeat_interleave", read_tensors(call), (target,))
    total = TensorSpec((), (), "int64", repeats.device)
    scan = memory_kernel(KernelClass.REDUCTION, "cumsum", reads=(repeats,), writes=(repeats,))
    read_total = [] if output_size is not None else [memcpy_d2h(total)]
    return [scan, *read_total, *pointwise_kernel("repeat_interleave", (repeats,), (target,))]
