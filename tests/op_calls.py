"""Calls of ops as a recording holds them, made by hand or recorded from a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from neusight.ops import kernels_of, map_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

MATH = MathMode()


def spec(
    *shape: int, dtype: str = "float32", device: str = "cuda", channels_last: bool = False
) -> TensorSpec:
    """A dense tensor."""
    order = [*range(len(shape))]
    if channels_last:
        order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return TensorSpec(shape, tuple(strides), dtype, device)


def transposed(tensor: TensorSpec) -> TensorSpec:
    """The .t() of a matrix."""
    return tensor._replace(shape=tensor.shape[::-1], stride=tensor.stride[::-1])


def call(op: str, *outputs: Argument, overload: Any = "default", **arguments: Any) -> OpSignature:
    """A signature of an aten op; overload is Any so that arguments may be given as a dict."""
    name = op if "::" in op else f"aten::{op}"
    arguments = {("input" if key == "input_" else key): v for key, v in arguments.items()}
    return OpSignature(name, overload, tuple(arguments.items()), outputs)


def convolution(
    dtype: str, *, channels_last: bool = False, bias: bool = False, result: bool | None = None
) -> OpSignature:
    """8 images of 16 x 32 x 32 to 64 channels by 3 x 3; `result`: it is stored as NHWC (default:
    as the image is)."""
    is_result = channels_last if result is None else result
    return call(
        "convolution",
        spec(8, 64, 32, 32, dtype=dtype, channels_last=is_result),
        input_=spec(8, 16, 32, 32, dtype=dtype, channels_last=channels_last),
        weight=spec(64, 16, 3, 3, dtype=dtype, channels_last=channels_last),
        bias=spec(64, dtype=dtype) if bias else None,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=1,
    )


def kernels(signature: OpSignature, math: MathMode = MATH) -> tuple[Kernel, ...]:
    """The kernels of an op that must be mapped."""
    mapping = map_op(signature, math)
    assert mapping.is_mapped, mapping.reason
    return mapping.kernels


def names(signature: OpSignature, math: MathMode = MATH) -> list[str]:
    return [kernel.name for kernel in kernels(signature, math)]


def argument(value: Any) -> Argument:
    """A value as a recording holds it."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorSpec(tuple(value.shape), tuple(value.stride()), dtype)
    if isinstance(value, (list, tuple)):
        return tuple(argument(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value).removeprefix("torch.")


def signature(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> OpSignature:
    """A call as a recording holds it, with defaults filled in."""
    given = dict(zip((p.name for p in func._schema.arguments), args, strict=False)) | dict(kwargs)
    arguments = tuple(
        (p.name, argument(given.get(p.name, p.default_value))) for p in func._schema.arguments
    )
    outputs = tuple(out) if isinstance(out, (list, tuple)) else (out,)
    return OpSignature(
        func._schema.name,
        func._schema.overload_name or "default",
        arguments,
        tuple(argument(item) for item in outputs),
    )


class Listener(TorchDispatchMode):
    """Collects every op on meta tensors, with torch's own count of its FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[OpSignature, int | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        flops = count(*args, **kwargs, out_val=out) if count else None
        self.calls.append((signature(func, args, kwargs, out), flops))
        return out


def recorded_calls(program: Callable[[], Any]) -> list[tuple[OpSignature, int | None]]:
    """The ops of a program on the meta device, without those on the host."""
    with torch.device("meta"), Listener() as listener:
        program()
    calls: list[tuple[OpSignature, int | None]] = listener.calls
    return calls


def check_flops(program: Callable[[], Any], num_counted: int) -> None:
    """Our FLOPs of products, convolutions and attention are torch's."""
    classes = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)
    counted = [(call, flops) for call, flops in recorded_calls(program) if flops is not None]

    assert len(counted) == num_counted
    for call, flops in counted:
        ours = sum(k.flops for k in kernels_of(call, MATH) if k.kernel_class in classes)
        assert ours == flops, call.op
