"""The caching allocator while the program runs: what torch.cuda.memory_allocated answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neusight.memory import Allocator

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU
    from neusight.recorder import Recorder

__all__ = ["LiveMemory"]

_STATISTICS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
    "allocation",
    "segment",
    "active",
    "inactive_split",
)


class LiveMemory:
    """Follows allocations; with `raises`, the one that a GPU could not serve raises as there."""

    def __init__(self, recorder: Recorder, gpu: GPU, *, raises: bool) -> None:
        self._recorder = recorder
        self._gpu = gpu
        self._allocator = Allocator(max(0, gpu.memory_bytes - gpu.context_bytes))
        self._raises = raises
        recorder.followers.append(self._follow)
        if raises:
            recorder.on_alloc = self._check

    def _follow(self, raw: list[Any]) -> None:
        allocator = self._allocator
        for entry in raw:
            if type(entry) is list:
                allocator.allocate(entry[0], entry[1])
            elif type(entry) is int:
                allocator.free(entry)

    def _check(self, num_bytes: int) -> None:
        # The entry of this very allocation is already there: follow all before it, then ask.
        newest = self._recorder.open_entries.pop()
        self._recorder.drain()
        if self._allocator.would_fit(num_bytes):
            self._recorder.open_entries.append(newest)
            return
        self._recorder.unwatch(newest[0])
        self._allocator.empty_cache()
        gib = 2**30
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {num_bytes / gib:.2f} GiB. GPU 0 has a total "
            f"capacity of {self._gpu.memory_bytes / gib:.2f} GiB of which "
            f"{self._allocator.allocated / gib:.2f} GiB is allocated by PyTorch (forecast for "
            f"{self._gpu.name}, op {newest[3]}, module {newest[2] or '(none)'})."
        )

    def statistics(self) -> dict[str, int]:
        """Keys as in torch.cuda.memory_stats; what is not modelled is 0."""
        self._recorder.drain()
        allocator = self._allocator
        values = {
            f"{name}.{pool}.{which}": 0
            for name in _STATISTICS
            for pool in ("all", "small_pool", "large_pool")
            for which in ("current", "peak", "allocated", "freed")
        }
        for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
            values[f"{name}.all.current"] = allocator.allocated
            values[f"{name}.all.peak"] = allocator.peak_allocated
        values["reserved_bytes.all.current"] = allocator.reserved
        values["reserved_bytes.all.peak"] = allocator.peak_reserved
        values.update(num_alloc_retries=0, num_ooms=0, num_sync_all_streams=0)
        values.update(num_device_alloc=0, num_device_free=0, max_split_size=-1)
        for name in ("oversize_allocations", "oversize_segments"):
            values.update(
                {f"{name}.{which}": 0 for which in ("current", "peak", "allocated", "freed")}
            )
        return values

    def reset_peak(self) -> None:
        """The peak starts again from what is allocated now."""
        self._recorder.drain()
        self._allocator.reset_peak()

    def empty_cache(self) -> None:
        """Unused segments go back."""
        self._recorder.drain()
        self._allocator.empty_cache()
