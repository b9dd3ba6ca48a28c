"""Settings that a program makes and reads back."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import neusight


def test_a_wait_is_an_error_where_the_program_wants_to_know_of_waits() -> None:
    with neusight.forecast_on("H100"):
        x = torch.ones(8, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        assert torch.cuda.get_sync_debug_mode() == 2
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            x.sum().item()
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
            x.cpu()
        torch.cuda.set_sync_debug_mode(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x.cpu()


def test_settings_are_read_back_and_are_reset_in_the_next_forecast() -> None:
    from torch.cuda import tunable

    core: Any = torch._C
    before = torch.backends.cudnn.benchmark_limit
    for _ in range(2):
        with neusight.forecast_on("H100") as forecast:
            torch.ones(8, device="cuda").relu_()
            assert (tunable.is_enabled(), tunable.get_max_tuning_iterations()) == (False, 100)
            tunable.enable()
            tunable.set_max_tuning_iterations(3)
            assert (tunable.is_enabled(), tunable.get_max_tuning_iterations()) == (True, 3)
            assert torch.backends.cudnn.benchmark_limit == 10
            torch.backends.cudnn.benchmark_limit = 3
            assert core._cuda_get_cudnn_benchmark_limit() == 3
            with torch.backends.cudnn.flags(benchmark=True):
                assert torch.backends.cudnn.benchmark_limit == 10
            assert torch.backends.cudnn.benchmark_limit == 3
            plans = torch.backends.cuda.cufft_plan_cache
            assert (plans.max_size, plans.size) == (4096, 0)
            plans.max_size = 10
            assert plans[0].max_size == 10
            torch.backends.cuda.preferred_linalg_library("magma")
            assert "Magma" in str(torch.backends.cuda.preferred_linalg_library())

        assert any("torch.cuda.tunable" in text for text in forecast.warnings)
        assert torch.backends.cudnn.benchmark_limit == before


@pytest.mark.parametrize("is_enabled", [True, False])
def test_only_a_search_for_kernels_that_is_enabled_is_said(is_enabled: bool) -> None:
    from torch.cuda import tunable

    with neusight.forecast_on("H100") as forecast:
        tunable.set_max_tuning_iterations(3)
        tunable.enable(is_enabled)
        torch.ones(8, device="cuda")

    assert ["tunable was enabled" in line for line in forecast.warnings] == [True] * is_enabled
