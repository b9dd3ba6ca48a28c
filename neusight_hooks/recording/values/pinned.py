"""Pinned memory: ordinary memory that is remembered as pinned."""

from __future__ import annotations

import weakref

import torch

from neusight.recording.tensor import ForecastMode, ForecastTensor

__all__ = ["PinnedMemory"]


class PinnedMemory:
    """Which storages on the CPU count as pinned, for as long as they live."""

    def __init__(self, mode: ForecastMode) -> None:
        self._mode = mode
        self._storages: set[int] = set()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory."""
        with self._mode.inside():
            pinned = tensor.clone() if not isinstance(tensor, ForecastTensor) else tensor
        return self.remember(pinned)

    def remember(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, whose memory counts as pinned from now on."""
        storage = tensor.untyped_storage()
        self._storages.add(storage._cdata)
        weakref.finalize(storage, self._storages.discard, storage._cdata)
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its memory does."""
        if isinstance(tensor, ForecastTensor) and tensor._fake_device.type == "cuda":
            return False
        if not self._storages or tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._storages
