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
