"""DeepSpeed's engine is refused with the line and what to do."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.predictors.errors import UnmappedOpError
from neusight.predictors.kernel import KernelClass


def test_its_engine_is_refused() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        import deepspeed  # type: ignore[import-not-found]

        with pytest.raises(UnmappedOpError, match=r"test_deepspeed\.py:\d+ .* FSDP"):
            deepspeed.initialize(model=None)


def test_the_extension_that_its_adam_compiles_is_one_kernel_a_list() -> None:
    from torch.utils import cpp_extension

    with neusight.forecast_on("H100") as forecast:
        lists = [[torch.ones(64, device="cuda") for _ in range(2)] for _ in range(4)]
        flag = torch.zeros(1, dtype=torch.int, device="cuda")
        adam = cpp_extension.load("fused_adam", ["multi_tensor_adam.cu"])
        adam.multi_tensor_adam(2048, flag, lists, 1e-3, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)

    [kernel] = [
        kernel for kernel, _ in forecast.kernels if kernel.kernel_class is KernelClass.OPTIMIZER
    ]
    assert kernel.num_bytes == 128 * 4 * 7
