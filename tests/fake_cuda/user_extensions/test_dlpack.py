"""Tensors handed to other libraries and back."""

from __future__ import annotations

from typing import Any

import torch

import neusight


def test_a_tensor_comes_back_from_dlpack_with_its_memory() -> None:
    exporter: Any = torch  # torch's stubs do not export its functions of DLPack
    packer: Any = torch.utils.dlpack
    with neusight.forecast_on("H100"):
        x = torch.ones(4, 4, device="cuda")
        assert exporter.from_dlpack(x).data_ptr() == x.data_ptr()
        again = packer.from_dlpack(packer.to_dlpack(x))
        assert (again.data_ptr(), again.shape) == (x.data_ptr(), (4, 4))
        assert exporter.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
        assert exporter.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]
