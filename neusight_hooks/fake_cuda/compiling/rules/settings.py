"""Settings of Dynamo, AOTAutograd and Inductor that hold whatever the program sets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from neusight.fake_cuda.patching import Patches

#: By module: no worker processes, no caches on disk, no timing on a GPU, wrappers in Python, and no
#: look at addresses. The check of aliases is a second dispatch mode on the first run, which fails
#: on `out=` ops.
_HELD: dict[str, dict[str, object]] = {
    "torch._inductor.config": {
        "alignment_asserts": False,
        "autotune_local_cache": False,
        "autotune_remote_cache": False,
        "benchmark_fusion": False,
        "benchmark_combo_kernel": False,
        "benchmark_kernel": False,
        "compile_threads": 1,
        "cpp_wrapper": False,
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "fx_wrapper": False,
        "profile_bandwidth": False,
        "triton.autotune_at_compile_time": False,
        "triton.multi_kernel": 0,
    },
    "torch._functorch.config": {
        "check_custom_op_aliasing": False,
        "enable_autograd_cache": False,
        "enable_remote_autograd_cache": False,
    },
}


def install_settings(patches: Patches) -> None:
    """Holds them until `patches.restore()`."""
    hold_settings(patches, _HELD)


def hold_settings(patches: Patches, held: Mapping[str, Mapping[str, object]]) -> None:
    """Holds settings, by module, until `patches.restore()`, in all threads. A program that sets one
    keeps what it set, for afterwards; torch's own `config.patch` would hold in one thread, and till
    then."""
    for module, values in held.items():
        config: Any = import_module(module)
        for name, value in values.items():
            entry = config._config.get(name)
            if entry is not None:  # else this torch has no such setting
                patches.set(entry, "env_value_force", value)
