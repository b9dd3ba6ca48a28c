"""Parameters on the CPU that hold no data until an op computes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neusight.recording.dispatch.fake_kernels import FakeKernels
from neusight.recording.recording import flattened
from neusight.recording.tensor import ForecastMode, ForecastTensor
from neusight.recording.values.known import KnownValues

#: Standard deviation of parameters that are filled when CPU code computes on them.
PARAMETER_STD = 0.02

#: Ops that ask their argument for its shape only.
_LIKE = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
        "randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full",
    )
)  # fmt: skip

#: Numbers below it fit every type of real numbers that torch fills, float8 included.
_SURE_TO_FIT = 240.0

_COPIES = frozenset({"aten::clone", "aten::_to_copy"})

aten = torch.ops.aten

#: How parameters are mostly initialised: of each, which two numbers it takes at most, and what they
#: are by themselves (aten/src/ATen/native/native_functions.yaml).
_FILLS: dict[Any, tuple[float, float]] = {
    aten.normal_.default: (0.0, 1.0),
    aten.uniform_.default: (0.0, 1.0),
}


class LazyParameters:
    """Runs ops on them without data as long as that will do; then fills them with seeded random
    values."""

    def __init__(self, mode: ForecastMode, known: KnownValues, fake_kernels: FakeKernels) -> None:
        #: Bytes that were filled.
        self.materialised_bytes = 0
        self._mode = mode
        self._known = known
        self._fake_kernels = fake_kernels

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on CPU parameters that hold no data: without data where it initialises, copies
        or views them, else for real, filling them first."""
        tensors = flattened((*args, *kwargs.values()), torch.Tensor)
        device = kwargs.get("device")
        is_meta = device is not None and torch.device(device).type == "meta"
        if func is aten._to_copy.default and is_meta:
            return without_data_on_meta(args[0], kwargs)
        if func is aten.detach.default:
            return self._fake_kernels.view(func, args, kwargs)
        if getattr(func, "is_view", False):
            return self._fake_kernels.run(func, args, kwargs)
        if func._schema.name in _LIKE:
            return func(_uninitialised(args[0]), *args[1:], **kwargs)
        known = all(t in self._known for t in tensors if isinstance(t, ForecastTensor))
        if not known and _needs_no_data(func, args, tensors):
            self._known.forget_written(func, args, kwargs)
            if _only_fills(func, args):
                return args[0]
            return self._fake_kernels.run(func, args, kwargs)
        real_args = [self._filled(a) for a in args]
        real_kwargs = {n: self._filled(v) for n, v in kwargs.items()}
        out = func(*real_args, **real_kwargs)
        for mine, real in zip(args, real_args, strict=True):
            if out is real:
                return mine
        return out

    def _filled(self, value: Any) -> Any:
        if isinstance(value, ForecastTensor):
            return self.filled(value)
        if isinstance(value, (list, tuple)):
            return [self._filled(item) for item in value]
        return value

    def filled(self, tensor: ForecastTensor) -> torch.Tensor:
        """A real view of a CPU tensor that held no data, filled with seeded random values."""
        if tensor in self._known:
            return self._known.of(tensor)
        view = self._known.fill(tensor)
        num_bytes = tensor.untyped_storage().nbytes()
        if tensor.dtype.is_floating_point:
            generator = torch.Generator("cpu")
            generator.manual_seed(num_bytes)
            with torch.no_grad(), self._mode.inside():
                self._known.whole(tensor).normal_(0.0, PARAMETER_STD, generator=generator)
        self.materialised_bytes += num_bytes
        return view


def without_data_on_meta(source: torch.Tensor, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """What `_to_copy` to the device "meta" returns: no kernel runs, nothing is read."""
    like: Any = torch.empty_strided(
        tuple(source.shape), source.stride(), dtype=source.dtype, device="meta"
    )
    return torch.empty_like(
        like, dtype=kwargs.get("dtype"), memory_format=kwargs.get("memory_format")
    )


def _needs_no_data(func: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the op only copies parameters or writes over them; else its result is a number that
    the program uses."""
    name = func._schema.name
    if name == "aten::copy_":
        return isinstance(args[0], ForecastTensor)
    if any(not isinstance(t, ForecastTensor) and t.dim() > 0 for t in tensors):
        return False
    return name in _COPIES or name.endswith("_")


def _only_fills(func: Any, args: Sequence[Any]) -> bool:
    """Whether the op writes numbers into a tensor of real ones that no kernel could refuse; others
    are for torch's fake kernels to judge."""
    if not args[0].dtype.is_floating_point:
        return False
    if func is aten.zero_.default or (func is aten.fill_.Scalar and len(args) == 2):
        return True
    if func not in _FILLS:
        return False
    numbers = [*args[1:], *_FILLS[func][len(args) - 1 :]]
    first, second = float(numbers[0]), float(numbers[1])
    is_small = max(abs(first), abs(second)) < _SURE_TO_FIT
    return is_small and second >= (first if func is aten.uniform_.default else 0.0)


def _uninitialised(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
