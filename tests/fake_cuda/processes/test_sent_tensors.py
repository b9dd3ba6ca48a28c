"""Tensors that multiprocessing sends are made again where they arrive."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import neusight


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x.half().requires_grad_(),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
        torch.nn.Parameter,
    ],
)
def test_it_is_the_same_but_for_its_memory(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with neusight.forecast_on("H100"):
        sent = make(torch.ones(2, 3, device="cuda"))
        arrived = pickle.loads(ForkingPickler.dumps(sent))

        for what in (sent, arrived):
            assert what.device == torch.device("cuda", 0)
        assert (type(arrived), arrived.shape, arrived.stride()) == (
            type(sent), sent.shape, sent.stride(),
        )  # fmt: skip
        assert (arrived.dtype, arrived.requires_grad) == (sent.dtype, sent.requires_grad)
        assert arrived.data_ptr() != sent.data_ptr()
