"""Torch's caches by device mesh."""

from __future__ import annotations

import sys
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches

#: What forgets plans that were made for a mesh: module, and names down to it. If one moves, a
#: second forecast of one process may meet groups or shapes of the first.
_FORGETTING = (
    ("torch.distributed.tensor._redistribute", "_gen_transform_infos.cache_clear"),
    ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
    (
        "torch.distributed.tensor._api",
        "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
    ),
    ("torch.distributed.tensor._collective_utils", "MeshTopoInfo.build_from_mesh.cache_clear"),
    # DTensor's shapes: "cuda" without an index is kept as the GPU of the rank that asked first.
    ("torch._subclasses.fake_tensor", "FakeTensorMode.cache_clear"),
)


def install_caches(patches: Patches) -> None:
    """How DTensor's ops are sharded is kept by mesh: the groups of one end with the forecast, and
    an equal one may belong to another rank. Forgotten at both ends."""
    _forget()
    patches.on_restore(_forget)


def _forget() -> None:
    for module, path in _FORGETTING:
        found: Any = sys.modules.get(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            found()
    forget: Any = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if forget is not None and "torch.distributed.tensor._api" in sys.modules:
        forget()
