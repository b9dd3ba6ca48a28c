"""What goes into a layer that ranks share, and what comes out: Megatron's four functions; and its
loss over a vocabulary that they share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _gathered(x: Tensor, group: Any) -> Tensor:
    found = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    dist.all_gather_into_tensor(found, x.contiguous(), group=group)
    return found


def _scattered(x: Tensor, group: Any) -> Tensor:
    found = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(found, x.contiguous(), group=group)
    return found


def _summed(x: Tensor, group: Any) -> Tensor:
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


class Shared(torch.autograd.Function):
    """Into a split layer: as it is forward, summed backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, context.group), None


class Summed(torch.autograd.Function):
    """Out of a split layer: summed forward, as it is backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Gathered(torch.autograd.Function):
    """Into a split layer from parts of the sequence (dimension 0): gathered, scattered backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, context.group), None


class Scattered(torch.autograd.Function):
    """Out of a split layer into parts of the sequence: scattered, gathered backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return _scattered(x, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, context.group), None


def split_cross_entropy(logits: Tensor, group: Any) -> Tensor:
    """Cross entropy of logits whose vocabulary the ranks share; the first of each is the true
    one."""
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    logits = logits - largest[..., None]
    total = Summed.apply(logits.exp().sum(-1), group)
    own = Summed.apply(logits[..., 0].clone(), group)
    return (total.log() - own).mean()
