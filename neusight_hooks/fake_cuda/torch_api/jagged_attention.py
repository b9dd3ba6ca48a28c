"""Which attention kernel takes jagged nested tensors: what torch.nested asks its core, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.attention_choice import AttentionCall
from neusight.recording.recording import TensorSpec

#: Where torch.nested chooses, and by which names it asks (torch 2.13). If these move, its own
#: selector says that no kernel takes the call, and the program fails with its words.
_MODULE = "torch.nested._internal.sdpa"


def install_jagged_attention(patches: Patches, chosen: Callable[[AttentionCall], str]) -> None:
    """Lets `chosen` say, until `patches.restore()`, which kernels take jagged tensors."""

    def answer(module: Any) -> None:
        for name, backend in (
            ("can_use_flash_attention", "flash"),
            ("can_use_efficient_attention", "efficient"),
        ):
            if hasattr(module, name):
                patches.set(module, name, _asking(getattr(module, name), backend, chosen))

    when_imported(patches, _MODULE, answer)


def _asking(
    query_core: Callable[..., bool], backend: str, chosen: Callable[[AttentionCall], str]
) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        if params.query.device.type != "cuda":
            return query_core(params, debug)
        return chosen(_call(params, backend)) == backend

    return can_use


def _call(params: Any, backend: str) -> AttentionCall:
    """The question whether this one backend takes the call. For jagged tensors torch looks at what
    the kernels can do and not at how long sequences are (sdp_utils.cpp, 2.13), so each is asked as
    of tensors with the longest of them."""
    core = torch._C
    tensors = (params.query, params.key, params.value)
    lengths = [tensor._get_max_seqlen() for tensor in tensors]
    mask = params.attn_mask
    longest = max(lengths)
    query, key, value = (
        _dense(tensor, longest if params.is_causal else length)
        for tensor, length in zip(tensors, lengths, strict=True)
    )
    return AttentionCall(
        query=query,
        key=key,
        value=value,
        mask=None if mask is None else _dense(mask, longest),
        requires_grad=torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        dropout_p=params.dropout,
        is_causal=params.is_causal,
        enable_gqa=params.enable_gqa,
        flash_enabled=backend == "flash" and core._get_flash_sdp_enabled(),
        efficient_enabled=backend == "efficient" and core._get_mem_efficient_sdp_enabled(),
        math_enabled=False,
        cudnn_enabled=False,  # not asked for nested tensors without an environment variable
    )


def _dense(tensor: Any, length: int) -> TensorSpec:
    """The tensor with all its sequences of this length."""
    shape = tuple(size if isinstance(size, int) else int(length) for size in tensor.shape)
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return TensorSpec(shape, strides, str(tensor.dtype)[6:], tensor.device.type)
