"""What a CUDA build of torch calls inside an op, by the op: a table of its sources and profiles.

A forecast records an op whole. On a GPU some ops call further operators: `zeros` makes an empty
tensor and fills it. The table has those that torch's dispatcher reports there. Sources: the CPU
profiler of torch 2.13 for what all devices share, profiles on V100, A100, H100, B200 and MI250 for
what CUDA's kernels call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, Union

from neusight.recording.recording import OpSignature, TensorSpec

__all__ = ["CLOSE", "LAUNCH", "Open", "Token", "calls_within"]


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
    "empty_like": "empty_strided",
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
    # Copies
    "_to_copy": _TO_COPY,
    "stack": "cat[*]",
    "constant_pad_nd": f"empty fill_[*] narrow[{_SLICE}] copy_[*]",
    "roll": "empty_like[empty_strided] *",
    # Gathers and scatters
    "embedding_dense_backward": "zeros[empty zero_[fill_[*]]] view *",
    "index_select": "empty resize_ view expand[as_strided] gather[as_strided as_strided *]",
    "select_backward": f"{_ZEROS} select[as_strided] copy_[*]",
    "slice_backward": f"{_ZEROS} slice[as_strided] copy_[*]",
    "diagonal_backward": f"{_ZEROS} diagonal[as_strided] copy_[*]",
    "masked_fill": "clone[empty_like[empty] copy_[*]] masked_fill_[*]",
    "index_put": "clone[empty_strided copy_[*]] index_put_[_index_put_impl_[*]]",
    "index_put_": "_index_put_impl_[*]",
    # Elementwise
    "relu": "clamp_min[*]",
    "relu_": "clamp_min_[*]",
    "isnan": "ne[*]",
    "abs": "empty abs[*]",
    "logical_not": "empty logical_not[*]",
    "rsub": "sub[*]",
    "hardtanh": f"{_EMPTY_LIKE} hardtanh[clamp[*]]",
    # Rows
    "mean": "mean[as_strided *]",
    "native_layer_norm": "empty empty empty * view view",
    "native_group_norm": "empty empty empty *",
    "cudnn_batch_norm": "empty_like[empty] view empty empty empty empty *",
    "cudnn_batch_norm_backward": "empty empty empty view empty *",
    "cumsum": "to *",
    # Losses
    "mse_loss": "resize_ empty * mean[as_strided *]",
    "smooth_l1_loss": "resize_ empty * mean[as_strided *]",
    "mse_loss_backward": "zeros_like[empty_like[empty] zero_[fill_[*]]] mse_loss_backward[*]",
    # Attention (what the kernels allocate was seen of flash attention's forward only)
    "_scaled_dot_product_flash_attention": (
        f"{_TRANSPOSES_3} _flash_attention_forward[empty_like[empty_strided] empty empty empty * "
        "empty] transpose[as_strided]"
    ),
    "_scaled_dot_product_flash_attention_backward": (
        f"{_TRANSPOSES_3} {_TRANSPOSES_2} _flash_attention_backward[*] {_TRANSPOSES_3}"
    ),
    "_scaled_dot_product_efficient_attention": (
        f"{_TRANSPOSES_3} _efficient_attention_forward[*] transpose[as_strided]"
    ),
    "_scaled_dot_product_efficient_attention_backward": (
        f"{_TRANSPOSES_3} {_TRANSPOSES_2} _efficient_attention_backward[*] {_TRANSPOSES_3}"
    ),
    "_scaled_dot_product_cudnn_attention": "_cudnn_attention_forward[*]",
    "_scaled_dot_product_cudnn_attention_backward": "_cudnn_attention_backward[*]",
}  # fmt: skip


def _embedding(signature: OpSignature) -> str:
    indices = signature.by_name.get("indices")
    if isinstance(indices, TensorSpec) and len(indices.shape) > 1:
        return f"reshape[view] {_INDEX_SELECT} view"
    return _INDEX_SELECT


def _clone(signature: OpSignature) -> str:
    if signature.by_name.get("memory_format") in (None, "preserve_format"):
        return _TO_COPY
    return "empty_like[empty] copy_[*]"


def _split(signature: OpSignature) -> str:
    return " ".join([f"narrow[{_SLICE}]"] * len(signature.output_tensors))


def _split_with_sizes(signature: OpSignature) -> str:
    return " ".join([_VIEW] * len(signature.output_tensors))


def _unbind(signature: OpSignature) -> str:
    return " ".join(["select[as_strided]"] * len(signature.output_tensors))


def _convolution(signature: OpSignature) -> str:
    kind = "convolution_transpose" if signature.by_name.get("transposed") is True else "convolution"
    has_bias = isinstance(signature.by_name.get("bias"), TensorSpec)
    return f"_convolution[cudnn_{kind}[*]{' reshape[view] add_[*]' if has_bias else ''}]"


#: What an op calls, if that depends on its arguments.
_BY_ARGUMENTS: dict[str, Callable[[OpSignature], str]] = {
    "embedding": _embedding,
    "clone": _clone,
    "split": _split,
    "split_with_sizes": _split_with_sizes,
    "unbind": _unbind,
    "convolution": _convolution,
}


def calls_within(signature: OpSignature) -> tuple[Token, ...]:
    """What an op calls and launches, in order; empty where it calls no operator.

    >>> calls_within(OpSignature("aten::zero_", "", (), ()))
    (Open(name='aten::fill_'), 'launch', 'close')
    """
    name = signature.op.removeprefix("aten::")
    by_arguments = _BY_ARGUMENTS.get(name)
    return _tokens(_ALWAYS.get(name, "") if by_arguments is None else by_arguments(signature))


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
