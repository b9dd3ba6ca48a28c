"""CUDA code that a program brings as text: launched by name where torch compiles it at run time
(NVRTC), refused with what to do where it would need nvcc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.user_kernels import record_launch
from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.recorder import Recorder

#: Endings of files that nvcc compiles.
_CUDA_FILES = (".cu", ".cuh")


def install_cuda_sources(undo: ExitStack, recorder: Recorder) -> None:
    """Answers torch.cuda._compile_kernel and torch.utils.cpp_extension until `undo` ends."""
    patches = Patches()
    undo.enter_context(patches.undo)

    def compile_kernel(kernel_source: str, kernel_name: str, *args: Any, **kwargs: Any) -> Any:
        return _Kernel(recorder, kernel_name)

    if hasattr(torch.cuda, "_compile_kernel"):
        patches.replace_code(torch.cuda, "_compile_kernel", compile_kernel)
    when_imported(patches, "torch.utils.cpp_extension", lambda module: _refuse(patches, module))


class _Kernel:
    """A kernel of which no more than its name is known."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        if any(isinstance(arg, torch.Tensor) and not arg.is_cuda for arg in args or ()):
            raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
        given = {f"arg_{place}": arg for place, arg in enumerate(args or ())}
        sizes = {"grid": tuple(grid), "block": tuple(block)}
        record_launch(self._recorder, self._name, {**given, **sizes}, "nvrtc")

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Takes more shared memory, which changes no forecast."""


def _refuse(patches: Patches, module: Any) -> None:
    """Extensions with CUDA code name the line; those of C++ alone are built as ever."""
    load: Callable[..., Any] = module.load
    load_inline: Callable[..., Any] = module.load_inline

    def load_or_refuse(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        if any(str(file).endswith(_CUDA_FILES) for file in files) or kwargs.get("with_cuda"):
            return _known_extension(name)
        return load(name, sources, *args, **kwargs)

    def load_inline_or_refuse(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            raise _no_compiler(name)
        return load_inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    patches.set(module, "load", load_or_refuse)
    patches.set(module, "load_inline", load_inline_or_refuse)


def _known_extension(name: str) -> SimpleNamespace:
    """What a library compiles for itself, if there is a stub of it."""
    from neusight.stubs.packages.deepspeed import EXTENSIONS

    if name not in EXTENSIONS:
        raise _no_compiler(name)
    return SimpleNamespace(**EXTENSIONS[name])


def _no_compiler(name: str) -> UnmappedOpError:
    return UnmappedOpError(
        f"The CUDA code of extension {name!r} at {call_site()} is not compiled in a forecast. "
        f'Declare what it computes: @torch.library.custom_op("{name}::op", mutates_args=()) with '
        "@op.register_fake says what it returns, and "
        f'@neusight.register_op("{name}::op") which kernels it launches.'
    )
