"""Answers that programs ask for while they are compiled: Dynamo looks into this file, unlike others
of neusight, and compiles what stands here with the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.recording.tensor import ForecastTensor

__all__ = ["is_tracers_tensor", "tensor_maker"]

_FakeTensor = torch._subclasses.FakeTensor


def is_tracers_tensor(x: object) -> bool:
    """Whether somebody traces the program with tensors that hold no data; those of a forecast stand
    for a GPU's."""
    return isinstance(x, _FakeTensor) and not isinstance(x, ForecastTensor)


def tensor_maker(make: Callable[..., Any], make_pinned: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.tensor`, which asks CUDA for pinned memory in C++ and without any op."""

    def tensor(data: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        if not pin_memory:
            return make(data, *args, **kwargs)
        return make_pinned(data, *args, **kwargs)

    return tensor
