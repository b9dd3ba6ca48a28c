"""Answers that programs ask for while they are compiled: Dynamo looks into this file, unlike others
of neusight, and compiles what stands here with the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.recording.tensor import ForecastTensor

_FakeTensor = torch._subclasses.FakeTensor


def is_tracers_tensor(x: object) -> bool:
    """Whether the program is traced with tensors that hold no data; those of a forecast stand
    for a GPU's."""
    return isinstance(x, _FakeTensor) and not isinstance(x, ForecastTensor)


def tensor_maker(make: Callable[..., Any], make_pinned: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.tensor`, which asks CUDA for pinned memory in C++ and without any op."""

    def tensor(data: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        if not pin_memory:
            return make(data, *args, **kwargs)
        return make_pinned(data, *args, **kwargs)

    return tensor


def legacy_type_taker(plain: Callable[..., Any], dtypes: dict[str, torch.dtype]) -> Any:
    """`Tensor.type`, which refuses "torch.cuda.HalfTensor" and the class of that name on a CPU
    build; `dtypes` by the names of such classes."""

    names = {dtype: name for name, dtype in dtypes.items()}

    def type_of(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None and self.layout is torch.strided and self.dtype in names:
            return f"torch.{'cuda.' if self.is_cuda else ''}{names[self.dtype]}"
        if isinstance(dtype, torch.dtype):
            return self.to(dtype, *args, **kwargs)
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return self.to("cuda", dtypes[dtype[len("torch.cuda.") :]])
        if hasattr(dtype, "held_dtype"):
            return self.to("cuda", dtype.held_dtype)
        return plain(self) if dtype is None else plain(self, dtype, *args, **kwargs)

    return type_of


def override_finder(plain: Callable[..., bool], own: type) -> Callable[..., bool]:
    """`torch.overrides.has_torch_function`, for which the class `own` of a forecast stands for
    tensors that a GPU has by itself: torch.nn takes its fast paths with them."""

    def has_torch_function(relevant_args: Any) -> bool:
        return plain(tuple([arg for arg in relevant_args if not isinstance(arg, own)]))

    return has_torch_function
