"""One block that is recorded for several GPUs."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

import neusight
from neusight import ForecastStateError, UnknownGPUError

pytestmark = pytest.mark.filterwarnings("ignore:no CUDA work")


def _attend() -> None:
    query = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        F.scaled_dot_product_attention(query, query, query)


def _names(forecast: neusight.Forecast) -> set[str]:
    return {kernel.name for kernel, _ in forecast.kernels}


def test_each_gpu_gets_the_attention_that_it_would_choose() -> None:
    with neusight.forecast_on(["H100", "A100", "A100"]) as forecast:
        _attend()
    with neusight.forecast_on("A100") as alone:
        _attend()
    assert "cudnn_attention" in _names(forecast)
    there = forecast.on("A100")
    assert there.recording.gpu == "A100-SXM4-80GB"
    assert there.summary() == alone.summary()
    assert forecast.on("A100").on("H100").summary() == forecast.summary()


def test_a_recording_with_equal_answers_serves_a_third_gpu() -> None:
    with neusight.forecast_on(["H100", "A100"]) as forecast:
        _attend()
    assert forecast.on("A10G").recording.gpu == "A100-SXM4-80GB"


def test_one_gpu_alone_names_the_way_to_record_both() -> None:
    with neusight.forecast_on("H100") as forecast:
        _attend()
    with pytest.raises(ForecastStateError, match=r"forecast_on\(\['H100-SXM5-80GB', 'A100-"):
        forecast.on("A100")


def test_a_decorated_function_is_recorded_for_both() -> None:
    attend = neusight.forecast_on(["H100", "A100"])(_attend)
    attend()
    assert attend.forecast.on("A100").recording.gpu == "A100-SXM4-80GB"  # type: ignore[attr-defined]


def test_the_program_sees_one_block_and_its_output_once(capfd: pytest.CaptureFixture[str]) -> None:
    seen = []
    with neusight.forecast_on(["H100", "A100"]):
        seen.append(torch.cuda.get_device_name())
        print("printed")
        os.write(1, b"written\n")
    assert seen == ["NVIDIA H100 80GB HBM3"]
    assert capfd.readouterr().out.count("printed") == 1


def test_a_process_that_leaves_no_recording_is_named() -> None:
    parent = os.getpid()
    with neusight.forecast_on(["H100", "A100"]) as forecast:
        _attend()
        if os.getpid() != parent:
            os._exit(7)
    assert forecast.warnings[-1].endswith("on A100-SXM4-80GB: its process ended with exit code 7")
    with pytest.raises(ForecastStateError):
        forecast.on("A100")


def test_an_error_that_only_the_other_gpu_meets_is_in_its_forecast() -> None:
    with neusight.forecast_on(["H100", "A100"]) as forecast:
        _attend()
        if torch.cuda.get_device_capability() < (9, 0):
            raise RuntimeError("needs Hopper")
    assert "needs Hopper" in str(forecast.on("A100").recording.options)
    assert not forecast.warnings


def test_no_gpu_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(ValueError, match="empty list"):
        neusight.forecast_on([])
    with pytest.raises(UnknownGPUError):
        neusight.forecast_on(["H100", "H9000"])
