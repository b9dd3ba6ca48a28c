"""What is known of an op when it was first called, so that later calls need not ask torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from neusight.recording.dispatch.math_settings import needs_math
from neusight.recording.dispatch.meta_kernels import is_view
from neusight.recording.recording import OpSignature, TensorSpec, flattened
from neusight.recording.signature import SQUARES, repeated, signature_of
from neusight.recording.tensor import ForecastTensor

#: How a repeated call is answered: by tensors like those it returned before, by its first argument,
#: by a view of that, or by torch's fake kernel as the first time.
Answer = Literal["new", "inplace", "view", "slow"]

#: Ops whose number of elements hangs on their numbers: of floats, no key keeps the value.
_COUNTS = frozenset({"aten::arange", "aten::range"})

_CHANGES_SIZE = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


class Output(NamedTuple):
    """What a returned tensor is like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class KnownOp(NamedTuple):
    """What is remembered of a call: its signature, how it is answered, what it returns in which
    container, whether math switches matter to it, and whether its value may be known."""

    signature: OpSignature
    answer: Answer = "slow"
    outputs: tuple[Any, ...] = ()
    container: type | None = None
    needs_math: bool = False
    may_be_known: bool = False


class OpCache:
    """Ops by what they were called with, as far as that decides what they return.

    `may_be_known` says whether the value of an op of a signature is worth following.
    """

    def __init__(self, may_be_known: Callable[[OpSignature], bool]) -> None:
        self._may_be_known = may_be_known
        self._known: dict[Any, KnownOp] = {}
        self._handled: dict[Any, KnownOp] = {}
        #: The op of an earlier call of that `cache_key`.
        self.find = self._known.get

    def learn(
        self, key: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> KnownOp:
        """What a call returned, remembered by its `cache_key`, which is that of before it ran."""
        signature = signature_of(func, args, kwargs, out)
        answer = _answer_of(func, args, kwargs, out)
        known = KnownOp(
            signature,
            answer,
            outputs=_outputs_of(out) if answer == "new" else (),
            container=list if isinstance(out, list) else tuple if isinstance(out, tuple) else None,
            needs_math=needs_math(signature),
            may_be_known=self._may_be_known(signature),
        )
        is_counted = func._schema.name in _COUNTS
        if key is not None and not (is_counted and flattened((args, *kwargs.values()), float)):
            self._known[key] = known
        return known

    def handled(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        pinned: tuple[bool, ...],
    ) -> KnownOp:
        """The op of a call that returned `out` by other means; which of its arguments are in pinned
        memory belongs to it."""
        key = (cache_key(func, args, kwargs), _meta_key(out), pinned)
        known = self._handled.get(key)
        if known is None or key[0] is None:
            signature = signature_of(func, args, kwargs, out)
            if any(pinned):
                signature = _with_pinned(signature, pinned)
            known = KnownOp(signature, needs_math=needs_math(signature))
            self._handled[key] = known
        return known


#: Numbers for what tensors are like: shape, strides, dtype and device.
_ALIKE: dict[tuple[Any, ...], int] = {}


def _meta_key(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, ForecastTensor):
        known = value.alike
        if known is None:
            like = (value.shape, value.stride(), value.dtype, value._fake_device)
            known = value.alike = _ALIKE.setdefault(like, len(_ALIKE))
        return known
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, "cpu")
    if kind is float:
        return "float"  # a changing learning rate is the same kernel
    if kind is bool or kind is int:
        return (kind, value)
    if kind is list or kind is tuple:
        return tuple([_meta_key(item) for item in value])
    return value


def cache_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same for calls that return the same, as far as tensors go; None where there is none."""
    try:
        if kwargs:
            key: Any = (
                func,
                tuple([_meta_key(a) for a in args]),
                tuple([(n, _meta_key(v)) for n, v in kwargs.items()]),
            )
        else:
            key = (func, tuple([_meta_key(a) for a in args]))
        if func in SQUARES and (again := repeated(args)):
            key = (key, again)
        hash(key)
    except TypeError:
        return None
    return key


def _answer_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Answer:
    schema = func._schema
    tags = func.tags
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return "slow"
    if is_view(func):
        return "view" if isinstance(args[0], ForecastTensor) else "slow"
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if written and not schema.returns and schema.name not in _CHANGES_SIZE:
        return "inplace"  # as all optimizers' steps that are one kernel: it writes, that is all
    if any(value.alias_info is not None for value in schema.returns):
        inplace = (
            schema.name.endswith("_")
            and len(written) == 1
            and schema.arguments[0].alias_info is not None
            and torch.Tag.inplace_view not in tags
            and schema.name not in _CHANGES_SIZE
        )
        return "inplace" if inplace else "slow"
    items = out if isinstance(out, (list, tuple)) else ()
    if any(isinstance(item, (list, tuple)) for item in items):
        return "slow"
    tensors = flattened(out, ForecastTensor)
    given = flattened((*args, *kwargs.values()), ForecastTensor)
    inputs = {t.untyped_storage()._cdata for t in given}
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) != len(storages) or inputs & set(storages):
        return "slow"  # shares storage without saying so
    if any(t.storage_offset() != 0 or t.layout is not torch.strided for t in tensors):
        return "slow"
    return "new"


def _outputs_of(out: Any) -> tuple[Any, ...]:
    items = out if isinstance(out, (list, tuple)) else (out,)
    return tuple(
        Output(tuple(i.shape), i.stride(), i.dtype, i._fake_device)
        if isinstance(i, ForecastTensor)
        else i
        for i in items
    )


def _with_pinned(signature: OpSignature, pinned: Sequence[bool]) -> OpSignature:
    """The signature with those of its first arguments pinned that are."""
    arguments = list(signature.arguments)
    for position, is_pinned in enumerate(pinned):
        name, value = arguments[position]
        if is_pinned and isinstance(value, TensorSpec):
            arguments[position] = (name, value._replace(is_pinned=True))
    return replace(signature, arguments=tuple(arguments))
