"""Nested tensors of the strided layout are made on the forecast's GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.inlined import override_finder
from neusight.fake_cuda.nested.functions import from_parts
from neusight.fake_cuda.nested.tensor import NestedTensor
from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder


def install_nested(patches: Patches, recorder: Recorder) -> None:
    """Replaces functions of `torch.nested` until `patches.restore()`."""
    module: Any = torch.nested
    make, take_over = module.nested_tensor, module.as_nested_tensor
    patches.set(module, "nested_tensor", _maker(make, copies=True))
    patches.set(module, "as_nested_tensor", _maker(take_over, copies=False))
    patches.set(recorder, "move_nested", _moved)
    original: Any = torch.overrides.has_torch_function
    patches.set(torch.overrides, "has_torch_function", override_finder(original, NestedTensor))


def _moved(source: torch.Tensor, device: Any, dtype: torch.dtype | None) -> NestedTensor:
    copy = torch.ops.aten._to_copy.default
    kind = dtype or source.dtype
    return from_parts([copy(part, device=device, dtype=kind) for part in source.unbind()])


def _maker(make: Callable[..., Any], *, copies: bool) -> Callable[..., Any]:
    def nested_tensor(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device", args[1] if len(args) > 1 else None)
        target = _target(tensors, device)
        if target is None or kwargs.get("layout") is torch.jagged or len(args) > 2:
            return make(tensors, *args, **kwargs)
        if isinstance(tensors, NestedTensor):
            return tensors.to(target)
        dtype = kwargs.get("dtype", args[0] if args else None)
        parts = [torch.as_tensor(part).to(target, dtype) for part in tensors]
        nested = from_parts([part.detach() for part in parts] if copies else parts)
        return nested.requires_grad_() if kwargs.get("requires_grad") else nested

    return nested_tensor


def _target(tensors: Any, device: Any) -> torch.device | None:
    """The GPU that the parts go to, if they go to one."""
    if device is not None:
        wanted = torch.device(device)
        return wanted if wanted.type == "cuda" else None
    is_list = isinstance(tensors, (list, tuple)) and len(tensors) > 0
    if is_list and isinstance(tensors[0], torch.Tensor) and tensors[0].is_cuda:
        return tensors[0].device
    default: torch.device = torch.get_default_device()
    return default if is_list and default.type == "cuda" else None
