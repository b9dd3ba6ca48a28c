"""Pinned memory: ordinary memory that is remembered as pinned."""

from __future__ import annotations

import weakref

import torch

from neusight.recording.tensor import ForecastMode, ForecastTensor

#: What torch.cuda.host_memory_stats also has, of which a forecast knows nothing: microseconds in
#: the driver.
_TIMES = ("host_alloc_time", "host_free_time")


class _Count:
    """How many there are, the most there were, and how many came and went."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, number: int) -> None:
        """So many more, or less."""
        self.current += number
        self.peak = max(self.peak, self.current)
        if number > 0:
            self.allocated += number
        else:
            self.freed -= number


class PinnedCounts:
    """Blocks of pinned memory as PyTorch's allocator counts them: rounded up to a power of two,
    and kept for the next allocation (CachingHostAllocator.h)."""

    def __init__(self) -> None:
        self._blocks, self._bytes = _Count(), _Count()
        self._used, self._used_bytes = _Count(), _Count()
        self._free: list[int] = []

    def came(self, num_bytes: int) -> int:
        """A block is taken, a kept one where it fits; its size."""
        size = 1 << max(0, num_bytes - 1).bit_length()
        if size in self._free:
            self._free.remove(size)
        else:
            self._blocks.change(1)
            self._bytes.change(size)
        self._used.change(1)
        self._used_bytes.change(size)
        return size

    def went(self, size: int) -> None:
        """A block is given back, and kept."""
        self._free.append(size)
        self._used.change(-1)
        self._used_bytes.change(-size)

    def give_back(self) -> None:
        """Kept blocks go back to the driver."""
        for size in self._free:
            self._blocks.change(-1)
            self._bytes.change(-size)
        self._free.clear()

    def as_nested(self) -> dict[str, object]:
        """What torch.cuda.host_memory_stats_as_nested_dict returns."""
        return {
            "allocations": dict(vars(self._blocks)),
            "allocated_bytes": dict(vars(self._bytes)),
            "active_requests": dict(vars(self._used)),
            "active_bytes": dict(vars(self._used_bytes)),
            "num_host_alloc": self._blocks.allocated,
            "num_host_free": self._blocks.freed,
            **{name: dict.fromkeys(("total", "max", "min", "count", "avg"), 0) for name in _TIMES},
        }

    def reset_peak(self) -> None:
        """Resets the peaks to the current values."""
        for count in (self._blocks, self._bytes, self._used, self._used_bytes):
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Resets the accumulated counts."""
        for count in (self._blocks, self._bytes, self._used, self._used_bytes):
            count.allocated = count.freed = 0


class PinnedMemory:
    """Which storages on the CPU count as pinned, for as long as they live."""

    def __init__(self, mode: ForecastMode) -> None:
        self._mode = mode
        self._storages: set[int] = set()
        self.counts = PinnedCounts()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory."""
        with self._mode.inside():
            pinned = tensor.clone() if not isinstance(tensor, ForecastTensor) else tensor
        return self.remember(pinned)

    def remember(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, whose memory counts as pinned from now on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            size = self.counts.came(storage.nbytes())
            weakref.finalize(storage, self._gone, storage._cdata, size)
        return tensor

    def _gone(self, storage: int, size: int) -> None:
        self._storages.discard(storage)
        self.counts.went(size)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its memory does."""
        if isinstance(tensor, ForecastTensor) and tensor._fake_device.type == "cuda":
            return False
        if not self._storages or tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._storages
