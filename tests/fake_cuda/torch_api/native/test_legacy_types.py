"""Types of PyTorch's first years."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neusight


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_of_the_gpu_takes_its_memory() -> None:
    cuda: Any = torch.cuda
    with neusight.forecast_on("H100"):
        held = cuda.HalfStorage(1024)
        assert (len(held), held.dtype) == (1024, torch.float16)
        assert torch.cuda.memory_allocated() >= 2048
        assert cuda.FloatStorage([1.0, 2.0]).size() == 2


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_tensor_has_the_size_that_is_said_in_any_form() -> None:
    cuda: Any = torch.cuda
    with neusight.forecast_on("H100"):
        make = cuda.sparse.FloatTensor
        made = [make(torch.Size([2, 3])), make(2, 3), make()]
        shapes = [tuple(tensor.shape) for tensor in made]

    assert shapes == [(2, 3), (2, 3), (0,)]
