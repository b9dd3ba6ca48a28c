"""Tensors handed to other libraries and back: DLPack's capsules."""

from __future__ import annotations

from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor


class _Capsule:
    """What `to_dlpack` gives of a tensor without data: only this torch can take it."""

    def __init__(self, tensor: ForecastTensor) -> None:
        self.tensor = tensor


def install_dlpack(patches: Patches) -> None:
    """A forecast tensor comes back from DLPack as a view of itself."""
    exchange: Any = torch.utils.dlpack
    original_to, original_from = exchange.to_dlpack, exchange.from_dlpack

    def to_dlpack(tensor: Any) -> Any:
        return _Capsule(tensor) if isinstance(tensor, ForecastTensor) else original_to(tensor)

    def from_dlpack(ext_tensor: Any, **options: Any) -> Any:
        found = ext_tensor.tensor if isinstance(ext_tensor, _Capsule) else ext_tensor
        if not isinstance(found, ForecastTensor):
            return original_from(found, **options)
        found = found.detach()
        if options.get("device") is not None:
            found = found.to(options["device"])
        return found.clone() if options.get("copy") else found

    for module in (torch, torch.utils.dlpack):
        patches.set(module, "to_dlpack", to_dlpack)
        patches.set(module, "from_dlpack", from_dlpack)
