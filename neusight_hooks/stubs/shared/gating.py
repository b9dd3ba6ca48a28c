"""silu(x) · y in one kernel, forward and backward, as several packages have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neusight.stubs.stub_ops import differentiable, make_op


def silu_product(namespace: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The op of that package."""
    product: Any = make_op(
        f"{namespace}::swiglu(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x)
    )
    gradients = make_op(
        f"{namespace}::swiglu_backward(Tensor x, Tensor y, Tensor grad) -> (Tensor, Tensor)",
        lambda x, y, grad: (torch.empty_like(x), torch.empty_like(y)),
    )

    def backward(saved: Sequence[Tensor], given: Sequence[Any], grad: Tensor) -> Any:
        return gradients(*saved, grad)

    differentiable(product, backward, saves=lambda inputs, out: inputs)
    return product  # type: ignore[no-any-return]
