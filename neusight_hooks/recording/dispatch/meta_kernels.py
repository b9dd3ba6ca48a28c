"""Torch's fake kernels on plain meta tensors, where that gives what its fake mode gives: the mode's
own care for devices and symbols costs ten times as much as the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode, torch_decomp_decompositions

from neusight.recording.tensor import ForecastMode, ForecastTensor

aten = torch.ops.aten

#: What the fake mode has a way of its own for, which is only another name of a kernel.
_RENAMED: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: torch._refs.native_layer_norm,
    aten.embedding.default: aten.embedding.default,
}
#: Ops whose result looks like their operand but for the type, where the elements of that lie one
#: behind the other; other operands are for the fake mode.
_AS_THEIR_OPERAND = frozenset(
    {
        aten._to_copy.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.empty_like.default,
    }
)
#: How ops on lists are called; the mode runs them for one device after the other.
_FOREACH = "aten::_foreach_"
#: What ops on lists do to each element, so that tensors of real numbers give tensors like them.
_BY_ELEMENT = frozenset(
    {"abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "exp", "lerp", "log"}
    | {"maximum", "minimum", "mul", "neg", "reciprocal", "rsqrt", "sign", "sqrt", "sub", "zero"}
)
_empty_strided = torch._C._VariableFunctions.empty_strided


def by_meta_kernel(
    mode: ForecastMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What a function on tensors of one GPU returns; NotImplemented where only the fake mode knows,
    and where the call fails, which the mode reports in its own words."""
    kernel = _kernel_of(func)
    if kernel is None:
        return NotImplemented
    operands = _Operands()
    try:
        plain = [operands.plain(arg) for arg in args]
        named = {
            name: operands.device(value) if name == "device" else operands.plain(value)
            for name, value in kwargs.items()
        }
        if operands.gpu is None:
            return NotImplemented
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            out = kernel(*plain, **named)
        return operands.claimed(out, mode)
    except Exception:  # the fake mode runs it then, and says in its own words what is wrong
        return NotImplemented


def is_view(func: Any) -> bool:
    """Whether torch's op returns views of its first argument, `_unsafe_view` that hides it too."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    return bool(func.is_view) or func is aten._unsafe_view.default


@cache
def _kernel_of(func: Any) -> Callable[..., Any] | None:
    """What the fake mode would call, in the order in which it looks
    (torch/_subclasses/fake_tensor.py); None where that is a way of its own."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return None
    if func in _RENAMED:
        return _RENAMED[func]
    if func in _AS_THEIR_OPERAND:
        return _as_operand
    schema = func._schema
    if schema.name.startswith(_FOREACH):
        if not fake_impls.has_meta(func):
            return None
        name = schema.name.removeprefix(_FOREACH).rstrip("_")
        return partial(_of_lists, func) if name in _BY_ELEMENT else func
    changes = schema.is_mutable or any(r.alias_info is not None for r in schema.returns)
    if changes or not schema.returns:
        return None
    checks: Any = fake_impls.op_implementations_checks  # torch leaves them without annotations
    if any(knows(func) for knows, _ in checks):
        return None
    from torch._decomp import decomposition_table, meta_table

    is_composite = torch.Tag.view_copy not in func.tags and func not in meta_table
    if is_composite and func not in FakeTensorMode._cpp_meta_supports_symint:
        if func in decomposition_table and torch_decomp_decompositions(func):
            return decomposition_table[func]
        full_name: str = func.name()  # type: ignore[no-untyped-call, unused-ignore]
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            full_name, torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            return None
    return func if fake_impls.has_meta(func) else None


def _of_lists(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What an op on lists returns: without asking tensor by tensor, where they are all alike."""
    first = args[0]
    if not all(_goes_with(first, value) for value in (*args[1:], *kwargs.values())) or any(
        not t.dtype.is_floating_point or not is_row_major(t) for t in first
    ):
        return func(*args, **kwargs)
    if not func._schema.returns:
        return None
    return [_empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in first]


def _goes_with(tensors: Sequence[torch.Tensor], value: Any) -> bool:
    """Whether it is a number, or as many numbers or tensors of the same shapes and types."""
    if not isinstance(value, (list, tuple)):
        return isinstance(value, (int, float))
    return len(value) == len(tensors) and all(
        (other.shape == tensor.shape and other.dtype == tensor.dtype and is_row_major(other))
        if isinstance(other, torch.Tensor)
        else isinstance(other, (int, float))
        for tensor, other in zip(tensors, value, strict=True)
    )


def _as_operand(
    operand: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    layout: torch.layout | None = None,
) -> torch.Tensor:
    is_kept = memory_format is None or memory_format is torch.preserve_format
    if not is_kept or pin_memory or not is_row_major(operand):
        raise _UnfitError
    made: torch.Tensor = _empty_strided(
        operand.shape, operand.stride(), dtype=dtype or operand.dtype, device="meta"
    )
    return made


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether its elements lie one behind the other, with the strides that a new one would have."""
    if tensor.layout is not torch.strided:
        return False
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(1, size)
    return True


class _UnfitError(Exception):
    """A tensor that a plain meta tensor cannot stand for, here or in what comes back."""


class _Operands:
    """The operands of a call as plain meta tensors."""

    def __init__(self) -> None:
        #: The one that all of them are on.
        self.gpu: torch.device | None = None
        self._storages: set[int] = set()

    def plain(self, value: Any) -> Any:
        """An argument with meta tensors in the place of the forecast's."""
        if isinstance(value, torch.Tensor):
            return self._meta(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.plain(item) for item in value])
        if isinstance(value, (torch.device, torch.Generator, torch.SymInt)):
            raise _UnfitError
        return value

    def _meta(self, tensor: Any) -> torch.Tensor:
        if type(tensor) is not ForecastTensor or tensor._fake_device.type != "cuda":
            raise _UnfitError
        if tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided:
            raise _UnfitError
        if self.gpu is None:
            self.gpu = tensor._fake_device
        if tensor._fake_device != self.gpu:
            raise _UnfitError
        meta: torch.Tensor = _empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        self._storages.add(meta.untyped_storage()._cdata)
        return meta

    def device(self, device: torch.device | None) -> torch.device | None:
        """Where the result shall be, if that is where the operands are."""
        if device is not None and device != self.gpu:
            raise _UnfitError
        return None

    def claimed(self, out: Any, mode: ForecastMode) -> Any:
        """What came back, on the GPU; it must be new."""
        if isinstance(out, torch.Tensor):
            storage = out.untyped_storage()._cdata
            if storage in self._storages or out.layout is not torch.strided or self.gpu is None:
                raise _UnfitError
            return mode.wrap(out, self.gpu)
        if isinstance(out, (list, tuple)):
            claimed = [self.claimed(item, mode) for item in out]
            return claimed if isinstance(out, list) else tuple(claimed)
        return out
