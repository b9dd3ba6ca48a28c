"""Kernels whose text torch keeps as a template: written for the GPU, chosen without timing it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from neusight.fake_cuda.patching import Patches


def install_templates(patches: Patches) -> None:
    """A choice that Inductor writes, it also loads, to time it; only its text is wanted here."""
    from torch._inductor.codecache import PyCodeCache, code_hash

    def load(cls: Any, /, source_code: str, extra: str = "", **kwargs: Any) -> ModuleType:
        module = ModuleType("neusight.choice")
        key = code_hash(source_code, extra)
        module.__file__ = f"<choice {key}>"
        vars(module)["key"] = key
        return module

    patches.set(PyCodeCache, "load", classmethod(load))
