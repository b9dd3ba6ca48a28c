"""Memory that a program asks of the allocator itself: raw bytes, private pools, pinned memory."""

from __future__ import annotations

from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.memory.workspaces import CUBLAS_BYTES, CUBLAS_BYTES_FROM_HOPPER
from neusight.recording.recorder import Recorder

#: The compute capability of Hopper.
_HOPPER = 9

_NO_CACHING = (
    "the caching allocator was switched off for a part of the program; a forecast places that "
    "part's memory as the caching allocator does"
)


class _MemPool:
    """torch.cuda.MemPool: what is allocated under use_mem_pool lies in segments of its own."""

    _recorder: Any = None

    def __init__(self, allocator: Any = None, *args: Any, **kwargs: Any) -> None:
        self.allocator = allocator
        self._number = self._recorder.storages.new_pool()

    @property
    def id(self) -> tuple[int, int]:
        return (0, self._number)

    def use_count(self) -> int:
        return 1

    def snapshot(self, include_traces: bool = True) -> Any:
        return torch.cuda.memory_snapshot(self.id)  # type: ignore[no-untyped-call, unused-ignore]


def install_pools(patches: Patches, recorder: Recorder) -> None:
    """Installs them until `patches.restore()`."""
    pool_class = type("MemPool", (_MemPool,), {"_recorder": recorder, "__module__": "torch.cuda"})
    for module in (torch.cuda, torch.cuda.memory):
        patches.set(module, "MemPool", pool_class)

    outer: list[int] = []

    def begin(device: int, pool: tuple[int, int]) -> None:
        outer.append(recorder.storages.pool)
        recorder.storages.pool = pool[1]

    def end(device: int, pool: tuple[int, int]) -> None:
        recorder.storages.pool = outer.pop()

    memory = torch.cuda.memory  # use_mem_pool calls these by the names of its own module
    patches.set(memory, "_cuda_beginAllocateCurrentThreadToPool", begin)
    patches.set(memory, "_cuda_endAllocateToPool", end)
    patches.set(memory, "_cuda_releasePool", lambda device, pool: None)
    _install_raw_memory(patches, recorder)
    _install_workspaces(patches, recorder)
    _install_pinned(patches, recorder)


def _install_raw_memory(patches: Patches, recorder: Recorder) -> None:
    core: Any = torch._C
    held: dict[int, Any] = {}
    caches = [True]

    def allocate(num_bytes: int, stream: int) -> int:
        tensor = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        held[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def enable(value: bool) -> None:
        caches[0] = bool(value)
        if not value:
            recorder.warn_once(_NO_CACHING)

    patches.on_restore(held.clear)
    patches.set(core, "_cuda_cudaCachingAllocator_raw_alloc", allocate)
    patches.set(
        core, "_cuda_cudaCachingAllocator_raw_delete", lambda address: held.pop(address, None)
    )
    patches.set(core, "_cuda_cudaCachingAllocator_enable", enable)
    patches.set(core, "_cuda_cudaCachingAllocator_is_enabled", lambda: caches[0])


def _install_workspaces(patches: Patches, recorder: Recorder) -> None:
    """Sizes of the workspaces of cuBLAS and cuBLASLt, which lie in one (`memory/workspaces.py`)."""
    core: Any = torch._C
    sizes: list[int] = []

    def read() -> int:
        if sizes:
            return sizes[-1]
        from_hopper = torch.cuda.get_device_capability()[0] >= _HOPPER
        return CUBLAS_BYTES_FROM_HOPPER if from_hopper else CUBLAS_BYTES

    def write(num_bytes: int) -> None:
        sizes.append(num_bytes)
        recorder.options["CUBLAS_WORKSPACE_CONFIG"] = f":{num_bytes // 1024}:1"

    for library in ("Cublas", "CublasLt"):
        patches.set(core, f"_cuda_get{library}WorkspaceSize", read)
        patches.set(core, f"_cuda_set{library}WorkspaceSize", write)
        patches.set(core, f"_cuda_reset{library}WorkspaceSize", sizes.clear)


def _install_pinned(patches: Patches, recorder: Recorder) -> None:
    core: Any = torch._C
    counts = recorder.pinned.counts
    patches.set(core, "_cuda_hostMemoryStats", counts.as_nested)
    patches.set(core, "_cuda_resetPeakHostMemoryStats", counts.reset_peak)
    patches.set(core, "_cuda_resetAccumulatedHostMemoryStats", counts.reset_accumulated)
    patches.set(core, "_accelerator_emptyHostCache", counts.give_back)
