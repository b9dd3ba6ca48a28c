"""Ops as TorchScript calls them: under its tracer, and with numbers in place of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten

#: What `torch.jit.trace` records what runs now in; None where nothing is traced.
is_traced = torch._C._get_tracing_state
_set_state: Any = vars(torch._C)["_set_tracing_state"]  # torch's stub file leaves it out

#: The dispatch key of the tracer.
_TRACER = "Tracer"

#: The numbers of Python, which are no tensors.
NUMBERS = (bool, int, float, complex)


@contextmanager
def traced() -> Iterator[None]:
    """Ops in here are traced although they are called below the tracer, by a dispatch mode."""
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, is_excluded)


@contextmanager
def untraced() -> Iterator[None]:
    """What runs in here is not traced: sizes are plain numbers."""
    state = is_traced()
    with traced():  # torch changes the state only where the tracer is not excluded
        _set_state(None)
        try:
            yield
        finally:
            _set_state(state)


def recorded_as(func: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
    """The op and its arguments that the tracer records for one that it leaves out because its
    kernel calls the other (tools/autograd/gen_trace_type.py, DONT_RECORD_TRACE)."""
    if func is not aten.convolution.default:
        return None
    backends = torch.backends.cudnn
    flags = (backends.benchmark, backends.deterministic, backends.enabled, backends.allow_tf32)
    return aten._convolution.default, (*args, *flags)


def tensors_for_numbers(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments with a tensor wherever the op declares one: the constants of TorchScript's
    graphs arrive as numbers, with which few ops can be called from Python."""
    return [
        torch.tensor(arg)
        if type(arg) in NUMBERS and isinstance(parameter.type, torch.TensorType)
        else arg
        for arg, parameter in zip(args, func._schema.arguments, strict=False)
    ]
