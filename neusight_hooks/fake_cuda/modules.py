"""nn.Module, optimizers, compile and checkpoints, where they would stumble over tensors without data."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.tensor import ForecastTensor

if TYPE_CHECKING:
    from neusight.recorder import Recorder

__all__ = ["install_modules"]


def install_modules(patches: Patches, recorder: Recorder, *, allow_writes: bool) -> None:
    """Makes modules, optimizers, torch.compile and torch.save work on forecast tensors."""
    _install_parameters(patches, recorder)
    _install_apply(patches, recorder)
    _install_optimizers(patches, recorder)
    _install_compile(patches, recorder)
    _install_threads(patches, recorder)
    _install_profiler(patches, recorder)
    _install_annotations(patches, recorder)
    _install_checkpoints(patches, recorder, allow_writes)


def _install_parameters(patches: Patches, recorder: Recorder) -> None:
    original = nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and data.device.type == "cpu" and not recorder.is_inside:
            with torch.no_grad(), recorder.inside(), torch._C._DisableTorchDispatch():
                data = recorder.mode.new_tensor(
                    tuple(data.shape), data.stride(), data.dtype, torch.device("cpu")
                )
        return original(cls, data, requires_grad)

    patches.set(nn.Parameter, "__new__", staticmethod(new))


def _install_apply(patches: Patches, recorder: Recorder) -> None:
    swapped: list[tuple[Any, Any]] = []
    buffers: list[tuple[nn.Module, str, Any]] = []

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        if recurse:
            for child in self.children():
                child._apply(fn)
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            with torch.no_grad():
                moved = fn(parameter)
            _take_over(parameter, moved, recorder, swapped)
            recorder.mark_storage(parameter, "parameter")
            if parameter.grad is not None:
                with torch.no_grad():
                    gradient = fn(parameter.grad)
                _take_over(parameter.grad, gradient, recorder, swapped)
                recorder.mark_storage(parameter.grad, "gradient")
        for name, buffer in self._buffers.items():
            if buffer is not None:
                moved = fn(buffer)
                if moved is not buffer and not isinstance(buffer, ForecastTensor):
                    buffers.append((self, name, buffer))
                self._buffers[name] = moved
                recorder.mark_storage(moved, "buffer")
        return self

    def give_back() -> None:
        """A model that was there before the forecast gets its own tensors back."""
        for tensor, real in reversed(swapped):
            _swap(tensor, real)
        for module, name, buffer in reversed(buffers):
            module._buffers[name] = buffer

    patches.on_restore(give_back)
    patches.set(nn.Module, "_apply", apply)


def _take_over(
    tensor: Any, moved: Any, recorder: Recorder, swapped: list[tuple[Any, Any]]
) -> None:
    """Gives `tensor` the contents of `moved` and keeps its identity, which optimizers hold."""
    if moved is tensor:
        return
    if isinstance(tensor, ForecastTensor):
        if not isinstance(moved, ForecastTensor):
            with recorder.inside(), torch._C._DisableTorchDispatch():
                moved = recorder.mode.new_tensor(
                    tuple(moved.shape), moved.stride(), moved.dtype, moved.device
                )
        tensor.data = moved
        tensor._fake_device = moved._fake_device
    elif isinstance(moved, ForecastTensor):
        requires_grad = tensor.requires_grad
        moved = moved.detach().requires_grad_(requires_grad)
        moved._is_param = isinstance(tensor, nn.Parameter)
        _swap(tensor, moved)
        swapped.append((tensor, moved))
    else:
        tensor.data = moved


def _swap(first: Any, second: Any) -> None:
    """Exchanges what two tensor objects are, their identities kept (as torch.utils.swap_tensors,
    which refuses tensors that somebody refers to weakly)."""
    first_class, second_class = type(first), type(second)
    first.__class__, second.__class__ = second_class, first_class
    first_attributes, second_attributes = dict(first.__dict__), dict(second.__dict__)
    first.__dict__.clear()
    second.__dict__.clear()
    torch._C._swap_tensor_impl(first, second)
    first.__dict__.update(second_attributes)
    second.__dict__.update(first_attributes)


def _install_optimizers(patches: Patches, recorder: Recorder) -> None:
    import torch.optim.optimizer as optimizer_module
    import torch.utils._foreach_utils as foreach_module

    for module in (optimizer_module, foreach_module):
        supported = list(module._foreach_supported_types)
        patches.set(module, "_foreach_supported_types", [*supported, ForecastTensor])
    original = torch.optim.Optimizer.__init__

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder.cutter.optimizer_created(self)

    patches.set(torch.optim.Optimizer, "__init__", init)


def _install_compile(patches: Patches, recorder: Recorder) -> None:
    """torch.compile is the identity until fusion is modelled; the summary says so."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        recorder.warn_once(
            "the script asks for torch.compile; the forecast is of eager execution"
        )
        if model is None:
            return lambda function: function
        return model

    def compile_module(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        compile(self)

    patches.set(torch, "compile", compile)
    patches.set(nn.Module, "compile", compile_module)


def _install_threads(patches: Patches, recorder: Recorder) -> None:
    """Dispatch modes are local to a thread: threads started inside record too."""
    original = threading.Thread.run

    def run(self: threading.Thread) -> None:
        from neusight.recorder import RecordingMode

        if not recorder.is_open:
            original(self)
            return
        with RecordingMode(recorder):
            original(self)

    patches.set(threading.Thread, "run", run)


def _install_profiler(patches: Patches, recorder: Recorder) -> None:
    """The script's own torch.profiler runs without CUDA activity, which has nothing to listen to;
    its step() says where steps end."""
    profile = torch.profiler.profile
    original_init, original_step = profile.__init__, profile.step

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["activities"] = [torch.profiler.ProfilerActivity.CPU]
        kwargs["use_cuda"] = None
        original_init(self, *args[1:], **kwargs)

    def step(self: Any) -> None:
        recorder.cutter.explicit_step()
        original_step(self)

    patches.set(profile, "__init__", init)
    patches.set(profile, "step", step)
    legacy = torch.autograd.profiler.profile
    original_legacy = legacy.__init__

    def init_legacy(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("use_cuda", None)
        kwargs["use_device"] = None
        original_legacy(self, *args, **kwargs)

    patches.set(legacy, "__init__", init_legacy)


def _install_annotations(patches: Patches, recorder: Recorder) -> None:
    """What the script (or torch: optimizers, data loaders) annotates for its profiler is kept."""
    record_function = torch.autograd.profiler.record_function
    original_enter, original_exit = record_function.__enter__, record_function.__exit__
    attribution = recorder.attribution

    def enter(self: Any) -> Any:
        attribution.enter_annotation(self.name)
        with recorder.inside():
            return original_enter(self)

    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> None:
        with recorder.inside():
            original_exit(self, kind, error, traceback)
        attribution.leave_annotation(self.name, failed=kind is not None)

    patches.set(record_function, "__enter__", enter)
    patches.set(record_function, "__exit__", leave)


# -- checkpoints ----------------------------------------------------------------------------------


def _install_checkpoints(patches: Patches, recorder: Recorder, allow_writes: bool) -> None:
    store = _Checkpoints(recorder)
    patches.on_restore(store.remove)
    original_save, original_load = torch.save, torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if allow_writes or not _holds_forecast(obj, set()):
            return original_save(obj, f, *args, **kwargs)
        return original_save(obj, store.elsewhere(f), *args, **kwargs)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        f = store.found(f)
        wanted = _device_of(map_location)
        if wanted is None:
            return original_load(f, map_location, *args, **kwargs)
        loaded = original_load(f, "cpu", *args, **kwargs)
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(wanted), loaded)

    patches.set(torch, "save", save)
    patches.set(torch, "load", load)
    if not allow_writes:
        _install_files(patches, store)
        _install_library_saves(patches, store)


def _install_files(patches: Patches, store: _Checkpoints) -> None:
    """What scripts do with a checkpoint they just wrote: move it into place, ask for it, remove it."""
    original_stat, original_remove = os.stat, os.remove

    def moving(original: Callable[..., None]) -> Callable[..., None]:
        def move(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if not store.rename(src, dst):
                original(src, dst, *args, **kwargs)

        return move

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        return original_stat(store.found(path), *args, **kwargs)

    def remove(path: Any, *args: Any, **kwargs: Any) -> None:
        if not store.forget(path):
            original_remove(path, *args, **kwargs)

    patches.set(os, "replace", moving(os.replace))
    patches.set(os, "rename", moving(os.rename))
    patches.set(os, "stat", stat)
    patches.set(os, "remove", remove)
    patches.set(os, "unlink", remove)


def _install_library_saves(patches: Patches, store: _Checkpoints) -> None:
    """safetensors and transformers write files of their own, if they are loaded or will be."""
    from neusight.fake_cuda.packages import when_imported

    def patch_safetensors(module: Any) -> None:
        original = module.save_file

        def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            if not _holds_forecast(tensors, set()):
                return original(tensors, filename, *args, **kwargs)
            return torch.save(dict(tensors), filename)

        patches.set(module, "save_file", save_file)

    def patch_transformers(module: Any) -> None:
        original = module.PreTrainedModel.save_pretrained

        def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(p, ForecastTensor) for p in self.parameters()):
                return original(self, save_directory, *args, **kwargs)
            target = store.elsewhere(Path(save_directory) / "pytorch_model.bin")
            torch.serialization.save(self.state_dict(), target)
            return None

        patches.set(module.PreTrainedModel, "save_pretrained", save_pretrained)

    when_imported(patches, "safetensors.torch", patch_safetensors)
    when_imported(patches, "transformers.modeling_utils", patch_transformers)


class _Checkpoints:
    """A temporary place for what the script saves, from which it can load it back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._folder: Path | None = None
        self._places: dict[str, Path] = {}

    def elsewhere(self, target: Any) -> Any:
        """Where to write instead of `target`; an open file stays what it is."""
        if not isinstance(target, (str, os.PathLike)):
            return target
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="neusight-"))
        key = os.path.abspath(target)  # pathlib asks os.stat, which asks us
        if key not in self._places:
            self._places[key] = self._folder / f"{len(self._places)}-{Path(target).name}"
        self._recorder.warn_once(
            "checkpoints were written to a temporary place, not over your files "
            f"(first: {target}); --allow-writes writes them where the script says"
        )
        return self._places[key]

    def found(self, source: Any) -> Any:
        """The place that was written instead of `source`, if it was."""
        if not self._places or not isinstance(source, (str, os.PathLike)):
            return source
        return self._places.get(os.path.abspath(source), source)

    def rename(self, source: Any, target: Any) -> bool:
        """Moves what was written instead of `source`; False if nothing was."""
        place = self.found(source)
        if place is source:
            return False
        del self._places[os.path.abspath(source)]
        self._places[os.path.abspath(target)] = place
        return True

    def forget(self, path: Any) -> bool:
        """Removes what was written instead of `path`; False if nothing was."""
        place = self.found(path)
        if place is path:
            return False
        del self._places[os.path.abspath(path)]
        return True

    def remove(self) -> None:
        """Deletes the temporary place."""
        self._places.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _holds_forecast(obj: Any, seen: set[int]) -> bool:
    if isinstance(obj, ForecastTensor):
        return True
    if id(obj) in seen:
        return False
    seen.add(id(obj))
    if isinstance(obj, dict):
        return any(_holds_forecast(value, seen) for value in obj.values())
    if isinstance(obj, (list, tuple)):
        return any(_holds_forecast(value, seen) for value in obj)
    if isinstance(obj, nn.Module):
        return any(isinstance(p, ForecastTensor) for p in obj.parameters())
    return False


def _device_of(map_location: Any) -> torch.device | None:
    """The GPU that torch.load was asked to load to, if it was one."""
    if isinstance(map_location, (str, torch.device)):
        device = torch.device(map_location)
        return device if device.type == "cuda" else None
    return None
