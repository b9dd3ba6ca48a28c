"""CUDA code of the program's own: launched by name, or refused with the line and what to do."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import UnmappedOpError

SOURCE = 'extern "C" __global__ void scale(float* x, int n) { }'


def test_a_kernel_of_nvrtc_is_launched_by_name_and_priced_by_its_tensors() -> None:
    with neusight.forecast_on("H100") as forecast:
        cuda: Any = torch.cuda
        kernel = cuda._compile_kernel(SOURCE, "scale")
        x = torch.ones(4096, device="cuda")
        kernel.set_shared_memory_config(1024)
        kernel(grid=(16, 1, 1), block=(256, 1, 1), args=[x, 4096])
        with pytest.raises(ValueError, match="must be CUDA tensors"):
            kernel(args=[torch.ones(1)])
    [launched] = [kernel for kernel, _ in forecast.kernels if kernel.name == "scale"]

    assert (launched.num_bytes, launched.kernel_class.value) == (4096 * 4, "custom")
    assert any('register_op("nvrtc::scale")' in line for line in forecast.warnings)


def test_a_kernel_is_called_as_torch_s_own() -> None:
    from torch.cuda import _utils

    cuda: Any = torch.cuda
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        kernel = cuda._compile_kernel(SOURCE, "scale")
    kernels: Any = (type(kernel), _utils._CudaKernel)

    own, torch_s = (
        [(each.name, each.default) for each in signature(kind.__call__).parameters.values()]
        for kind in kernels
    )

    assert own == torch_s


def test_an_extension_with_cuda_code_is_refused_with_what_to_do() -> None:
    from torch.utils import cpp_extension

    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        with pytest.raises(UnmappedOpError, match=r"test_cuda_sources\.py:\d+ .*register_fake"):
            cpp_extension.load_inline("mine", "", cuda_sources=SOURCE)
        with pytest.raises(UnmappedOpError, match="'mine'"):
            cpp_extension.load("mine", ["mine.cpp", "mine.cu"])
