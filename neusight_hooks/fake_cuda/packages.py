"""Packages that come later or cannot come at all: hooks on import, and words for CUDA-only packages."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from neusight.fake_cuda.patching import Patches

__all__ = ["CUDA_ONLY", "cuda_only_package", "when_imported"]

#: Packages that install or import only where CUDA is.
CUDA_ONLY = (
    "flash_attn",
    "apex",
    "xformers",
    "bitsandbytes",
    "triton",
    "deepspeed",
    "transformer_engine",
    "vllm",
    "cupy",
    "mamba_ssm",
    "causal_conv1d",
)


def cuda_only_package(error: ImportError) -> str | None:
    """The CUDA-only package whose import failed, if it was one."""
    name = (error.name or "").partition(".")[0]
    return name if name in CUDA_ONLY else None


def when_imported(patches: Patches, name: str, patch: Callable[[Any], None]) -> None:
    """Calls `patch` with the module `name`: now if it is loaded, else when it gets loaded."""
    if name in sys.modules:
        patch(sys.modules[name])
        return
    finder = _Finder(name, patch)
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    patches.on_restore(undo)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, patch = spec.loader, self._patch
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
