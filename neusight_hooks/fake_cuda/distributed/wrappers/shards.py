"""How FSDP2 takes its shard of a parameter: only the shards that it reads are made."""

from __future__ import annotations

from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches

__all__ = ["install_shards"]


class _Shards:
    """What torch.chunk gives, and an empty tensor for each rank beyond: made when it is asked for.

    fully_shard makes one for every rank and reads two: 1.2 million tensors for a model of 39
    parameters on 16,384 ranks, 50 s.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor = tensor
        self._num_chunks = num_chunks
        self._dim = dim

    def __len__(self) -> int:
        return self._num_chunks

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._num_chunks:
            raise IndexError(index)
        whole = self._tensor.size(self._dim)
        size = -(-whole // self._num_chunks)
        start = index * size
        if index and start >= whole:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(size, whole - start))


def install_shards(patches: Patches) -> None:
    """fully_shard costs the same on any number of ranks."""

    def patch(module: Any) -> None:
        if hasattr(module, "_chunk_with_empty"):
            patches.set(module, "_chunk_with_empty", _Shards)

    when_imported(patches, "torch.distributed.fsdp._fully_shard._fsdp_param", patch)
