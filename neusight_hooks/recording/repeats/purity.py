"""Watches one call of a module: whether all it does is ops on the GPU and what it returns."""

from __future__ import annotations

import builtins
import contextvars
import dis
import random
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from neusight.recording.storages import StorageWatch
from neusight.recording.tensor import ForecastTensor, is_mask

aten = torch.ops.aten

#: Code whose Python objects the program does not see change, but for what is named below.
_TRUSTED = ("torch.", "neusight.")

#: Code of Python itself, which is trusted as its caller is.
_PYTHON = (f"{sysconfig.get_path('stdlib')}/", "<frozen ")

#: What asks for the time or the memory, starts others, or sets a seed.
_UNTRUSTED = (
    "torch.cuda.random",
    "torch.distributed",
    "torch.multiprocessing",
    "torch.random",
    "torch.utils.data",
    "neusight.fake_cuda.torch_api.clock",
    "neusight.fake_cuda.torch_api.simulated_memory",
    "neusight.fake_cuda.nvml",
    "neusight.fake_cuda.processes",
)

#: Builtin functions that do more than return a value, or that hide what they call.
_ACTING = frozenset({"print", "open", "input", "exec", "eval", "compile", "breakpoint", "exit"})

#: Kinds of objects whose methods change at most the object, which `state_of` or `context_values`
#: looks into.
_SHOWN = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset, type, slice, range,
          contextvars.ContextVar)  # fmt: skip

_PURE_MODULES = frozenset(
    {"_abc", "_functools", "_operator", "cmath", "itertools", "math", "operator", "torch"}
)

#: Where the recorder's own functions are whose results depend on shapes alone, other such ops, and
#: one there that reads lengths.
_BY_SHAPE = ("neusight.recording.handlers.shaped", "neusight.fake_cuda.torch_api.overrides")
_PLAIN_OPS = frozenset({aten._to_copy.default})
_READING_OPS = frozenset({aten._ctc_loss.Tensor})
_BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class CallWatch:
    """Watches Python functions, functions of C and ops of one call. `reason` says what the call
    does besides: something the program could see or that another call would do differently."""

    def __init__(self, storages: StorageWatch, handled: Mapping[Any, object]) -> None:
        self.reason = ""
        #: The program's functions that ran, with their globals.
        self.ran: dict[CodeType, dict[str, Any]] = {}
        self._storages = storages
        self._handled = handled
        self._trusted: dict[CodeType, bool] = {}
        self._first_storage = storages.next_number
        self._random = _random_states()
        self._context = context_values()

    def start(self) -> None:
        """The call begins."""
        sys.setprofile(self._event)

    def stop(self) -> None:
        """It has ended."""
        sys.setprofile(None)
        if _random_states() != self._random:
            self._refuse("random numbers")
        if context_values() != self._context:
            self._refuse("a context variable")

    def global_values(self) -> list[object]:
        """The global variables that the program's functions read or write."""
        return [
            namespace[name]
            for code, namespace in self.ran.items()
            for name in _globals_of(code)
            if name in namespace
        ]

    def _refuse(self, reason: str) -> None:
        self.reason = self.reason or reason

    # -- Python -----------------------------------------------------------------------------------

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self._is_trusted(frame)
        elif event == "c_call" and not (self.reason or _is_pure(arg) or self._is_trusted(frame)):
            self._refuse(f"a call of {getattr(arg, '__qualname__', arg)}")

    def _is_trusted(self, frame: FrameType) -> bool:
        """Whether it is a function of torch or neusight, or one of Python that such a one calls."""
        code = frame.f_code
        known = self._trusted.get(code)
        if known is not None:
            return known
        caller = frame.f_back
        name = f"{frame.f_globals.get('__name__')}."
        is_of_python = code.co_filename.startswith(_PYTHON) or name.startswith("namedtuple_")
        if is_of_python and caller is not None:
            return self._is_trusted(caller)
        known = self._trusted[code] = name.startswith(_TRUSTED)
        if known and name.startswith(_UNTRUSTED):
            self._refuse(f"a call of {name}{code.co_name}")
        if not known:
            self.ran[code] = frame.f_globals
        return known

    # -- ops --------------------------------------------------------------------------------------

    def see_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An op is about to be dispatched."""
        if not isinstance(func, torch._ops.OpOverload):
            self._refuse(f"{func}")
            return
        name = func._schema.name
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        draws = torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(given)
        by_values = not _BY_VALUES.isdisjoint(func.tags) or self._is_by_values(func, args)
        trains_statistics = "batch_norm" in name and any(value is True for value in args)
        if draws or by_values or trains_statistics:
            self._refuse(name)
        for argument in func._schema.arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and not self._is_made_here(given.get(argument.name)):
                self._refuse(f"{name} on what was there before")

    def _is_by_values(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether the recorder runs the op by the values of its arguments."""
        handler: Any = self._handled.get(func)
        if handler is None or func in _PLAIN_OPS:
            return False
        if func is aten.index.Tensor:
            return any(map(is_mask, args[1]))
        return handler.__module__ not in _BY_SHAPE or func in _READING_OPS

    def see_kernel(self, written: Sequence[torch.Tensor], *, has_mask: bool) -> None:
        """A compiled kernel is about to be launched that writes these."""
        if has_mask or not self._is_made_here(written):
            self._refuse("a compiled kernel that writes what was there before")

    def _is_made_here(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(self._is_made_here(item) for item in value)
        if not isinstance(value, ForecastTensor):
            return value is None
        number = self._storages.number_of(value)
        return number is not None and number >= self._first_storage


def _drops_nothing(given: Mapping[str, Any]) -> bool:
    """Whether an op that may drop out (attention, recurrent layers) is set not to. A default is
    to drop nothing."""
    return any(name in given and given[name] == 0 for name in ("dropout_p", "dropout"))


def _is_pure(function: Callable[..., Any]) -> bool:
    """Whether a function of C changes nothing but objects that `state_of` looks into."""
    owner = getattr(function, "__self__", None)
    if owner is builtins:
        return function.__name__ not in _ACTING
    if isinstance(owner, (torch.Tensor, torch.Size, torch.dtype, torch.device)):
        return True
    if isinstance(owner, _SHOWN):
        return True
    module = getattr(owner, "__name__", None) or getattr(function, "__module__", None) or ""
    module = module if isinstance(module, str) else ""
    return module.partition(".")[0] in _PURE_MODULES or isinstance(owner, torch.nn.Module)


def _globals_of(code: CodeType) -> set[str]:
    return {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "STORE_NAME")
    }


def context_values() -> tuple[tuple[int, int], ...]:
    """The context variables and their values, by identity."""
    return tuple((id(var), id(value)) for var, value in contextvars.copy_context().items())


def _random_states() -> tuple[object, ...]:
    """Of the generators of Python, torch and, where it is imported, NumPy."""
    module: Any = sys.modules.get("numpy")
    numpy = "" if module is None else repr(module.random.get_state(legacy=False))
    with torch._C._DisableTorchDispatch():
        cpu = bytes(torch.default_generator.get_state().tolist())
    return random.getstate(), numpy, cpu
