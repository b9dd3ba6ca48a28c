"""What the Python objects that a call may read or change look like, to compare before and after."""

from __future__ import annotations

import contextvars
import enum
import logging
import re
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import torch

#: Where `torch.nn.Module` looks for a call in place of `forward`; what is there is torch's or ours.
COMPILED_CALL = "_compiled_call_impl"

#: Objects looked at; of a larger state it is not known whether it changed.
_MAX_OBJECTS = 20_000

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, PurePath, torch.dtype,
          torch.device, torch.layout, torch.memory_format)  # fmt: skip

#: Kinds of objects that keep no state which a call could read. (A logger's calls are seen as such.)
_STATELESS = (
    contextvars.ContextVar,
    enum.Enum,
    logging.Logger,
    property,
    re.Pattern,
    slice,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    types.BuiltinFunctionType,
    types.CodeType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    weakref.ReferenceType,
)

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))

#: Numbers, texts and the identity of all else, in the order in which it was reached.
State = list[object]


def plain_value(value: Any) -> Any:
    """A number, text or constant with its type, and tuples of such; None of anything else."""
    kind = type(value)
    if isinstance(value, _PLAIN):
        return kind, value
    if kind in (list, tuple, torch.Size):
        found = tuple([plain_value(item) for item in value])
        return None if None in found else (kind, found)
    return None


def state_of(roots: Iterable[object]) -> State | None:
    """What can be reached from these objects; equal where nothing changed. None where something may
    have a state that Python does not show (iterators, objects of C), or where there is too much."""
    found: State = []
    seen: set[int] = set()
    pending: list[object] = list(roots)
    readers: dict[type, _Reader | None] = {}
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind not in readers:
            readers[kind] = _reader_of(kind)
        read = readers[kind]
        if read is None:
            found.append(value)
            continue
        number = id(value)
        found.append(number)
        if number not in seen:
            seen.add(number)
            parts = read(value)
            if parts is None or len(seen) > _MAX_OBJECTS:
                return None
            pending += parts
    return found


#: What an object holds, in a list; None where that is unknown.
_Reader = Callable[[Any], "list[Any] | None"]


def _reader_of(kind: type) -> _Reader | None:
    """How to read objects of this class; None of one whose objects are values."""
    if issubclass(kind, _PLAIN):
        return None
    for known, reader in _READERS:
        if issubclass(kind, known):
            return reader
    return _unknown


def _tensor(value: torch.Tensor) -> list[Any]:
    is_real = value.device.type == "cpu" and not value.is_inference()
    version = value._version if is_real else 0  # on the CPU, calls may depend on its values
    return [*value.shape, value.dtype, value.requires_grad, version]


def _function(value: types.FunctionType) -> list[Any]:
    kept = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return [*_cells(value), *kept, *vars(value).values()]


def _module(value: torch.nn.Module) -> list[Any]:
    """Without its empty tables of hooks, parameters and parts; such a table counts once filled."""
    return [type(value)] + [
        held
        for name, held in value.__dict__.items()
        if (type(held) not in (dict, OrderedDict) or held) and name != COMPILED_CALL
    ]


def _mapping(value: Mapping[Any, Any]) -> list[Any]:
    return [*value.keys(), *value.values(), *_attributes(value)] if value else _attributes(value)


def _unknown(value: Any) -> list[Any] | None:
    if hasattr(value, "__next__") or not hasattr(value, "__dict__"):
        return None
    return [type(value), *_attributes(value)]


def _attributes(value: Any) -> list[Any]:
    found = getattr(value, "__dict__", None)
    return list(found.values()) if isinstance(found, dict) else []


_READERS: tuple[tuple[type | tuple[type, ...], _Reader], ...] = (
    (torch.Tensor, _tensor),
    (torch.nn.Module, _module),
    (dict, _mapping),
    ((list, tuple, set, frozenset), lambda value: [*value, *_attributes(value)]),
    (types.ModuleType, lambda value: _data(value, value)),
    (type, lambda value: _data(value, sys.modules.get(value.__module__))),
    (types.FunctionType, _function),
    (types.MethodType, lambda value: [value.__self__, value.__func__]),
    ((staticmethod, classmethod), lambda value: [value.__func__]),
    (partial, lambda value: [value.func, *value.args, *value.keywords.values()]),
    (_STATELESS, lambda value: []),
)


def _cells(function: types.FunctionType) -> Iterable[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _data(owner: object, module: types.ModuleType | None) -> list[object]:
    """What may change of a module of the program, or of a class there: its numbers, texts and
    containers."""
    return [
        value
        for name, value in (vars(owner).items() if _is_of_program(module) else ())
        if isinstance(value, (bool, int, float, str, list, dict, set)) and name[:2] != "__"
    ]


def _is_of_program(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    is_trusted = f"{name}.".startswith(("torch.", "neusight."))
    return not (is_trusted or str(file).startswith(_INSTALLED)) and (
        file is not None or name == "__main__"
    )
