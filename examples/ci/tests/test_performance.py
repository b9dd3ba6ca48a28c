"""Performance as tests: budgets in figures, and a baseline beside this file."""

from __future__ import annotations

import pytest
from train import main

from neusight.integrations.check.pytest_plugin import Forecaster, ForecastRegression


@pytest.mark.latency_budget(gpu="H100", ms=40)
@pytest.mark.memory_budget(gpu="L40S", gib=20)
def test_a_step_stays_within_its_budgets() -> None:
    main(num_steps=3)


def test_a_step_is_no_slower_than_it_was(forecast_regression: ForecastRegression) -> None:
    forecast_regression("H100", main, num_steps=3)


def test_the_model_fits_a_workstation_gpu(forecast: Forecaster) -> None:
    found = forecast("RTX_4090", main, num_steps=3)

    assert found.fits
