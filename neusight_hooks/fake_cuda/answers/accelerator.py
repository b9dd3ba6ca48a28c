"""torch.accelerator, torch.Stream and torch.Event: the names that no kind of device is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches

__all__ = ["install_accelerator"]

#: Functions of torch.accelerator, by what torch.cuda calls them.
_SAME_AS = {
    "synchronize": "synchronize",
    "current_stream": "current_stream",
    "set_stream": "set_stream",
    "set_device_index": "set_device",
    "set_device_idx": "set_device",
    "empty_cache": "empty_cache",
    "memory_stats": "memory_stats",
    "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated",
    "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
    "get_memory_info": "mem_get_info",
}


def install_accelerator(patches: Patches) -> None:
    """What torch.cuda answers by now also answers under the names of any accelerator."""
    for name, of_cuda in _SAME_AS.items():
        if hasattr(torch.accelerator, name):
            patches.set(torch.accelerator, name, _called_late(of_cuda))
    patches.set(torch, "Stream", _standing_for(torch.Stream, torch.cuda.Stream))
    patches.set(torch, "Event", _standing_for(torch.Event, torch.cuda.Event))


def _called_late(name: str) -> Callable[..., Any]:
    """What torch.cuda's function of this name does when it is called."""
    return lambda *args, **kwargs: getattr(torch.cuda, name)(*args, **kwargs)


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
