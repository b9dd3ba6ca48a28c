"""What a call returns, and how a call that repeats it makes the same again."""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neusight.recording.repeats.state import plain_value
from neusight.recording.tensor import ForecastTensor

#: Objects in objects are looked into so deep.
_MAX_DEPTH = 4


@dataclass(frozen=True)
class NewTensor:
    """A tensor that each call makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _SameInput:
    """The input at this place."""

    place: int


@dataclass(frozen=True)
class _SameValue:
    """The same value each time."""

    value: Any


@dataclass(frozen=True, eq=False)
class _NewObject:
    """An object that each call makes, as a cache of keys and values, with its attributes."""

    kind: type
    attributes: CallOutput


@dataclass(frozen=True, eq=False)
class CallOutput:
    """All parts of a value, and what holds them together."""

    parts: tuple[NewTensor | _SameInput | _SameValue | _NewObject, ...]
    structure: Any

    def made(self, inputs: Sequence[Any], make_tensor: Callable[[NewTensor], Any]) -> Any:
        """The value once more."""
        leaves: list[Any] = []
        for part in self.parts:
            if isinstance(part, NewTensor):
                leaves.append(make_tensor(part))
            elif isinstance(part, _SameInput):
                leaves.append(inputs[part.place])
            elif isinstance(part, _SameValue):
                leaves.append(part.value)
            else:
                made: Any = object.__new__(part.kind)
                made.__dict__.update(part.attributes.made(inputs, make_tensor))
                leaves.append(made)
        return pytree.tree_unflatten(leaves, self.structure)


class _CannotRepeatError(Exception):
    """A part is more than a new tensor of unknown values, an input, a constant or an object of
    such."""


def output_of(
    value: Any, inputs: Sequence[Any], number_of_new: Callable[[ForecastTensor], int | None]
) -> tuple[CallOutput, list[int]] | None:
    """How what a call returned is made again, and the numbers of its new storages in order; None
    where it cannot be. `number_of_new` is None of a tensor that is not new or has known values."""
    places = {id(leaf): place for place, leaf in enumerate(inputs)}
    numbers: list[int] = []

    def part_of(leaf: Any, depth: int) -> NewTensor | _SameInput | _SameValue | _NewObject:
        if not isinstance(leaf, torch.Tensor):
            if plain_value(leaf) is not None:
                return _SameValue(leaf)
            if depth < _MAX_DEPTH and _is_plain_object(leaf):
                return _NewObject(type(leaf), whole(vars(leaf), depth + 1))
            raise _CannotRepeatError
        if id(leaf) in places:
            return _SameInput(places[id(leaf)])
        number = number_of_new(leaf) if isinstance(leaf, ForecastTensor) else None
        if number is None or number in numbers or type(leaf) is not ForecastTensor:
            raise _CannotRepeatError
        numbers.append(number)
        return NewTensor(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf._fake_device)

    def whole(value: Any, depth: int) -> CallOutput:
        leaves, structure = pytree.tree_flatten(value)
        return CallOutput(tuple([part_of(leaf, depth) for leaf in leaves]), structure)

    try:
        return whole(value, 0), numbers
    except _CannotRepeatError:
        return None


def objects_in(value: Any) -> list[weakref.ref[Any]]:
    """The objects in what a call returned whose attributes are its parts: an object that the next
    call returns, too, is not made by each call."""
    return [weakref.ref(each) for each in _objects(value, 0)]


def share_one(first: Iterable[weakref.ref[Any]], second: Iterable[weakref.ref[Any]]) -> bool:
    """Whether an object is among both."""
    found = {id(each()) for each in first if each() is not None}
    return any(id(each()) in found for each in second if each() is not None)


def _objects(value: Any, depth: int) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(value):
        if plain_value(leaf) is None and depth < _MAX_DEPTH and _is_plain_object(leaf):
            yield leaf
            yield from _objects(vars(leaf), depth + 1)


def _is_plain_object(value: Any) -> bool:
    """Whether all of an object is its attributes: it is copied by them, and can be referred to
    weakly."""
    kind: Any = type(value)
    if isinstance(value, (type, torch.Tensor, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    own: Any = object
    if any(getattr(kind, name, None) is not getattr(own, name, None) for name in _COPYING):
        return False
    try:
        made, arguments, state, *items = value.__reduce_ex__(2)
        weakref.ref(value)
    except (TypeError, ValueError):
        return False
    is_whole = isinstance(state, dict) and state == vars(value) and items == [None, None]
    return is_whole and arguments == (kind,) and made is vars(copyreg)["__newobj__"]


#: Methods by which a class says how its objects are copied.
_COPYING = ("__reduce_ex__", "__reduce__", "__getstate__")
