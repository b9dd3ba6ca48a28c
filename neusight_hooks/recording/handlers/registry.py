"""The functions that run ops in place of torch's fake kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neusight.recording.recorder import Handler, Recorder

#: What an op was called with.
Args = Sequence[Any]
Kwargs = Mapping[str, Any]

#: Makes what an op returns.
Allocation = Callable[[Recorder, Args, Kwargs], Any]

#: By the overload that they run.
HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers how an op whose result depends on values is run."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


def allocates(*functions: Any, on_one_device: bool = True) -> Callable[[Allocation], Allocation]:
    """Registers what an op returns that torch cannot run without data: the function makes it of the
    op's arguments, which are on one device, and the op is recorded."""

    def register(allocate: Allocation) -> Allocation:
        @handles(*functions)
        @functools.wraps(allocate)
        def handler(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
            kernels = recorder.fake_kernels
            if on_one_device:
                kernels.require_one_device(func, args, kwargs)
            kernels.refuse(func, args, kwargs)
            try:
                out = allocate(recorder, args, kwargs)
            except (IndexError, TypeError, ValueError) as error:
                raise kernels.stated_error(func, args, kwargs) or error from None
            recorder.record_handled(func, args, kwargs, out)
            return out

        return allocate

    return register


def overloads(*names: str) -> list[Any]:
    """All overloads of these ops, as far as this torch has them."""
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
