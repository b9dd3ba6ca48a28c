"""Why operators of a profile have no partner in a forecast: known differences between releases.

A forecast shows what the installed torch calls; a profile may be of an older one, or of ROCm. Some
ops are recorded in other parts than a CUDA build calls.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class _Reason(NamedTuple):
    """Patterns of a difference (the operator around, measured names, forecast names), and why."""

    within: str
    measured: str
    forecast: str
    text: str


_OLD_NODE = "torch before 1.11 has other names of autograd's nodes"
_RESIZED = "torch 1.9 makes and resizes results in the op"
_DROPPED = "torch 2.11 drops out in cuDNN's attention at any rate, 2.13 at multiples of 1/16"
_CAST = "autocast casts the weights of a recurrent network in its op, a forecast before it"
_SHARED = "autograd adds a gradient in place unless its storage is shared, which is not forecast"
_HEADS = "an older transformers permutes the heads of attention, newer ones transpose them"
_EXPANDED = "torch expands the bias where no cuBLASLt adds it"

#: The first that fits. Releases are those of profiles and of sources that were compared: what is
#: said of torch 2.6 was seen in profiles on H100, of torch 2.11 in others on H100.
_REASONS = (
    _Reason("", "", "autograd::engine::evaluate_function: ",
            "torch before 1.11 records no frame around a node"),
    _Reason("aten::linear", "aten::reshape", "aten::view",
            "torch 2.6 flattens the input of a linear layer by reshape, 2.11 by view"),
    _Reason("aten::addmm", "aten::empty", "",
            "torch 2.6 allocates cuBLASLt's workspace in the op, 2.11 keeps one"),
    _Reason("aten::addmm", "aten::expand", "", _EXPANDED),
    _Reason("aten::_foreach_*", "aten::result_type*", "",
            "torch before 2.11 asks for the type of each result"),
    _Reason("aten::index_select", "", "aten::view aten::expand aten::gather",
            "torch 2.6 selects rows by a kernel of its own, 2.11 gathers them"),
    _Reason("aten::scaled_dot_product_attention", "*_cudnn_attention", "*_flash_attention",
            _DROPPED),
    _Reason("", "*CudnnAttentionBackward0", "*FlashAttentionBackward0", _DROPPED),
    _Reason("aten::lstm", "aten::cudnn_is_acceptable*", "aten::to*", _CAST),
    _Reason("aten::_cudnn_rnn", "aten::set_*", "*", _CAST),
    _Reason("aten::_cudnn_rnn", "aten::zeros", "*", _CAST),
    _Reason("", "*: torch::autograd::CopyBackwards*", "", _CAST),
    _Reason("", "*: torch::autograd::CopyBackwards*", "*: ToCopyBackward0", _CAST),
    _Reason("autograd::engine::*", "aten::add", "aten::add_", _SHARED),
    _Reason("autograd::engine::*", "aten::add_", "aten::add", _SHARED),
    _Reason("*", "aten::slice", "", "torch 2.6 slices whole dimensions too, 2.11 does not"),
    _Reason("*", "aten::empty _NoopSaveInputs*", "*",
            "torch 2.11 keeps the inputs of a checkpoint by a function, 2.13 does not"),
    _Reason("", "aten::permute*", "*aten::transpose*", _HEADS),
    _Reason("*", "*Backward", "*Backward0", _OLD_NODE),
    _Reason("", "*Backward aten::add", "*Backward0 aten::add_", _OLD_NODE),
    _Reason("", "aten::add", "aten::add_", _SHARED),
    _Reason("*", "*Backward1", "*Backward0", _OLD_NODE),
    _Reason("aten::cudnn_convolution*", "*resize_*", "", _RESIZED),
    _Reason("aten::clamp_min_", "aten::clamp_min", "", "torch 1.9 calls clamp_min in its in-place"),
    _Reason("*Backward", "aten::conj", "", "torch 1.9 conjugates real tensors too"),
    _Reason("aten::to", "aten::empty_strided aten::copy_", "aten::_to_copy",
            "torch 1.9 copies in to itself"),
    _Reason("aten::*", "aten::empty*", "", _RESIZED),
)  # fmt: skip


def reason_of(within: str, measured: str, forecast: str) -> str:
    """Why the partner of `within` calls `forecast` instead of `measured`; empty if not known.

    >>> reason_of("aten::linear", "aten::reshape", "aten::view")
    'torch 2.6 flattens the input of a linear layer by reshape, 2.11 by view'
    """
    for reason in _REASONS:
        sides = zip((within, measured, forecast), reason[:3], strict=True)
        if all(fnmatchcase(text, pattern) for text, pattern in sides):
            return reason.text
    return ""
