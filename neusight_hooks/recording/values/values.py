"""Values as a program computes and reads them, without the GPU that would have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neusight.recording.recording import flattened
from neusight.recording.tensor import ForecastMode, ForecastTensor
from neusight.recording.values.invention import UNKNOWN_INT, Invention
from neusight.recording.values.known import (
    MAX_KNOWN_ELEMENTS,
    KnownValues,
    is_small,
)
from neusight.recording.values.lazy import LazyParameters

#: Largest tensor, in elements, that a copy to the CPU fills at once; larger ones stay without data
#: until they are computed on.
MAX_COPIED_ELEMENTS = 2**20

#: Predicates that hold for healthy numbers.
_TRUE_WHEN_UNKNOWN = frozenset({"aten::all", "aten::isfinite", "aten::isclose", "aten::allclose"})

_COMPARISONS = frozenset({"aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::ne"})

#: Ops whose values are whatever the memory held.
_UNINITIALISED = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    )
)  # fmt: skip

#: Types of lengths, counts and places.
_COUNTING = (torch.int32, torch.int64)

#: What a healthy number says of itself: `x != x` asks for NaN.
_OF_ITSELF = {
    **dict.fromkeys(("aten::eq", "aten::le", "aten::ge"), True),
    **dict.fromkeys(("aten::ne", "aten::lt", "aten::gt"), False),
}


class Values:
    """Computes ops on known values, and reads what is known, random or invented."""

    def __init__(
        self, mode: ForecastMode, known: KnownValues, lazy: LazyParameters, invention: Invention
    ) -> None:
        self._mode = mode
        self._known = known
        self._lazy = lazy
        self._invention = invention

    # -- computing ------------------------------------------------------------------------------

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Computes the op on known values, or forgets what it wrote over."""
        outputs = out if isinstance(out, (list, tuple)) else [out]
        if getattr(func, "is_view", False):
            return
        if self._compute(func, args, kwargs, outputs):
            return
        self._known.forget_written(func, args, kwargs)
        name = func._schema.name
        if name in _OF_ITSELF and _is_same(*args[:2]):
            self._assume(outputs[0], _OF_ITSELF[name])
        elif name == "aten::ne" and isinstance(args[1], float) and math.isinf(args[1]):
            self._assume(outputs[0], True)  # as isfinite asks: |x| != inf
        elif name == "aten::_to_copy" and self._convert(args[0], outputs[0]):
            pass
        elif not (name in _COMPARISONS and self._compare(func, args, outputs)):
            for tensor in outputs:
                if isinstance(tensor, ForecastTensor) and tensor.dtype is torch.bool:
                    self._assume(tensor, name in _TRUE_WHEN_UNKNOWN)

    def _compute(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Any]
    ) -> bool:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        try:
            real_args = [self._real(a) for a in args]
            real_kwargs = {n: self._real(v) for n, v in kwargs.items()}
        except KeyError:
            return False
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        try:
            with torch.no_grad(), self._mode.inside():
                result = func(*real_args, **real_kwargs)
                if func._schema.name in _UNINITIALISED:
                    result.zero_()  # memory may hold anything, and another thing in each run
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return False  # no CPU kernel for it: the value is unknown, nothing is lost
        invented = any(self._known.is_invented(t) for t in flattened(args, torch.Tensor))
        results = result if isinstance(result, (list, tuple)) else [result]
        for mine, value in zip(outputs, results, strict=False):
            if isinstance(mine, ForecastTensor) and isinstance(value, torch.Tensor):
                if mine not in self._known:
                    self._known.set(mine, value)
                if invented:
                    self._known.record_invented(mine)
        return True

    def _real(self, value: Any) -> Any:
        if isinstance(value, ForecastTensor):
            return self._known.of(value)
        if isinstance(value, (list, tuple)):
            return [self._real(item) for item in value]
        if isinstance(value, torch.Tensor) and not is_small(value):
            raise KeyError
        return value

    def _compare(self, func: Any, args: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Compares unknown numbers by what reading them would give: a loop may end either
        when `loss < 0.5` or with `while loss > 0.5`."""
        tensors = flattened(args, torch.Tensor)
        if any(t.numel() > MAX_KNOWN_ELEMENTS or not t.is_floating_point() for t in tensors):
            return False
        numbers = [
            self._invention.values(a.shape, a.dtype)
            if isinstance(a, ForecastTensor) and a not in self._known
            else self._real(a)
            for a in args
        ]
        with torch.no_grad(), self._mode.inside():
            self._known.set(outputs[0], func(*numbers))
        self._known.record_invented(outputs[0])
        return True

    def _convert(self, source: Any, out: Any) -> bool:
        """Unknown numbers become integers or truths: at once those that reading would
        give, so that all that is computed of them agrees (lengths, and their sum)."""
        if not isinstance(out, ForecastTensor) or not self._known.may_hold(out):
            return False
        if out.dtype is torch.bool:
            is_new = source.dtype is not torch.bool
        else:
            is_new = out.dtype in _COUNTING and source.is_floating_point()
        if is_new:
            one = True if out.dtype is torch.bool else UNKNOWN_INT
            self._known.set(out, torch.full(tuple(out.shape), one, dtype=out.dtype))
            self._known.record_invented(out)
        return is_new

    def _assume(self, tensor: Any, truth: bool) -> None:
        if tensor.numel() <= MAX_KNOWN_ELEMENTS:
            self._known.set(tensor, torch.full(tuple(tensor.shape), truth))
            self._known.record_invented(tensor)

    # -- reading --------------------------------------------------------------------------------

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a small tensor: known, or invented by the policy and reported."""
        if not isinstance(tensor, ForecastTensor):
            return tensor
        if tensor._fake_device.type != "cuda":
            return self._lazy.filled(tensor)
        if tensor in self._known:
            if self._known.is_invented(tensor):
                self._invention.report()
            return self._known.of(tensor).clone()
        self._invention.report()
        return self._invention.values(tensor.shape, tensor.dtype)

    def host_copy(self, tensor: ForecastTensor) -> torch.Tensor:
        """The tensor on the CPU, for numpy, printing and pickling; a large unknown one as one
        repeated element."""
        if tensor._fake_device.type != "cuda" and (
            tensor in self._known or tensor.numel() <= MAX_COPIED_ELEMENTS
        ):
            return self._lazy.filled(tensor)
        if tensor.numel() <= MAX_KNOWN_ELEMENTS or tensor in self._known:
            return self.read(tensor)
        return torch.zeros(1, dtype=tensor.dtype).expand(tuple(tensor.shape))


def _is_same(first: Any, second: Any) -> bool:
    """Whether two arguments are the same elements of the same storage."""
    if not isinstance(first, ForecastTensor) or not isinstance(second, ForecastTensor):
        return False
    return first is second or (
        first.untyped_storage()._cdata == second.untyped_storage()._cdata
        and first.storage_offset() == second.storage_offset()
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
    )
