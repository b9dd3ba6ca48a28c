"""Inductor writes all that it writes for a GPU; nothing of it is compiled, timed or put on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neusight.fake_cuda.compiling.graphs.install import install_cuda_graphs
from neusight.fake_cuda.compiling.wrappers import install_wrappers
from neusight.fake_cuda.patching import Patches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neusight.recording.recorder import Recorder

__all__ = ["install_code_generation"]

#: Settings of Inductor and of AOTAutograd while a forecast is open: no worker processes, no caches,
#: which know neither of records nor of the GPU, and no look at addresses. The check of aliases is a
#: second dispatch mode on the first run, which fails on `out=` ops.
_INDUCTOR_SETTINGS = {
    "alignment_asserts": False,
    "compile_threads": 1,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
}
_AUTOGRAD_SETTINGS = {"check_custom_op_aliasing": False, "enable_autograd_cache": False}


def install_code_generation(patches: Patches, recorder: Recorder) -> None:
    """Inductor compiles for the forecast's GPU: its kernels are launchers that record."""
    _install_settings(patches)
    _install_without_triton(patches)
    _install_folding(patches)
    install_wrappers(patches, recorder)
    _install_tuning(patches, recorder)
    _install_graphs(patches, recorder)
    install_cuda_graphs(patches, recorder)


def _install_settings(patches: Patches) -> None:
    import torch._functorch.config as autograd_config
    import torch._inductor.config as inductor_config

    patches.undo.enter_context(inductor_config.patch(_INDUCTOR_SETTINGS))
    patches.undo.enter_context(autograd_config.patch(_AUTOGRAD_SETTINGS))


def _install_without_triton(patches: Patches) -> None:
    """Triton counts as there where it would be written for, and nowhere else: padding, templates
    and TMA ask for it elsewhere, and would then time something on a device."""
    from torch._inductor import scheduler
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch.utils import _triton

    def write_header(self: Any) -> None:
        self.write_get_raw_stream_header_once()

    patches.set(scheduler, "has_triton", lambda *args, **kwargs: True)
    patches.set(_triton, "triton_hash_with_backend", lambda: "forecast")
    patches.set(PythonWrapperCodegen, "write_triton_header_once", write_header)


class _OnCPU(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Constants that are folded are computed on the CPU: there is no device that could."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.ops.prims.device_put.default:
            return args[0]
        if given.get("device") is not None and torch.device(given["device"]).type == "cuda":
            given["device"] = torch.device("cpu")
            given.pop("pin_memory", None)
            given.pop("non_blocking", None)
        return func(*args, **given)


def _install_folding(patches: Patches) -> None:
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    proxy_tensor: Any = import_module("torch.fx.experimental.proxy_tensor")
    fold: Callable[..., Any] = UniformValueConstantFolder.run
    unset = proxy_tensor.unset_fake_temporarily

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
            return fold(self, *args, **kwargs)

    @contextmanager
    def unset_on_cpu() -> Iterator[Any]:
        with unset() as before, _OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
            yield before

    patches.set(UniformValueConstantFolder, "run", run)
    patches.set(proxy_tensor, "unset_fake_temporarily", unset_on_cpu)


def _install_graphs(patches: Patches, recorder: Recorder) -> None:
    """Compiling a graph is nothing that the program does; one that fails is named. The backward's
    is compiled inside `backward()`."""
    from torch._inductor import compile_fx

    compile_graph: Callable[..., Any] = compile_fx._InProcessFxCompile.codegen_and_compile

    def codegen_and_compile(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with recorder.mode.inside():
                return compile_graph(self, gm, *args, **kwargs)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            recorder.warn_once(
                f"a graph is forecast as eager: {_line_of(gm)}{type(error).__name__}: {reason}"
            )
            raise

    patches.set(compile_fx._InProcessFxCompile, "codegen_and_compile", codegen_and_compile)


def _line_of(graph: Any) -> str:
    """The program's line of the first op of a graph."""
    for node in graph.graph.nodes:
        files = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        if files:
            path, line = files[-1]
            return f"{Path(path).name}:{line} "
    return ""


#: Choices by timing on a GPU, which nobody can make without one.
_TUNING = frozenset(
    {
        "coordinate_descent_tuning",
        "max_autotune",
        "max_autotune_gemm",
        "max_autotune_pointwise",
    }
)


def _install_tuning(patches: Patches, recorder: Recorder) -> None:
    """Kernels are the default ones where a GPU would choose by timing."""
    import torch._inductor as inductor

    list_modes: Callable[..., dict[str, Any]] = inductor.list_mode_options

    def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
        options = list_modes(mode, dynamic)
        if mode is None or not _TUNING & options.keys():
            return options
        recorder.warn_once(
            "max-autotune is forecast with default kernels; a GPU would choose by timing"
        )
        return {name: value for name, value in options.items() if name not in _TUNING}

    patches.set(inductor, "list_mode_options", list_mode_options)
