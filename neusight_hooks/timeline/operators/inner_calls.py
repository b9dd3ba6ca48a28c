"""What a CUDA build of torch calls inside an op, by the op: a table of its sources and profiles.

A forecast records an op whole. On a GPU some ops call further operators: `zeros` makes an empty
tensor and fills it. The table has those that torch's dispatcher reports there. Sources: profiles of
27 steps on H100 with torch 2.11 (November 2026), where none has an op the CPU profiler of torch
2.13 and profiles on V100, B200 and MI250 of older releases.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, Union

from neusight.ops.products.convolution import is_depthwise_of_torch
from neusight.recording.recording import OpSignature, TensorSpec


class Open(NamedTuple):
    """An operator begins."""

    name: str


Token = Union[Open, Literal["close", "launch"]]

#: An operator ends; the next kernel is launched, the last time all that are left.
CLOSE: Literal["close"] = "close"
LAUNCH: Literal["launch"] = "launch"

# In the texts below `a[b c]` is an operator that calls two others, and `*` the launch of a kernel.

_VIEW = "as_strided"
_SLICE = "slice[as_strided]"
_EMPTY_LIKE = "empty_like[empty_strided]"
_ZEROS = "zeros[empty zero_[fill_[*]]]"
_INDEX_SELECT = (
    "index_select[empty resize_ view expand[as_strided] gather[as_strided as_strided *]]"
)
_TRANSPOSES_2 = "transpose[as_strided] transpose[as_strided]"
_TRANSPOSES_3 = f"{_TRANSPOSES_2} transpose[as_strided]"
_TO_COPY = "empty_strided copy_[*]"
_CONTIGUOUS = "contiguous[clone[empty_like[empty] copy_[*]]]"
#: What indexing puts back into a tensor by sorting.
_INDEX_PUT = (
    "remainder[remainder[*]] mul[mul[*]] to expand[as_strided] contiguous[clone[empty_like[empty] "
    "copy_[*]]] reshape[view] empty_like[empty] empty_like[empty] divide_[div_[div_[*]]] "
    "arange[empty arange[resize_ *]] *"
)

#: What an op calls, if that is always the same.
_ALWAYS: dict[str, str] = {
    **dict.fromkeys(
        ("transpose", "permute", "expand", "select", "slice", "unsqueeze", "squeeze", "diagonal",
         "unfold"),
        _VIEW,
    ),
    "t": "transpose[as_strided]",
    "detach": "@detach",
    # New tensors
    "zeros": "empty zero_[fill_[*]]",
    "ones": "empty fill_[*]",
    "full": "empty fill_[*]",
    "zeros_like": f"{_EMPTY_LIKE} zero_[fill_[*]]",
    "ones_like": f"{_EMPTY_LIKE} fill_[*]",
    "full_like": f"{_EMPTY_LIKE} fill_[*]",
    "new_empty": "empty",
    "new_empty_strided": "empty_strided",
    "new_zeros": "new_empty[empty] zero_[fill_[*]]",
    "new_ones": "new_empty[empty] fill_[*]",
    "new_full": "new_empty[empty] fill_[*]",
    "zero_": "fill_[*]",
    "arange": "empty arange[resize_ *]",
    "linspace": "empty linspace[*]",
    "scalar_tensor": "empty fill_[*]",
    "randn": "empty normal_[*]",
    "rand": "empty uniform_[*]",
    "randint": "empty random_[*]",
    "randn_like": f"{_EMPTY_LIKE} normal_[*]",
    "rand_like": f"{_EMPTY_LIKE} uniform_[*]",
    "bernoulli": f"{_EMPTY_LIKE} bernoulli_[*]",
    # Gathers and scatters
    "gather": "as_strided as_strided *",
    "scatter_": "as_strided as_strided *",
    "index": "as_strided reshape[view] *",
    "select_backward": f"{_ZEROS} select[as_strided] copy_[*]",
    "slice_backward": f"{_ZEROS} slice[as_strided] copy_[*]",
    "diagonal_backward": f"{_ZEROS} diagonal[as_strided] copy_[*]",
    "index_add": "copy_[*] *",
    # Elementwise
    "relu": "clamp_min[*]",
    "relu_": "clamp_min_[*]",
    "isnan": "ne[*]",
    "abs": "empty abs[resize_ *]",
    "logical_not": "empty logical_not[*]",
    "floor_divide": "empty *",
    "rsub": "sub[*]",
    "hardtanh": "clamp[to *]",
    "hardtanh_backward": "empty *",
    "where": "empty resize_ *",
    "histc": "zeros[empty zero_[fill_[*]]] *",
    "native_dropout": f"{_EMPTY_LIKE} {_EMPTY_LIKE} *",
    "native_dropout_backward": "empty_like[empty] *",
    # Rows
    "max_pool2d_with_indices_backward": "zero_[fill_[*]] *",
    "_softmax_backward_data": "mul[*] *",
    "_safe_softmax": (
        "softmax[_softmax[*]] isneginf[*] all[*] scalar_tensor[empty fill_[*]] where[*]"
    ),
    "cudnn_batch_norm": "empty_like[empty] empty empty view empty empty *",
    "cudnn_batch_norm_backward": "empty empty empty view empty *",
    "cumsum": "to *",
    # Losses
    "_embedding_bag": "empty empty empty empty *",
    "mse_loss": "resize_ empty * mean[as_strided *]",
    "smooth_l1_loss": "resize_ empty * mean[as_strided *]",
    "nll_loss_forward": "resize_ *",
    "nll_loss_backward": "zero_[fill_[*]] *",
    "nll_loss2d_forward": "empty empty resize_ resize_ zero_[fill_[*]] zero_[fill_[*]] *",
    "nll_loss2d_backward": "empty_like[empty_strided] resize_as_[resize_] zero_[fill_[*]] *",
    "mse_loss_backward": "zeros_like[empty_like[empty] zero_[fill_[*]]] mse_loss_backward[*]",
    # Attention (what the kernels allocate was seen of cuDNN's and of flash attention's forward)
    "_scaled_dot_product_flash_attention": (
        f"{_TRANSPOSES_3} _flash_attention_forward[empty_like[empty_strided] empty empty empty * "
        "empty] transpose[as_strided]"
    ),
    "_scaled_dot_product_flash_attention_backward": (
        f"{_TRANSPOSES_3} {_TRANSPOSES_2} _flash_attention_backward[*] {_TRANSPOSES_3}"
    ),
    "_scaled_dot_product_cudnn_attention_backward": (
        f"_cudnn_attention_backward[{_EMPTY_LIKE} {_EMPTY_LIKE} {_EMPTY_LIKE} *]"
    ),
}  # fmt: skip


#: The overload of an op that has no name.
_DEFAULT = "default"


def _copied(tensor: TensorSpec | None) -> str:
    """What makes a tensor contiguous that is not."""
    return "" if tensor is None or tensor.is_contiguous else f"{_CONTIGUOUS} "


#: Rows up to which `index_select` is a kernel; it gathers more. (2 and 32 were seen; the kernel for
#: few rows of torch's Indexing.cu ends here.)
_FEW_ROWS = 16


def _rows_by_index(index: TensorSpec | None) -> str:
    if index is not None and index.numel <= _FEW_ROWS:
        return "index_select[empty resize_ *]"
    return _INDEX_SELECT


def _index_select(signature: OpSignature) -> str:
    return _rows_by_index(signature.optional_tensor("index"))[len("index_select[") : -1]


def _embedding(signature: OpSignature) -> str:
    indices = signature.optional_tensor("indices")
    rows = _rows_by_index(indices)
    return rows if indices is None or len(indices.shape) == 1 else f"reshape[view] {rows} view"


#: Indices up to which one kernel adds the gradients of an embedding; it sorts more of them
#: (Embedding.cu).
_FEW_INDICES = 3072


def _embedding_dense_backward(signature: OpSignature) -> str:
    indices = signature.tensor("indices")
    first = "".join(map(_copied, signature.input_tensors))
    if indices.numel <= _FEW_INDICES:
        return f"{first}view {_ZEROS} *"
    sort = "empty_like[empty] empty_like[empty] arange[empty arange[resize_ *]]"
    return f"{first}view {sort} {_ZEROS} empty empty empty empty empty empty empty *"


def _fill(signature: OpSignature) -> str:
    """A fill with a tensor of the CPU reads its value."""
    value = signature.by_name.get("value")
    is_read = isinstance(value, TensorSpec) and value.device == "cpu"
    return "item[_local_scalar_dense] *" if is_read else ""


def _keeps_format(signature: OpSignature) -> bool:
    return signature.by_name.get("memory_format") in (None, "preserve_format")


def _constant_pad(signature: OpSignature) -> str:
    pad = signature.by_name.get("pad")
    if isinstance(pad, tuple) and not any(pad):
        return f"clone[{_TO_COPY}]"
    return f"empty fill_[*] narrow[{_SLICE}] copy_[*]"


def _roll(signature: OpSignature) -> str:
    dims = signature.by_name.get("dims")
    count, once = len(dims) if isinstance(dims, tuple) else 0, "empty_like[empty] *"
    return once if count < 2 else " ".join([f"roll[{once}]"] * count)


def _cat(signature: OpSignature) -> str:
    """One kernel for all, or a copy for each where there is one or they differ in their type."""
    parts = signature.input_tensors
    is_copied = len(parts) == 1 or len({part.dtype for part in parts}) > 1
    return " ".join([f"narrow[{_SLICE}] *"] * len(parts)) if is_copied else ""


def _stack(signature: OpSignature) -> str:
    """Along another dimension than the last, parts of one are stacked as they are."""
    dim, parts = signature.by_name.get("dim"), signature.input_tensors
    rank = len(parts[0].shape)
    if isinstance(dim, int) and dim % (rank + 1) < rank:
        return "cat[*] view"
    return " ".join([f"unsqueeze[{_VIEW}]"] * len(parts)) + " cat[*]"


def _index_put(signature: OpSignature) -> str:
    if signature.by_name.get("accumulate") is not True:
        return "*"
    indices, values = signature.by_name.get("indices"), signature.by_name.get("values")
    is_vector = isinstance(values, TensorSpec) and len(values.shape) == 1 and values.is_contiguous
    is_whole = is_vector and isinstance(indices, tuple) and len(indices) == 1
    # Expanded values are copied; those of a vector that is put into one are not.
    return _INDEX_PUT.replace(f"{_CONTIGUOUS} ", "") if is_whole else _INDEX_PUT


def _masked_fill(signature: OpSignature) -> str:
    tensor, mask = signature.input_tensors[:2]
    expanded = "" if tensor.shape == mask.shape else f"expand[{_VIEW}] expand[{_VIEW}] "
    return f"{expanded}clone[empty_like[empty] copy_[*]] masked_fill_[{_masked_fill_(signature)}]"


def _masked_fill_(signature: OpSignature) -> str:
    tensor, mask = signature.input_tensors[:2]
    return "*" if tensor.shape == mask.shape else f"expand[{_VIEW}] *"


#: Elements up to which one kernel sorts a row in place (Sort.cpp).
_SMALL_SORT = 4096


def _sort(signature: OpSignature) -> str:
    numbered = "arange[empty arange[resize_ *]] view copy_[*] copy_[*] "
    dim, shape = signature.by_name.get("dim"), signature.input_tensors[0].shape
    size = shape[dim if isinstance(dim, int) else -1] if shape else 1
    inside = f"copy_[*] {numbered if size <= _SMALL_SORT else ''}*"
    return inside if signature.overload == "stable" else f"sort[{inside}]"


def _grouped_product(signature: OpSignature) -> str:
    """In FP32 the host reads where groups end, and multiplies them one by one."""
    ends = signature.optional_tensor("offs")
    if ends is None or signature.input_tensors[0].dtype != "float32":
        return ""
    group = f"select[{_VIEW}] item[_local_scalar_dense] {_SLICE} {_SLICE} select[{_VIEW}] mm[*]"
    return " ".join([f"empty_strided to[_to_copy[{_TO_COPY}]]", *[group] * ends.numel])


def _upsample_backward(signature: OpSignature) -> str:
    gradient = signature.input_tensors[0]
    is_dense = gradient.is_contiguous or gradient.is_channels_last
    return "*" if is_dense else f"{_CONTIGUOUS} *"


def _pow(signature: OpSignature) -> str:
    if signature.overload != "Tensor_Scalar":
        return ""
    is_copy = signature.by_name.get("exponent") == 1
    return "result_type to copy_[*]" if is_copy else "result_type to *"


def _repeat(signature: OpSignature) -> str:
    repeats = signature.by_name.get("repeats")
    rank = len(repeats) if isinstance(repeats, tuple) else 1
    unfolds = " ".join(["unfold[as_strided]"] * rank)
    order = (
        f"arange[empty arange[resize_]] add[add] unsqueeze[{_VIEW}] unsqueeze[{_VIEW}] "
        f"cat[narrow[{_SLICE}]] flatten[view]"
    )
    copied = f"expand_as[expand[{_VIEW}]] copy_[*]"
    return f"expand[{_VIEW}] empty {unfolds} {copied} {order} permute[{_VIEW}] reshape[view]"


def _by_scalar(signature: OpSignature) -> str:
    """Arithmetic with a number of C++ calls that with a tensor."""
    return f"{_name(signature)}[*]" if signature.overload == "Scalar" else ""


def _reduction(signature: OpSignature) -> str:
    """A reduction views its result with the dimensions that are gone; a sum of integers or truth
    values is one of their copies as int64."""
    if signature.by_name.get("keepdim") is True:
        return "*"
    found, results = signature.input_tensors, signature.output_tensors
    is_cast = (
        _name(signature) == "sum" and found and results and found[0].dtype != results[0].dtype
        and results[0].dtype == "int64"
    )  # fmt: skip
    return f"as_strided to[_to_copy[{_TO_COPY}]] *" if is_cast else "as_strided *"


def _whole_or_dims(signature: OpSignature) -> str:
    """A reduction of everything calls that of some dimensions."""
    inside = _reduction(signature)
    return f"{_name(signature)}[{inside}]" if signature.overload == _DEFAULT else inside


def _extremum_at(signature: OpSignature) -> str:
    """Of everything, the tensor is read as one of one dimension."""
    first = "reshape[view] " if signature.by_name.get("dim") is None else ""
    return f"{first}{_reduction(signature)}"


def _logsumexp(signature: OpSignature) -> str:
    kept = signature.by_name.get("keepdim") is True
    squeezed, summed = ("", "resize_") if kept else (f" squeeze[{_VIEW}]", f"resize_ {_VIEW}")
    return (
        f"empty logsumexp[real amax[*]{squeezed} abs[empty abs[resize_ *]] eq[*] masked_fill_[*] "
        f"sub[*] exp_[*] sum[{summed} *] log_[*] add_[*]]"
    )


def _loss_with_logits(signature: OpSignature) -> str:
    """Binary cross entropy; other than of plain targets it was not seen."""
    weights = signature.optional_tensor("weight"), signature.optional_tensor("pos_weight")
    if any(each is not None for each in weights):
        return ""
    reduced = {1: f" mean[mean[{_VIEW} *]]", 2: f" sum[sum[{_VIEW} *]]"}
    end = reduced.get(signature.by_name.get("reduction"), "")  # type: ignore[arg-type]  # a number
    return (
        f"log_sigmoid[log_sigmoid_forward[{_EMPTY_LIKE} empty *]] {_EMPTY_LIKE} fill_[*] sub_[*] "
        f"mul_[*] sub_[*]{end}"
    )


def _isin(signature: OpSignature) -> str:
    """Few values are compared one by one with all elements."""
    elements = signature.input_tensors[0]
    found = "view_as[view] to copy_[*]" if elements.numel == 1 else f"{_VIEW} *"
    return f"fill_[*] unsqueeze[{_VIEW}] view eq[*] any[{found}] copy_[*]"


def _embedding_bag_backward(signature: OpSignature) -> str:
    first = _copied(signature.input_tensors[0])
    sort = "empty_like[empty] empty_like[empty] arange[empty arange[resize_ *]]"
    made = "empty empty empty empty empty empty empty"
    return f"_embedding_bag_dense_backward[{first}{sort} {_ZEROS} {made} *]"


def _any(signature: OpSignature) -> str:
    if signature.input_tensors[0].numel == 1:
        return "view_as[view] to copy_[*]"
    return _reduction(signature)


#: Rows above which the gradients of a layer norm's weights are added in parts, and columns below
#: which: 32 for each second one of an H100's 132 SMs (layer_norm_kernel.cu).
_MANY_ROWS, _FEW_COLUMNS = 64 * 1024, 32 * 66


def _layer_norm_backward(signature: OpSignature) -> str:
    shape, data = signature.by_name.get("normalized_shape"), signature.tensor("input")
    sizes = shape if isinstance(shape, tuple) else ()
    columns = math.prod(size for size in sizes if isinstance(size, int))
    gradient = _copied(signature.optional_tensor("grad_out"))
    begins = f"{_copied(data)}empty empty empty {gradient}*"
    if data.numel // max(1, columns) > _MANY_ROWS and columns < _FEW_COLUMNS:
        return f"{begins} empty empty * sum[as_strided *] sum[as_strided *]"
    return f"{begins} *"


#: Kernels of group norms (group_norm_kernel.cu) read tensors as views.
_VIEWS_4 = "view view view view"


def _group_norm(signature: OpSignature) -> str:
    """The scale and shift of each channel are computed first, where there are weights."""
    has_weights = signature.optional_tensor("weight") is not None
    if signature.by_name.get("HxW") == 1:
        return f"empty empty empty * {_VIEWS_4}{' view view' * has_weights} *"
    return f"empty empty empty * {'empty empty * ' * has_weights}{_VIEWS_4} *"


def _group_norm_backward(signature: OpSignature) -> str:
    wanted = signature.by_name.get("output_mask")
    mask = wanted if isinstance(wanted, tuple) else (True, True, True)
    begins = " ".join(["empty"] * (2 + mask.count(True)))
    of_input = "empty empty empty view view resize_ * * view view view view view view *"
    of_weights = " *" if any(mask[1:]) else ""
    return f"{begins} * {of_input if mask[0] else ''}{of_weights}"


#: How torch's own batch norm divides rows among CTAs (Normalization.cuh): rows of a thread, most
#: threads of a CTA, columns of a tile, fewest CTAs that share a column.
_ROWS_PER_THREAD, _MOST_THREADS, _TILE_COLUMNS, _FEWEST_SHARING = 16, 512, 32, 8


def _shares_columns(image: TensorSpec) -> bool:
    """Whether several CTAs reduce one channel of an NHWC image, and leave partial sums."""
    rows, channels = image.numel // image.shape[1], image.shape[1]
    wide = min(_power_of_two(channels), _TILE_COLUMNS)
    high = min(_power_of_two(-(-rows // _ROWS_PER_THREAD)), _MOST_THREADS // wide)
    return -(-rows // (high * _ROWS_PER_THREAD)) >= _FEWEST_SHARING


def _power_of_two(number: int) -> int:
    """The largest power of two up to the number."""
    return 1 << (max(1, number).bit_length() - 1)


def _batch_norm(signature: OpSignature) -> str:
    image = signature.input_tensors[0]
    begins = f"{_EMPTY_LIKE} empty empty"
    if signature.by_name.get("training") is not True:
        is_cast = signature.tensor("running_mean").dtype != "float32"
        return f"{begins} copy_[*] *" if is_cast else f"{begins} *"
    if not image.is_channels_last:
        return f"{begins} reshape[view] * * reshape[view] view *"
    shared = f" empty {_ZEROS}" if _shares_columns(image) else ""
    return f"{begins}{shared} * * *"


def _batch_norm_backward(signature: OpSignature) -> str:
    image = signature.tensor("input")
    if not image.is_channels_last:
        likes = "empty_like[empty] view empty_like[empty] empty_like[empty]"
        return f"reshape[view] reshape[view] {likes} *"
    shared = f" empty {_ZEROS}" if _shares_columns(image) else ""
    return f"empty empty empty empty{shared} * {_EMPTY_LIKE} *"


def _cudnn_attention(signature: OpSignature) -> str:
    sums = " empty" if signature.by_name.get("compute_log_sumexp") is True else ""
    return f"_cudnn_attention_forward[empty empty {_EMPTY_LIKE}{sums} *]"


def _efficient_attention(signature: OpSignature) -> str:
    drops = bool(signature.by_name.get("dropout_p"))
    made = "scalar_tensor scalar_tensor empty empty" if drops else "empty empty empty empty"
    return f"{_TRANSPOSES_3} _efficient_attention_forward[{made} *] transpose[as_strided]"


def _efficient_attention_backward(signature: OpSignature) -> str:
    """Three gradients, and a fourth of the bias; then the sums of rows, which a kernel for 16 bits
    makes itself, and a workspace, which for 16 bits is one of zeros."""
    wanted = signature.by_name.get("grad_input_mask")
    has_bias = isinstance(wanted, tuple) and wanted[-1] is True
    gradient = signature.input_tensors[0]
    batch, heads, rows, width = gradient.shape
    by_rows = TensorSpec(
        (batch, rows, heads, width), tuple(gradient.stride[dim] for dim in (0, 2, 1, 3)), ""
    )
    bias = f"empty {_SLICE} " if has_bias else ""
    summed = f"to to mul[*] sum[as_strided *] transpose[{_VIEW}] {_CONTIGUOUS} empty"
    sums = summed if gradient.dtype == "float32" else "empty empty zero_[fill_[*]]"
    inside = f"{_copied(by_rows)}empty empty empty {bias}{sums} *"
    return (
        f"{_TRANSPOSES_3} {_TRANSPOSES_2} _efficient_attention_backward[{inside}] {_TRANSPOSES_3}"
    )


def _foreach(signature: OpSignature) -> str:
    """One that gives new tensors makes them one by one, but for norms of chunks of tensors."""
    if signature.op.endswith("_"):
        return ""
    if _name(signature) == "_foreach_norm":
        return f"{_ZEROS} *"
    return " ".join([*["empty_strided"] * len(signature.output_tensors), "*"])


def _for_each_output(text: str, signature: OpSignature) -> str:
    return " ".join([text] * len(signature.output_tensors))


def _is_nhwc_for_cudnn(signature: OpSignature) -> bool:
    """Whether cudnn reads tensors of a convolution as NHWC: once the image or the weights are."""
    operands = signature.optional_tensor("input"), signature.optional_tensor("weight")
    return any(each is not None and _has_strides_of_nhwc(each) for each in operands)


def _has_strides_of_nhwc(tensor: TensorSpec) -> bool:
    """Whether strides are in that order, though there may be gaps (c10/core/MemoryFormat.h)."""
    if len(tensor.shape) not in (4, 5) or tensor.stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(tensor.shape) - 1, 1, -1), 0):
        size, stride = tensor.shape[dim], tensor.stride[dim]
        if size == 0 or stride < least or (dim == 0 and least == tensor.stride[1]):
            return False
        least = stride * size if size > 1 else stride
    return True


def _is_in_order(tensor: TensorSpec, *, nhwc: bool) -> bool:
    """Whether a tensor is dense as NHWC, or NCHW; with one channel or pixel it may be both."""
    is_both = tensor.shape[1] == 1 or all(size == 1 for size in tensor.shape[2:])
    if tensor.is_contiguous:
        return is_both or not nhwc
    return tensor.is_channels_last and (is_both or nhwc)


def _convolution(signature: OpSignature) -> str:
    bias = " reshape[view] add_[*]" if signature.optional_tensor("bias") is not None else ""
    if is_depthwise_of_torch(signature):
        return "_convolution[_conv_depthwise2d[empty resize_ *]]"
    kind = "convolution_transpose" if signature.by_name.get("transposed") is True else "convolution"
    nhwc = _is_nhwc_for_cudnn(signature)
    image = f"{_CONTIGUOUS} " * (not _is_in_order(signature.tensor("input"), nhwc=nhwc))
    weight = f"{_CONTIGUOUS} " * (not _is_in_order(signature.tensor("weight"), nhwc=nhwc))
    return f"_convolution[{image}cudnn_{kind}[{weight}*]{bias}]"


def _convolution_backward(signature: OpSignature) -> str:
    wanted = signature.by_name.get("output_mask")
    of_input, of_weight, of_bias = wanted if isinstance(wanted, tuple) else (True, True, True)
    if is_depthwise_of_torch(signature):
        parts = ["empty empty resize_ *", "resize_ *" if of_weight else ""]
    else:
        nhwc = _is_nhwc_for_cudnn(signature)
        gradient, image = signature.tensor("grad_output"), signature.tensor("input")
        weight = f"{_CONTIGUOUS} " * (not _is_in_order(signature.tensor("weight"), nhwc=nhwc))
        # A gradient whose strides are in the other order is copied once, one with gaps each time.
        is_dense = _is_in_order(gradient, nhwc=nhwc)
        is_turned = not is_dense and _has_strides_of_nhwc(gradient) != nhwc
        each = "" if is_dense or is_turned else f"{_CONTIGUOUS} "
        plain = "" if signature.by_name.get("transposed") is True else "to"
        parts = [
            _CONTIGUOUS if of_weight and not _is_in_order(image, nhwc=nhwc) else "",
            "to[_to_copy[empty copy_[*]]]" if is_turned else plain,
            f"{each}{weight}*" if of_input else "",
            f"{each}empty *" if of_weight else "",
        ]
    return " ".join([*parts, "sum[as_strided *]" if of_bias else ""])


#: What cuDNN's kernels for recurrent networks begin with where the batch comes first: a copy with
#: time first. (A forecast has no kernel for it.)
_IN_ORDER = "contiguous[clone[empty_like[empty] copy_]]"


def _is_batch_first(signature: OpSignature) -> bool:
    return signature.by_name.get("batch_first") is True and not signature.by_name.get("batch_sizes")


def _recurrent(signature: OpSignature) -> str:
    """cuDNN's recurrent network: results, workspace and what backward needs (RNN.cpp)."""
    inside = "empty empty empty empty empty *"
    if not _is_batch_first(signature):
        return inside
    return f"transpose[as_strided] {_IN_ORDER} {inside} transpose_[as_strided_]"


def _recurrent_backward(signature: OpSignature) -> str:
    """Gradients that are not there are zeros; then those of input and states, and of the weights,
    which are parts of one buffer (RNN.cpp)."""
    arguments = signature.by_name
    wanted = ["grad_output", "grad_hy", *(["grad_cy"] if arguments.get("cx") is not None else [])]
    missing = sum(arguments.get(name) is None for name in wanted)
    is_first = _is_batch_first(signature)
    states = ["view", "view"] if arguments.get("cx") is not None else ["view"]
    parts = ["zeros_like[empty_like[empty] zero_[fill_]]"] * missing
    parts += [_TRANSPOSES_3, _IN_ORDER, _IN_ORDER] if is_first else []
    parts += ["empty", *states, *("empty" for _ in states), "empty *"]
    parts += ["transpose_[as_strided_]"] if is_first else []
    mask, weights = arguments.get("output_mask"), arguments.get("weight")
    if isinstance(mask, tuple) and mask[-1] is True and isinstance(weights, tuple):
        parts += [_TRANSPOSES_2, _IN_ORDER] if is_first else []
        parts += ["zeros[empty zero_[fill_]] empty", *["empty set_"] * len(weights)]
        parts += ["resize_as_[resize_]"] * len(weights)
    return " ".join(parts)


def _name(signature: OpSignature) -> str:
    return signature.op.removeprefix("aten::")


#: What an op calls, if that depends on its arguments.
_BY_ARGUMENTS: dict[str, Callable[[OpSignature], str]] = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward,
    "index_select": _index_select,
    "index_put": lambda call: f"clone[{_TO_COPY}] index_put_[_index_put_impl_[{_index_put(call)}]]",
    "index_put_": lambda call: f"_index_put_impl_[{_index_put(call)}]",
    "_index_put_impl_": _index_put,
    "_to_copy": lambda call: _TO_COPY if _keeps_format(call) else "empty copy_[*]",
    "empty_like": lambda call: "empty_strided" if _keeps_format(call) else "empty",
    "clone": lambda call: _TO_COPY if _keeps_format(call) else "empty_like[empty] copy_[*]",
    "cat": _cat,
    # Between numbers the tensor is brought to the type of the result first.
    "clamp": lambda call: "to *" if call.overload == _DEFAULT else "",
    "stack": _stack,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill_,
    "sort": _sort,
    "upsample_nearest2d_backward": _upsample_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
    "constant_pad_nd": _constant_pad,
    "roll": _roll,
    "split": lambda call: _for_each_output(f"narrow[{_SLICE}]", call),
    "split_with_sizes": lambda call: _for_each_output(_VIEW, call),
    "unbind": lambda call: _for_each_output("select[as_strided]", call),
    "fill_": _fill,
    "pow": _pow,
    "repeat": _repeat,
    **dict.fromkeys(("add", "sub", "mul", "div", "div_", "mul_", "remainder"), _by_scalar),
    **dict.fromkeys(("all", "amax", "amin", "linalg_vector_norm", "prod"), _reduction),
    **dict.fromkeys(("sum", "mean"), _whole_or_dims),
    **dict.fromkeys(("argmax", "argmin"), _extremum_at),
    **dict.fromkeys(
        ("_softmax", "_log_softmax"),
        lambda call: f"{copied}*" if (copied := _copied(call.input_tensors[0])) else "",
    ),
    "logsumexp": _logsumexp,
    "isin": _isin,
    "_grouped_mm": _grouped_product,
    "_embedding_bag_backward": _embedding_bag_backward,
    "binary_cross_entropy_with_logits": _loss_with_logits,
    "_scaled_dot_product_efficient_attention": _efficient_attention,
    "any": _any,
    **dict.fromkeys(
        ("max", "min"),
        lambda call: "empty as_strided *" if call.overload == _DEFAULT else "",
    ),
    "native_layer_norm": lambda call: (
        f"{_copied(call.input_tensors[0])}empty empty empty * view view"
    ),
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "_adaptive_avg_pool2d": lambda call: (
        f"empty resize_{' as_strided_' * call.input_tensors[0].is_channels_last} *"
    ),
    "_adaptive_avg_pool2d_backward": lambda call: (
        "zeros_like[empty_like[empty] zero_[fill_[*]]]"
        f"{' as_strided_' * call.input_tensors[-1].is_channels_last} *"
    ),
    "_scaled_dot_product_cudnn_attention": _cudnn_attention,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
}


def calls_within(signature: OpSignature) -> tuple[Token, ...]:
    """What an op calls and launches, in order; empty where it calls no operator.

    >>> calls_within(OpSignature("aten::zero_", "", (), ()))
    (Open(name='aten::fill_'), 'launch', 'close')
    """
    name = _name(signature)
    if name.startswith("_foreach_"):
        return _tokens(_foreach(signature))
    by_arguments = _BY_ARGUMENTS.get(name)
    if by_arguments is not None and not signature.arguments:
        return ()  # an operator of a profile that is carried over: its arguments are not known
    return _tokens(_ALWAYS.get(name, "") if by_arguments is None else by_arguments(signature))


#: Operators that call an op in a forward pass, outermost first, if it is always these.
_AROUND: dict[str, str] = {
    "_to_copy": "to",
    "_local_scalar_dense": "item",
    "native_dropout": "dropout",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    **dict.fromkeys(("cudnn_batch_norm", "native_batch_norm"), "batch_norm _batch_norm_impl_index"),
    "max_pool2d_with_indices": "max_pool2d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "nll_loss_forward": "nll_loss_nd nll_loss",
    **{
        f"_scaled_dot_product_{kind}_attention": "scaled_dot_product_attention"
        for kind in ("flash", "efficient", "cudnn")
    },
}


def calls_around(signature: OpSignature) -> tuple[str, ...]:
    """The operators that an op lies in, outermost first, of those that need not be recorded to be
    known.

    >>> calls_around(OpSignature("aten::nll_loss_forward", "", (), ()))
    ('aten::nll_loss_nd', 'aten::nll_loss')
    """
    around = _AROUND.get(_name(signature), "")
    if signature.op == "aten::convolution" and signature.input_tensors:
        kind = "_transpose" if signature.by_name.get("transposed") else ""
        around = f"conv{kind}{len(signature.input_tensors[0].shape) - 2}d"
    return tuple(f"aten::{name}" for name in around.split())


@lru_cache(maxsize=1024)
def _tokens(text: str) -> tuple[Token, ...]:
    """The text in order. A name with `@` has no namespace."""
    found: list[Token] = []
    for name, bracket, mark in re.findall(r"([\w@]+)(\[?)|([\]*])", text):
        if mark:
            found.append(LAUNCH if mark == "*" else CLOSE)
            continue
        found.append(Open(name[1:] if name.startswith("@") else f"aten::{name}"))
        if not bracket:
            found.append(CLOSE)
    return tuple(found)
