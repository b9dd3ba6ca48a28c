"""Weighted covariance, which reads its weights to check them: those not known are valid."""

from __future__ import annotations

from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.values.known import KnownValues


def install_covariance(patches: Patches, known: KnownValues) -> None:
    """`torch.cov` and `Tensor.cov` with weights, until `patches.restore()`."""
    plain: Any = torch.cov

    def cov(
        input: torch.Tensor,
        *,
        correction: int = 1,
        fweights: torch.Tensor | None = None,
        aweights: torch.Tensor | None = None,
    ) -> Any:
        weights = [weight for weight in (fweights, aweights) if weight is not None]
        if all(known.is_sure(weight) for weight in weights):
            return plain(input, correction=correction, fweights=fweights, aweights=aweights)
        return _weighted(input, correction, weights, aweights)

    def method(self: torch.Tensor, **options: Any) -> Any:
        return cov(self, **options)

    patches.set(torch, "cov", cov)
    patches.set(torch.Tensor, "cov", method)


def _weighted(
    input: torch.Tensor,
    correction: int,
    weights: list[torch.Tensor],
    aweights: torch.Tensor | None,
) -> torch.Tensor:
    """As aten/src/ATen/native/Correlation.cpp (2.13) does it, each of its checks passed."""
    data = input.unsqueeze(0) if input.ndim < 2 else input
    for weight in weights:
        _check(weight.min().ge(0))
    weight = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = weight.sum()
    _check(total.ne(0))
    average = (data * weight).sum(1) / total
    if aweights is not None and correction != 0:
        norm = total - correction * (weight * aweights).sum() / total
    else:
        norm = total - correction
    _check(norm.le(0))
    data = data - average.unsqueeze(1)
    return torch.true_divide(data.mm((data * weight).t().conj()), norm).squeeze()


def _check(truth: torch.Tensor) -> None:
    """How torch reads a truth from the GPU (is_scalar_tensor_true)."""
    torch.equal(truth, torch.ones_like(truth))
