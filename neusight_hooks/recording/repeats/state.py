"""What the Python objects that a call may read or change look like, to compare before and after."""

from __future__ import annotations

import enum
import logging
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import torch

__all__ = ["COMPILED_CALL", "State", "plain_value", "state_of"]

#: Where `torch.nn.Module` looks for a call in place of `forward`; what is there is torch's or ours.
COMPILED_CALL = "_compiled_call_impl"

#: Objects looked at; of a state beyond that nobody says whether it changed.
_MAX_OBJECTS = 20_000

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, PurePath, torch.dtype,
          torch.device, torch.layout, torch.memory_format)  # fmt: skip

#: Kinds of objects that keep no state which a call could read. (A logger's calls are seen as such.)
_STATELESS = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
              types.MethodDescriptorType, types.CodeType, weakref.ReferenceType, re.Pattern,
              property, slice, enum.Enum, logging.Logger, torch._ops.OpOverload,
              torch._ops.OpOverloadPacket)  # fmt: skip

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
    while pending:
        value = pending.pop()
        if isinstance(value, _PLAIN):
            found.append(value)
            continue
        number = id(value)
        found.append(number)
        if number in seen:
            continue
        seen.add(number)
        if isinstance(value, torch.Tensor):
            found.append((tuple(value.shape), value.dtype, value.requires_grad))
            continue
        if isinstance(value, _STATELESS):
            continue
        parts = _parts(value)
        if parts is None or len(seen) > _MAX_OBJECTS:
            return None
        pending.extend(parts)
    return found


def _parts(value: Any) -> Iterable[object] | None:
    """What an object holds; None where nobody can say."""
    if isinstance(value, types.ModuleType):
        return _data(vars(value)) if _is_of_program(value) else ()
    if isinstance(value, type):
        return _data(vars(value)) if _is_of_program(sys.modules.get(value.__module__)) else ()
    if isinstance(value, types.FunctionType):
        kept = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*_cells(value), *kept, *vars(value).values()]
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    attributes = getattr(value, "__dict__", None)
    held = [type(value), *_without_call(attributes)] if isinstance(attributes, Mapping) else []
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values(), *held]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*value, *held]
    return None if hasattr(value, "__next__") or attributes is None else held


def _without_call(attributes: Mapping[str, object]) -> Iterable[object]:
    if COMPILED_CALL not in attributes:
        return attributes.values()
    return [value for name, value in attributes.items() if name != COMPILED_CALL]


def _cells(function: types.FunctionType) -> Iterable[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _data(names: Mapping[str, Any]) -> list[object]:
    """What may change of a module or class: its numbers, texts and containers."""
    return [
        value
        for name, value in names.items()
        if isinstance(value, (bool, int, float, str, list, dict, set)) and name[:2] != "__"
    ]


def _is_of_program(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return not (name.startswith(("torch.", "neusight.")) or str(file).startswith(_INSTALLED)) and (
        file is not None or name == "__main__"
    )
