"""torch.accelerator, torch.Stream and torch.Event: the names that no kind of device is part of."""

from __future__ import annotations

import re
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.native.aliases import called_late

#: Functions of torch.accelerator that torch.cuda calls alike, and what it calls the others.
_ALIKE = (
    "synchronize", "current_stream", "set_stream", "empty_cache", "memory_stats",
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "reset_peak_memory_stats", "reset_accumulated_memory_stats",
)  # fmt: skip
_SAME_AS = {
    **{name: name for name in _ALIKE},
    "set_device_index": "set_device",
    "set_device_idx": "set_device",
    "get_memory_info": "mem_get_info",
}

#: Types that tensors on a GPU cannot be converted to.
_IS_QUANTIZED = re.compile(r"torch\.q(u?int|uint)\d").match


def install_accelerator(patches: Patches) -> None:
    """What torch.cuda answers by now also answers under the names of any accelerator."""
    for name, of_cuda in _SAME_AS.items():
        for module in (torch.accelerator, getattr(torch.accelerator, "memory", None)):
            if hasattr(module, name):
                patches.set(module, name, called_late(of_cuda))
    patches.set(torch._C, "_accelerator_getDeviceCapability", _capability)
    if hasattr(torch.accelerator, "Graph"):
        patches.set(torch.accelerator, "Graph", _graph_class())
    patches.set(torch, "Stream", _standing_for(torch.Stream, torch.cuda.Stream))
    patches.set(torch, "Event", _standing_for(torch.Event, torch.cuda.Event))


def _capability(device_index: int) -> dict[str, Any]:
    """What torch.accelerator.get_device_capability returns: the types that tensors can have."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": {dtype for dtype in dtypes if not _IS_QUANTIZED(str(dtype))}}


def _graph_class() -> Any:
    """torch.accelerator.Graph: a CUDA graph that is a with statement, too."""
    of_cuda: Any = torch.cuda.CUDAGraph

    class Graph(of_cuda):  # type: ignore[misc]
        def __init__(
            self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default"
        ) -> None:
            super().__init__(keep_graph)
            self.graph_pool = pool

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            super().capture_begin(self.graph_pool)

        def instantiate(self) -> None:
            return None

        def __enter__(self) -> Graph:
            self.capture_begin()
            return self

        def __exit__(self, *error: object) -> None:
            self.capture_end()

    return Graph


def _standing_for(plain: Any, of_cuda: Any) -> Any:
    """A class whose objects are those of CUDA, but for a device of another kind."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (plain, of_cuda))

    class Standing(metaclass=Kind):
        def __new__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(device, (str, torch.device)) and torch.device(device).type != "cuda":
                return plain(device, *args, **kwargs)
            device = {} if device is None or of_cuda is torch.cuda.Event else {"device": device}
            return of_cuda(*args, **device, **kwargs)

    Standing.__name__ = Standing.__qualname__ = plain.__name__
    return Standing
