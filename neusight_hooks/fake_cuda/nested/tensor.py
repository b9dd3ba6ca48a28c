"""A nested tensor of the strided layout on the forecast's GPU, with the functions that take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site

#: Runs a function of torch of which an argument is a nested tensor.
NestedFunction = Callable[..., Any]

#: By the function's name: `linear` is that of torch.nn.functional, `unbind` the method's too.
FUNCTIONS: dict[str, NestedFunction] = {}

_NO_SIZES = (
    "Internal error: NestedTensorImpl doesn't support sizes. Please file an issue. size(i) returns "
    "regular dimensions; layout=torch.jagged has a shape."
)


def on_nested(*names: str) -> Callable[[NestedFunction], NestedFunction]:
    """Registers what runs torch's functions of these names."""

    def register(run: NestedFunction) -> NestedFunction:
        FUNCTIONS.update(dict.fromkeys(names, run))
        return run

    return register


class NestedTensor(torch.Tensor):
    """Tensors of equal dimensions but the first (`lengths`), all rows of which are in `packed`,
    whose dimensions after the first stand in `order`. Functions are run on `packed`, through which
    gradients flow too."""

    packed: Any
    lengths: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = _name_of(func)
        run = FUNCTIONS.get(name)
        if run is None:
            raise UnmappedOpError(_cannot(name))
        return run(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise UnmappedOpError(_cannot(func._schema.name))

    @property
    def is_nested(self) -> bool:  # type: ignore[override]
        return True

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        raise RuntimeError(_NO_SIZES)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return bool(self.packed.requires_grad)

    @property
    def grad(self) -> Any:  # type: ignore[override]
        own = self.packed.grad
        return None if own is None else nested_of(own, self.lengths, self.order)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        device: torch.device = self.packed.device
        return device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.order) + 1

    @property
    def num_regular(self) -> int:
        """The place of the dimension of lengths among all."""
        return self.order.index(0) + 1

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"nested_tensor(..., lengths={list(self.lengths)}, dtype={self.packed.dtype}, "
            f"device='{self.device}', forecast=True)"
        )


def nested_of(packed: Any, lengths: Sequence[int], order: Sequence[int] = ()) -> NestedTensor:
    dims = tuple(order) or tuple(range(packed.dim()))
    sizes = [len(lengths), *(max(lengths, default=0) if d == 0 else packed.shape[d] for d in dims)]
    make: Any = torch.Tensor._make_wrapper_subclass
    with torch._C.DisableTorchFunctionSubclass():
        tensor: NestedTensor = make(NestedTensor, sizes, dtype=packed.dtype, device=packed.device)
    tensor.packed, tensor.lengths, tensor.order = packed, tuple(lengths), dims
    return tensor


def _name_of(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        return str(func.__self__.__name__)
    return name


def _cannot(name: str) -> str:
    return (
        f"{name} at {call_site()} is not forecast for nested tensors of the strided layout. Make "
        "them with layout=torch.jagged, which torch develops, or compute on to_padded_tensor() or "
        "unbind()."
    )
