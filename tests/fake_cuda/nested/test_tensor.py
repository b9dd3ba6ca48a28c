"""A nested tensor of the strided layout says of itself what a GPU's says."""

from __future__ import annotations

import torch

import neusight
from neusight.fake_cuda.nested.tensor import NestedTensor, nested_of


def test_it_is_nested_on_the_gpu() -> None:
    with neusight.forecast_on("H100"):
        tensor = nested_of(torch.ones(8, 4, device="cuda"), [3, 5])
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.is_nested, tensor.is_cuda, tensor.device.type) == (True, True, "cuda")
        assert (tensor.ndim, tensor.dtype, len(tensor)) == (3, torch.float32, 2)
        assert "lengths=[3, 5]" in repr(tensor)


def test_gradients_are_those_of_its_rows() -> None:
    with neusight.forecast_on("H100"):
        tensor = nested_of(torch.ones(8, 4, device="cuda"), [3, 5]).requires_grad_()
        assert tensor.requires_grad
        assert tensor.grad is None
        tensor.to_padded_tensor(0.0).sum().backward()
        assert isinstance(tensor.grad, NestedTensor)
