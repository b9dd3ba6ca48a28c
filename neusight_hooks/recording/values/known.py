"""Values that are known: small storages carry theirs while every input of it is known."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neusight.recording.recording import OpSignature, flattened
from neusight.recording.tensor import ForecastTensor

#: Largest tensor of floats, in elements, whose real value is followed.
MAX_KNOWN_ELEMENTS = 64

#: The same for integers and truth values: tokens, positions and padding masks come from the CPU,
#: and what Hugging Face's models make of them decides which attention kernel runs.
MAX_KNOWN_INTEGERS = 2**20

#: Ops that convert, pick, place or count elements. What was a whole number stays one, and so floats
#: made of masks and choices are followed through them as far as integers are: a mask that is
#: interpolated in floats, experts' tokens that are counted in them.
_KEEPS_WHOLE = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy", "clone", "constant_pad_nd", "scatter", "sum",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    )
)  # fmt: skip


def is_small(tensor: torch.Tensor) -> bool:
    """Whether the tensor's value is followed where it is known."""
    return _is_small(tensor.numel(), str(tensor.dtype)[6:])


def _is_small(num_elements: int, dtype: str) -> bool:
    is_float = dtype.startswith(("float", "bfloat", "complex"))
    return num_elements <= (MAX_KNOWN_ELEMENTS if is_float else MAX_KNOWN_INTEGERS)


def may_be_known(signature: OpSignature) -> bool:
    """Whether the value of an op of this signature is worth following: all of it is small."""
    outputs = signature.output_tensors
    if signature.op in _KEEPS_WHOLE:
        return all(t.numel <= MAX_KNOWN_INTEGERS for t in (*outputs, *signature.input_tensors))
    small_outputs = all(_is_small(t.numel, t.dtype) for t in outputs)
    small_inputs = all(_is_small(t.numel, t.dtype) for t in signature.input_tensors)
    writes = signature.op.endswith("_") or signature.overload == "out"
    if writes:
        return any(_is_small(t.numel, t.dtype) for t in signature.input_tensors)
    if any(t.dtype == "bool" and t.numel <= MAX_KNOWN_ELEMENTS for t in outputs):
        return True
    return bool(outputs) and small_outputs and small_inputs


class _ValueRef(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class KnownValues:
    """Values by storage, for as long as it lives; some of them rest on an invented one."""

    def __init__(self) -> None:
        self._flat: dict[int, torch.Tensor] = {}
        self._watches: dict[int, _ValueRef] = {}
        self._invented: set[int] = set()
        #: Storages of floats that are followed although they are many: whole numbers.
        self.long_floats: set[int] = set()

    def __contains__(self, tensor: ForecastTensor) -> bool:
        """Whether the tensor's storage has a value, computed or guessed."""
        return tensor.untyped_storage()._cdata in self._flat

    def of(self, tensor: ForecastTensor) -> torch.Tensor:
        """The value, which shares its memory with what is kept; KeyError where there is none."""
        return _view(tensor, self._flat[tensor.untyped_storage()._cdata])

    def may_hold(self, tensor: ForecastTensor, *, are_whole: bool = False) -> bool:
        """Whether a value may be set: the tensor is small, and all of its storage. Whole numbers
        are small as integers are, whatever their type."""
        fits = tensor.numel() <= MAX_KNOWN_INTEGERS if are_whole else is_small(tensor)
        return fits and (
            tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        )

    def set(self, tensor: ForecastTensor, value: torch.Tensor) -> None:
        """Notes the value of a tensor that has a storage of its own."""
        view = self.fill(tensor)
        if view.shape == value.shape:
            view.copy_(value)

    def set_from(self, source: torch.Tensor, tensor: ForecastTensor, value: torch.Tensor) -> None:
        """The same of a value that follows from the source's: invented where that is."""
        self.set(tensor, value)
        if self.is_invented(source):
            self.record_invented(tensor)

    def fill(self, tensor: ForecastTensor) -> torch.Tensor:
        """Zeros for the tensor's storage, and the tensor's own part of them."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        flat = self._flat[key] = torch.zeros(storage.nbytes(), dtype=torch.uint8, device="cpu")
        self._invented.discard(key)
        watch = _ValueRef(storage, lambda reference: self.forget(reference.key))
        watch.key = key
        self._watches[key] = watch
        if not is_small(tensor):
            self.long_floats.add(key)
        return _view(tensor, flat)

    def whole(self, tensor: ForecastTensor) -> torch.Tensor:
        """All elements of the tensor's storage, of its dtype."""
        return _elements(self._flat[tensor.untyped_storage()._cdata], tensor)

    def forget(self, key: int) -> None:
        """The value of the storage at this address is no longer known."""
        self._flat.pop(key, None)
        self._watches.pop(key, None)
        self._invented.discard(key)
        self.long_floats.discard(key)

    def forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An op writes unknown values over some of its arguments."""
        if not self._flat:
            return
        for position, parameter in enumerate(func._schema.arguments):
            if parameter.alias_info is None or not parameter.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(parameter.name)
            for tensor in flattened(value, ForecastTensor):
                self.forget(tensor.untyped_storage()._cdata)

    def record_invented(self, tensor: torch.Tensor) -> None:
        """The tensor's value rests on one not known."""
        self._invented.add(tensor.untyped_storage()._cdata)

    def is_invented(self, tensor: torch.Tensor) -> bool:
        """Whether it does."""
        return (
            isinstance(tensor, ForecastTensor) and tensor.untyped_storage()._cdata in self._invented
        )

    def is_sure(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's value is known without anything invented."""
        return not isinstance(tensor, ForecastTensor) or (
            tensor in self and not self.is_invented(tensor)
        )


def _elements(flat: torch.Tensor, tensor: ForecastTensor) -> torch.Tensor:
    size = flat.numel() // tensor.element_size() * tensor.element_size()
    return flat[:size].view(tensor.dtype)


def _view(tensor: ForecastTensor, flat: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(
        _elements(flat, tensor),
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
    )
