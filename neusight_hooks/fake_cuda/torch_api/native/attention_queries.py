"""torch.backends.cuda's queries of attention kernels: which of them a call could use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.attention_choice import AttentionCall, choose_attention
from neusight.predictors.gpu import GPU
from neusight.recording.signature import spec_of

#: Functions of torch._C, and the kernel that each asks about.
_QUERIES = {
    "_can_use_flash_attention": "flash",
    "_can_use_mem_efficient_attention": "efficient",
    "_can_use_cudnn_attention": "cudnn",
}


def install_attention_queries(
    patches: Patches, gpu: GPU, on_query: Callable[[str, object], None]
) -> None:
    """Installs them until `patches.restore()`."""
    core: Any = torch._C

    def can_use(kernel: str) -> Callable[..., bool]:
        def answer(params: Any, debug: bool = False) -> bool:
            tensors = (params.query, params.key, params.value)
            call = AttentionCall(
                query=spec_of(params.query),
                key=spec_of(params.key),
                value=spec_of(params.value),
                mask=None if params.attn_mask is None else spec_of(params.attn_mask),
                mask_requires_grad=params.attn_mask is not None and params.attn_mask.requires_grad,
                requires_grad=torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
                dropout_p=params.dropout,
                is_causal=params.is_causal,
                enable_gqa=params.enable_gqa,
                flash_enabled=kernel == "flash",
                efficient_enabled=kernel == "efficient",
                cudnn_enabled=kernel == "cudnn",
                math_enabled=False,
            )
            choice = choose_attention(
                call,
                compute_capability=gpu.compute_capability,
                cudnn_version=gpu.cudnn_version,
                vendor=gpu.vendor,
            )
            on_query("get_device_capability", gpu.compute_capability)
            return choice == kernel

        return answer

    for name, kernel in _QUERIES.items():
        patches.set(core, name, can_use(kernel))
    patches.set(core, "_is_flash_attention_available", lambda: True)
