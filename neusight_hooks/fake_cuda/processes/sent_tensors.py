"""Tensors that one process sends another: those on a GPU are there too, without data."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor


def install_sent_tensors(patches: Patches) -> None:
    """multiprocessing sends forecast tensors as CUDA does, by what names their memory."""
    reducers: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]

    def reduced(tensor: ForecastTensor) -> Any:
        if tensor.device.type == "cpu":
            # What is sent is a file descriptor, which is closed with the values.
            tensor._sent = tensor.__reduce_ex__(2)  # type: ignore[attr-defined]
            return tensor._sent  # type: ignore[attr-defined]
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        about = (tensor.dtype, str(tensor.device), tensor.requires_grad, is_parameter)
        return _received, (tuple(tensor.shape), tensor.stride(), *about)

    patches.put(reducers, ForecastTensor, reduced)


def _received(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    found = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if is_parameter:
        return torch.nn.Parameter(found, requires_grad)
    return found.requires_grad_(requires_grad)
