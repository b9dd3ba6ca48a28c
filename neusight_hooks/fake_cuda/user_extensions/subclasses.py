"""Subclasses of torch.Tensor that are made of forecast tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor, has_own_dispatch

#: Where a class that holds no data keeps the subclass it was made of.
_MADE_OF = "_made_of"


def install_subclasses(patches: Patches) -> None:
    """`as_subclass` and `_make_subclass` give an object of the subclass that is a forecast tensor
    too, where the subclass has no dispatch of its own."""
    tensor: Any = torch.Tensor
    plain_as, plain_make = tensor.as_subclass, tensor._make_subclass

    def as_subclass(self: Any, cls: Any) -> Any:
        if not isinstance(self, ForecastTensor) or not _is_plain(cls):
            return plain_as(self, cls)
        with torch._C.DisableTorchFunctionSubclass():
            made = self.view_as(self)
        made.__class__ = _both(cls)
        return made

    def make_subclass(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        cls = vars(cls).get(_MADE_OF, cls)  # `type(weight)(data)`, as copies are made
        if options or not isinstance(data, ForecastTensor) or not _is_plain(cls):
            return plain_make(cls, data, require_grad, **options)
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            made: Any = data.detach()
        made.__class__ = _both(cls)
        if issubclass(cls, torch.nn.Parameter):
            made._is_param = True
        return made.requires_grad_(require_grad)

    patches.set(tensor, "as_subclass", as_subclass)
    patches.set(tensor, "_make_subclass", staticmethod(make_subclass))


def _is_plain(cls: Any) -> bool:
    """Whether it only adds to what a tensor is."""
    return (
        isinstance(cls, type)
        and cls not in (torch.Tensor, torch.nn.Parameter)
        and not issubclass(cls, ForecastTensor)
        and not has_own_dispatch(cls)
        and "__slots__" not in vars(cls)
    )


@cache
def _both(cls: Any) -> Any:
    """The subclass, holding no data."""
    names: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    names[_MADE_OF] = cls
    given = cls.__torch_function__
    if given is not torch._C._disabled_torch_function_impl:  # as nn.Parameter's

        def torch_function(
            made: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return given(func, tuple(cls if t is made else t for t in types), args, kwargs or {})

        # Of its own, else torch switches it off, as for all that dispatch themselves.
        names["__torch_function__"] = classmethod(torch_function)
    return type(cls)(cls.__name__, (cls, ForecastTensor), names)
