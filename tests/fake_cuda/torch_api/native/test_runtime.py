"""CUDA's runtime library as torch.cuda.cudart() hands it out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import UnansweredCallError


def test_a_profiler_of_nvidias_may_be_started_and_stopped() -> None:
    with neusight.forecast_on("H100") as forecast:
        with torch.cuda.profiler.profile():
            torch.ones(8, device="cuda").relu_()
        runtime: Any = torch.cuda.cudart()
        assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info()
        assert runtime.cudaHostRegister(4096, 4096, 0) == runtime.cudaError.success
        torch.cuda._sleep(10_000)
        with pytest.raises(UnansweredCallError, match=r"cudart\(\).cudaMalloc at test_runtime.py"):
            runtime.cudaMalloc(8)

    assert any("_sleep" in text for text in forecast.warnings)
    assert [kernel.name for kernel, _ in forecast.kernels][-1] == "relu"


def test_versions_and_errors_are_numbered_as_by_cudas_headers() -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda")
        runtime: Any = torch.cuda.cudart()
        words = [runtime.cudaGetErrorString(code) for code in (0, 34)]
        versions = [core._cuda_getCompiledVersion(), len(core._nccl_unique_id())]

    assert words == ["no error", "error 34"]
    assert versions == [13000, 128]
