"""Symmetric memory inside a forecast: products in parts beside the exchange of their operands
(asynchronous tensor parallelism), as torch's own functions launch them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from neusight.fake_cuda.distributed.groups import group_named
from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder

#: Ops whose kernels for CUDA are functions in Python, made of products, copies and barriers.
_IN_PARTS = (
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
)

# A library that is dropped takes its ops with it.
_keep_alive: list[object] = []


def _peer_copy_op() -> Any:
    """How a copy from another rank's memory is recorded: torch calls it a copy like any other."""
    torch_library: Any = torch.library  # has no annotations
    library = torch_library.Library("neusight", "FRAGMENT")
    _keep_alive.append(library)
    library.define("peer_copy(Tensor(a!) self, Tensor src) -> Tensor(a!)")
    return torch.ops.neusight.peer_copy.default


_PEER_COPY = _peer_copy_op()


def install_symmetric_memory(patches: Patches, recorder: Recorder) -> None:
    """From when torch's module is imported on, each group has a workspace, and the ops above do
    what they do on a GPU."""

    def install(module: Any) -> None:
        workspaces: dict[str, _Workspace] = {}

        def workspace_of(group_name: str, min_size: int) -> _Workspace:
            known = workspaces.get(group_name)
            if known is None or known.num_bytes < min_size:
                workspaces[group_name] = _Workspace(recorder, group_name, min_size)
            return workspaces[group_name]

        patches.set(module, "get_symm_mem_workspace", workspace_of)
        patches.set(module, "_backend_streams", {})
        patches.on_restore(workspaces.clear)
        for name in _IN_PARTS:
            recorder.take_apart(getattr(torch.ops.symm_mem, name).default)

    when_imported(patches, "torch.distributed._symmetric_memory", install)


class _Workspace:
    """Memory of each rank of a group that all ranks can access."""

    def __init__(self, recorder: Recorder, group_name: str, num_bytes: int) -> None:
        group = group_named(group_name)
        self.rank, self.world_size, self.num_bytes = group.rank(), group.size(), num_bytes
        self._recorder = recorder
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        self._signal = torch.empty(1, dtype=torch.int32, device="cuda")

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """A kernel of one CTA; the others are taken to come as soon as this one."""
        self._signal.fill_(channel)

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> Any:
        flat = self._memory.view(dtype)[storage_offset : storage_offset + prod(sizes)]
        own = flat.view(*sizes)
        return own if rank == self.rank else _PeerBuffer(self._recorder, own)


class _PeerBuffer:
    """Part of another rank's memory, of which torch's functions only copy: shaped as `like`."""

    def __init__(self, recorder: Recorder, like: torch.Tensor) -> None:
        self.recorder, self.like = recorder, like
        self.numel, self.element_size = like.numel, like.element_size

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        target, source = args
        source.recorder.record_handled(_PEER_COPY, (target, source.like), {}, target)
        return target
