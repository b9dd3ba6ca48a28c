"""An op call as plain values, out of torch's own: by public names only, so any torch will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import is_
from typing import Any

import torch

from neusight.recording.recording import (
    Argument,
    MathMode,
    OpSignature,
    TensorSpec,
    release_of,
)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, stride, dtype and device type of a tensor."""
    stride = tensor.stride() if tensor.layout is torch.strided else (1,) * tensor.dim()
    return TensorSpec(tuple(tensor.shape), stride, _dtype_name(tensor.dtype), tensor.device.type)


def argument_of(value: Any) -> Argument:
    """What a recording keeps of an argument: dtypes, devices and the like as text."""
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(argument_of(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return _dtype_name(value)
    if isinstance(value, torch.device):
        return value.type
    return str(value).removeprefix("torch.")


#: Products that programs call with one tensor twice: squares, also those of Adam's gradients.
SQUARES = frozenset(
    {
        torch.ops.aten.mul.Tensor,
        torch.ops.aten.addcmul.default,
        torch.ops.aten.addcmul_.default,
        torch.ops.aten._foreach_addcmul_.Scalar,
        torch.ops.aten._foreach_addcmul_.ScalarList,
        torch.ops.aten._foreach_addcmul_.Tensor,
    }
)


def repeated(args: Sequence[Any]) -> tuple[int, ...]:
    """The positions of arguments that are the very tensor, or tensors, of the argument before; of
    interest for `SQUARES`.

    >>> x = torch.ones(2)
    >>> repeated((x, x)), repeated((x, x + 1))
    ((1,), ())
    """
    pairs = enumerate(pairwise(args), start=1)
    return tuple(position for position, (one, other) in pairs if _is_same(one, other))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_, one, other))
    return one is other and isinstance(one, torch.Tensor)


def _as_repeated(value: Argument) -> Argument:
    if isinstance(value, TensorSpec):
        return value._replace(is_repeated=True)
    return tuple(map(_as_repeated, value)) if isinstance(value, tuple) else value


def signature_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> OpSignature:
    """The op and its arguments by name, defaults filled in, as plain values."""
    schema = func._schema
    again = repeated(args) if func in SQUARES else ()
    arguments: list[tuple[str, Argument]] = []
    for position, parameter in enumerate(schema.arguments):
        if position < len(args) and not parameter.kwarg_only:
            value = args[position]
        elif parameter.name in kwargs:
            value = kwargs[parameter.name]
        else:
            value = parameter.default_value if parameter.has_default_value() else None
        argument = argument_of(value)
        arguments.append(
            (parameter.name, _as_repeated(argument) if position in again else argument)
        )
    outputs = out if isinstance(out, (list, tuple)) else (out,)
    return OpSignature(
        op=schema.name,
        overload=schema.overload_name or "default",
        arguments=tuple(arguments),
        outputs=tuple(argument_of(item) for item in outputs),
    )


def math_mode() -> MathMode:
    """The switches of torch that decide which kernels run, as they stand now."""
    return MathMode(
        matmul_tf32=torch.get_float32_matmul_precision() != "highest",
        cudnn_tf32=torch.backends.cudnn.allow_tf32,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_enabled=torch.backends.cudnn.enabled,
        torch=release_of(torch.__version__),
    )
