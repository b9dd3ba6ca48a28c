"""Inductor writes all that it writes for a GPU; nothing of it is compiled, timed or put on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from neusight.fake_cuda.compiling.rules.constants import OnCPU
from neusight.fake_cuda.patching import Patches


def install_code_generation(patches: Patches) -> None:
    """Inductor compiles for the forecast's GPU: its kernels are launchers that record."""
    _install_without_triton(patches)
    _install_folding(patches)


#: Compute capability, major, that Triton writes code for.
_OLDEST_FOR_TRITON = 7

#: Stages of a Triton kernel's loop on AMD (`get_backend_num_stages`, torch/_inductor/utils.py).
_ROCM_STAGES = 2


def _install_without_triton(patches: Patches) -> None:
    """Triton counts as there where it would be written for, and nowhere else: padding, templates
    and TMA ask for it elsewhere, and would then time something on a device."""
    from torch._inductor import scheduler
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch.utils import _triton

    def write_header(self: Any) -> None:
        self.write_get_raw_stream_header_once()

    def has_triton(*args: Any, **kwargs: Any) -> bool:
        # As torch.utils._triton.has_triton, for a machine that has the package.
        return bool(torch.cuda.get_device_properties().major >= _OLDEST_FOR_TRITON)

    patches.set(scheduler, "has_triton", has_triton)
    patches.set(_triton, "triton_hash_with_backend", lambda: "forecast")
    patches.set(PythonWrapperCodegen, "write_triton_header_once", write_header)
    if torch.version.hip is not None:
        _install_rocm_stages(patches)


def _install_rocm_stages(patches: Patches) -> None:
    """On ROCm Inductor asks Triton's backend how many stages its templates have."""
    heuristics: Any = import_module("torch._inductor.template_heuristics.triton")
    if hasattr(heuristics, "get_backend_num_stages"):  # torch 2.11 and later
        patches.set(heuristics, "get_backend_num_stages", lambda: _ROCM_STAGES)


def _install_folding(patches: Patches) -> None:
    """Constants that are folded are computed on the CPU."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    proxy_tensor: Any = import_module("torch.fx.experimental.proxy_tensor")
    fold: Callable[..., Any] = UniformValueConstantFolder.run
    find_zeros: Callable[..., None] = UniformValueConstantFolder._add_peephole_patterns
    unset = proxy_tensor.unset_fake_temporarily

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
            return fold(self, *args, **kwargs)

    def add_peephole_patterns(self: Any) -> None:
        with OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
            find_zeros(self)

    @contextmanager
    def unset_on_cpu() -> Iterator[Any]:
        with unset() as before, OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
            yield before

    patches.set(UniformValueConstantFolder, "run", run)
    patches.set(UniformValueConstantFolder, "_add_peephole_patterns", add_peephole_patterns)
    patches.set(proxy_tensor, "unset_fake_temporarily", unset_on_cpu)
