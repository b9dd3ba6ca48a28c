"""Names of the C++ core for what torch.cuda answers under names of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder

#: Functions of torch._C, by the function of torch.cuda that says the same.
_SAME_AS = {
    "_cuda_canDeviceAccessPeer": "can_device_access_peer",
    "_cuda_emptyCache": "empty_cache",
    "_cuda_exchangeDevice": "_exchange_device",
    "_cuda_getAllocatorBackend": "get_allocator_backend",
    "_cuda_getDevice": "current_device",
    "_cuda_getDeviceCount": "device_count",
    "_cuda_getMemoryFraction": "get_per_process_memory_fraction",
    "_cuda_init": "init",
    "_cuda_ipc_collect": "ipc_collect",
    "_cuda_maybeExchangeDevice": "_maybe_exchange_device",
    "_cuda_resetAccumulatedMemoryStats": "reset_accumulated_memory_stats",
    "_cuda_resetPeakMemoryStats": "reset_peak_memory_stats",
    "_cuda_setDevice": "set_device",
    "_cuda_setMemoryFraction": "set_per_process_memory_fraction",
    "_cuda_synchronize": "synchronize",
}

#: c10::DeviceType::CUDA.
_CUDA_DEVICE = 1


def install_same_names(patches: Patches, recorder: Recorder) -> None:
    """They answer until `patches.restore()`, each as torch.cuda does when it is called."""
    core: Any = torch._C
    for name, of_cuda in _SAME_AS.items():
        patches.set(core, name, called_late(of_cuda))
    observers: list[Callable[..., object]] = []

    def stream_data(number: int) -> tuple[int, int, int]:
        return number, recorder.devices.current, _CUDA_DEVICE

    def set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        recorder.current_stream = stream_id

    answers = {
        "_cuda_getArchFlags": lambda: " ".join(torch.cuda.get_arch_list()),
        "_cuda_getCurrentStream": lambda device: stream_data(recorder.current_stream),
        "_cuda_getDefaultStream": lambda device: stream_data(0),
        "_cuda_getStreamFromExternal": lambda number, device: stream_data(number),
        "_cuda_setStream": set_stream,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_memoryStats": lambda device: _nested(torch.cuda.memory_stats()),
        "_cuda_memorySnapshot": lambda *wanted: torch.cuda.memory._snapshot(),
        "_cuda_attach_out_of_memory_observer": observers.append,
        "_nccl_version_suffix": lambda: b"",
    }
    for name, answer in answers.items():
        patches.set(core, name, answer)


def called_late(name: str) -> Callable[..., Any]:
    """What torch.cuda's function of this name does when it is called."""
    return lambda *args, **kwargs: getattr(torch.cuda, name)(*args, **kwargs)


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    """Statistics with dots in their names, as dictionaries in dictionaries.

    >>> _nested({"allocation.all.peak": 2, "num_ooms": 0})
    {'allocation': {'all': {'peak': 2}}, 'num_ooms': 0}
    """
    whole: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        level = whole
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return whole
