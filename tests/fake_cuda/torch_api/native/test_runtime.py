"""CUDA's runtime library as torch.cuda.cudart() hands it out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neusight
from neusight.fake_cuda.torch_api.native import runtime
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


@pytest.mark.parametrize(
    ("version", "number"), [("13.0", 13_000), ("12.6", 12_060), ("11.8", 11_080), (None, 0)]
)
def test_the_version_of_cuda_is_one_number(
    version: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)

    assert runtime._compiled_version() == number


@pytest.mark.parametrize(("cycles", "is_said"), [(1000, False), (1001, True)])
def test_a_spinning_kernel_is_said_to_be_left_out_where_it_takes_any_time(
    cycles: int, is_said: bool
) -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda")
        torch.cuda._sleep(cycles)
        assert core._cuda_getHipblasltVersion() == 0

    assert any("_sleep" in text for text in forecast.warnings) is is_said
