"""nn.Module, optimizers and threads, where they would stumble over tensors without data."""

from __future__ import annotations

import copyreg
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.jit._builtins import _get_builtin_table
from torch.nn.parameter import is_lazy
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from neusight.fake_cuda.inlined import tensor_maker
from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.recording.tensor import ForecastTensor


def install_modules(patches: Patches, recorder: Recorder) -> None:
    """Makes modules, optimizers and threads work on forecast tensors."""
    _install_parameters(patches, recorder)
    _install_apply(patches, recorder)
    _install_optimizers(patches, recorder)
    _install_threads(patches, recorder)
    _install_annotations(patches, recorder)


def _install_parameters(patches: Patches, recorder: Recorder) -> None:
    original = nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and data.device.type == "cpu" and not recorder.mode.is_inside:
            data = recorder.without_data(data)
        return original(cls, data, requires_grad)

    patches.set(nn.Parameter, "__new__", staticmethod(new))
    _install_addresses(patches)
    _install_resizing(patches, recorder)
    _install_pinned_tensors(patches, recorder)
    _install_truncated_normal(patches)


def _install_addresses(patches: Patches) -> None:
    original = torch.UntypedStorage.data_ptr

    def data_ptr(self: torch.UntypedStorage) -> int:
        # All storages without data are at 0: libraries would take their tensors for tied ones.
        return int(self._cdata) if self.device.type == "meta" else original(self)

    patches.set(torch.UntypedStorage, "data_ptr", data_ptr)


def _install_resizing(patches: Patches, recorder: Recorder) -> None:
    original = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        # No op does it: FSDP gives the gathered parameters of a layer back so.
        result: torch.UntypedStorage = original(self, size)
        if self.device.type == "meta":
            recorder.storages.resized(self)
        return result

    patches.set(torch.UntypedStorage, "resize_", resize_)


def _install_pinned_tensors(patches: Patches, recorder: Recorder) -> None:
    make_tensor: Any = torch.tensor
    # `with torch.device(...)` knows by identity which functions make tensors, and looks once.
    _device_constructors()

    def make_pinned(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, torch.Tensor) or hasattr(data, "__array__"):  # those it refuses
            return make_tensor(data, *args, pin_memory=True, **kwargs)
        made = make_tensor(data, *args, **kwargs)
        return recorder.pinned.remember(made) if made.device.type == "cpu" else made

    tensor = tensor_maker(make_tensor, make_pinned)
    # TorchScript knows builtins by identity.
    builtins = _get_builtin_table()  # type: ignore[no-untyped-call, unused-ignore]
    patches.put(builtins, id(tensor), "aten::tensor")
    patches.set(torch, "tensor", tensor)


def _install_truncated_normal(patches: Patches) -> None:
    def truncated_normal(
        tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> Any:
        # Torch draws again and again until all values lie inside, which needs values.
        if isinstance(tensor, ForecastTensor) and tensor._fake_device.type == "cpu":
            with torch.no_grad():
                return tensor.normal_(mean, std, generator=generator).clamp_(a, b)
        return original(tensor, mean, std, a, b, generator)

    original = patches.replace_code(nn.init, "_no_grad_trunc_normal_", truncated_normal)


def _install_apply(patches: Patches, recorder: Recorder) -> None:
    moved = _MovedTensors(recorder)

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                child._apply(fn)
        for name, parameter in list(self._parameters.items()):
            if is_lazy(parameter):
                moved.lazy(parameter, fn)
            elif parameter is not None:
                moved.parameter(self, name, parameter, fn)
        for name, buffer in self._buffers.items():
            if is_lazy(buffer):
                moved.lazy(buffer, fn)
            elif buffer is not None:
                moved.buffer(self, name, buffer, fn)
        return self

    without_shape: Any = vars(nn.parameter)["UninitializedTensorMixin"]  # its stub leaves it out
    materialize = without_shape.materialize

    def materialized(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        device, dtype = moved.meant_for(self, device, dtype)
        if device is None or torch.device(device).type != "cuda":
            materialize(self, shape, device, dtype)
            return
        materialize(self, (0,), "cpu", dtype)
        moved.take_over(self, torch.empty(shape, device=device, dtype=dtype))

    plain: Any = torch.Tensor.data

    def set_data(self: Any, value: Any) -> None:
        # FSDP1 moves the buffers of a module so.
        if isinstance(value, ForecastTensor) and not isinstance(self, FakeTensor):
            moved.take_over(self, value)
        else:
            plain.__set__(self, value)

    patches.on_restore(moved.give_back)
    patches.set(torch.Tensor, "data", property(plain.__get__, set_data))
    patches.set(nn.Module, "_apply", apply)
    patches.set(without_shape, "materialize", materialized)


class _MovedTensors:
    """What modules moved, and how a model that was there before the forecast gets its own back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._swapped: list[tuple[Any, Any]] = []
        #: Tables of modules, and what stood in them by name.
        self._held: list[tuple[dict[str, Any], str, Any]] = []
        self._meant: Any = WeakIdKeyDictionary()

    def lazy(self, tensor: Any, fn: Callable[[Any], Any]) -> None:
        """Remembers where a tensor is to be made, once its shape is known (nn.LazyLinear)."""
        device, dtype = self.meant_for(tensor, None, None)
        empty = torch.empty(0, device=device or "cpu", dtype=dtype or tensor.data.dtype)
        self._meant[tensor] = fn(empty)

    def meant_for(self, tensor: Any, device: Any, dtype: Any) -> tuple[Any, Any]:
        """Device and dtype to make a tensor of: what the caller says, else what it was moved to."""
        meant = self._meant.get(tensor)
        if meant is None:
            return device, dtype
        return device or meant.device, dtype or meant.dtype

    def take_over(self, tensor: Any, made: Any) -> None:
        """Gives a tensor that was without a shape its contents."""
        _take_over(tensor, made, self._swapped)

    def parameter(
        self, module: nn.Module, name: str, parameter: Any, fn: Callable[[Any], Any]
    ) -> None:
        """Moves a parameter and its gradient; both stay the objects they are. On the device "meta"
        the module has a new parameter, as without a forecast (nn.Module._apply)."""
        gradient = parameter.grad
        with torch.no_grad():
            moved = fn(parameter)
            if moved is not parameter and moved.device.type == "meta":
                self._replace(module, name, parameter, moved)
                return
            moved_gradient = None if gradient is None else fn(gradient)
        _take_over(parameter, moved, self._swapped)
        if isinstance(module, torch.jit.ScriptModule):
            # It holds the tensor below the Python object, which has another one now.
            module._parameters[name] = parameter
            self._held.append((module._parameters, name, parameter))
        self._recorder.storages.mark(parameter, "parameter")
        if gradient is None:
            return
        if parameter.grad is None:  # it went with the parameter's own tensor
            parameter.grad = moved_gradient
        else:
            _take_over(gradient, moved_gradient, self._swapped)
        self._recorder.storages.mark(parameter.grad, "gradient")

    def _replace(self, module: nn.Module, name: str, parameter: Any, moved: Any) -> None:
        is_from_before = not isinstance(parameter, ForecastTensor)
        if is_from_before or any(tensor is parameter for tensor, _ in self._swapped):
            self._held.append((module._parameters, name, parameter))
        module._parameters[name] = nn.Parameter(moved, parameter.requires_grad)

    def buffer(self, module: Any, name: str, buffer: Any, fn: Callable[[Any], Any]) -> None:
        moved = fn(buffer)
        if moved is not buffer and not isinstance(buffer, ForecastTensor):
            self._held.append((module._buffers, name, buffer))
        module._buffers[name] = moved
        self._recorder.storages.mark(moved, "buffer")

    def give_back(self) -> None:
        """A model that was there before the forecast gets its own tensors back."""
        for tensor, real in reversed(self._swapped):
            _swap(tensor, real)
        for table, name, held in reversed(self._held):
            table[name] = held


def _take_over(tensor: Any, moved: Any, swapped: list[tuple[Any, Any]]) -> None:
    """Gives `tensor` the contents of `moved` and keeps its identity, which optimizers hold."""
    if moved is tensor:
        return
    # DTensor: as torch does it, what is inside included.
    is_wrapper = is_traceable_wrapper_subclass(moved)
    if is_wrapper or (isinstance(moved, ForecastTensor) and not isinstance(tensor, ForecastTensor)):
        taken: Any = moved
        taken = taken.detach().requires_grad_(tensor.requires_grad)
        taken._is_param = isinstance(tensor, nn.Parameter)
        _swap(tensor, taken)
        swapped.append((tensor, taken))
    else:
        tensor.data = moved


def _swap(first: Any, second: Any) -> None:
    """Exchanges what two tensor objects are, their identities kept (as torch.utils.swap_tensors,
    which refuses tensors that have weak references)."""
    first_class, second_class = type(first), type(second)
    first_slots, second_slots = _slots_of(first), _slots_of(second)
    first.__class__, second.__class__ = second_class, first_class
    first_attributes, second_attributes = dict(first.__dict__), dict(second.__dict__)
    first.__dict__.clear()
    second.__dict__.clear()
    torch._C._swap_tensor_impl(first, second)
    first.__dict__.update(second_attributes)
    second.__dict__.update(first_attributes)
    for owner, slots in ((first, second_slots), (second, first_slots)):
        for name, value in slots.items():
            setattr(owner, name, value)


def _slots_of(tensor: Any) -> dict[str, Any]:
    """What the object keeps in `__slots__`, which lie outside its `__dict__` (DTensor's parts)."""
    names: list[str] = copyreg._slotnames(type(tensor))  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names if hasattr(tensor, name)}


def _install_optimizers(patches: Patches, recorder: Recorder) -> None:
    import torch.optim.optimizer as optimizer_module
    import torch.utils._foreach_utils as foreach_module

    for module in (optimizer_module, foreach_module):
        supported = list(module._foreach_supported_types)
        patches.set(module, "_foreach_supported_types", [*supported, ForecastTensor])
    original = torch.optim.Optimizer.__init__

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder.hooks.follow_optimizer()
        recorder.cutter.optimizer_created(self)

    patches.set(torch.optim.Optimizer, "__init__", init)
    stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def remember(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        stepped.add(optimizer)

    def forget() -> None:
        for optimizer in stepped:
            forget_forecast_state(optimizer)

    patches.on_restore(forget)
    handle = optimizer_module.register_optimizer_step_pre_hook(remember)
    patches.on_restore(handle.remove)
    recorder.hooks.hide(handle)


def forget_forecast_state(optimizer: torch.optim.Optimizer) -> None:
    """Momenta that hold no data are of no use after the forecast; the optimizer makes new ones."""
    for parameter, state in list(optimizer.state.items()):
        if any(isinstance(value, ForecastTensor) for value in state.values()):
            del optimizer.state[parameter]


def _install_threads(patches: Patches, recorder: Recorder) -> None:
    """Dispatch modes are local to a thread: threads started inside record too."""
    # Private, but unlike `run` no subclass overrides it. If it moves, threads record only the ops
    # on tensors that exist already.
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(self: threading.Thread) -> None:
        if not recorder.is_open:
            original(self)
            return
        with RecordingMode(recorder), torch.autograd.set_multithreading_enabled(False):
            original(self)

    patches.set(threading.Thread, "_bootstrap_inner", bootstrap)


def _install_annotations(patches: Patches, recorder: Recorder) -> None:
    """What the script (or torch: optimizers, data loaders) annotates for its profiler is kept."""
    record_function: Any = torch.autograd.profiler.record_function
    original_enter, original_exit = record_function.__enter__, record_function.__exit__
    hooks = recorder.hooks

    def enter(self: Any) -> Any:
        hooks.enter_annotation(self.name)
        with recorder.mode.inside():
            return original_enter(self)

    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> None:
        with recorder.mode.inside():
            original_exit(self, kind, error, traceback)
        hooks.leave_annotation(self.name, failed=kind is not None)

    patches.set(record_function, "__enter__", enter)
    patches.set(record_function, "__exit__", leave)
