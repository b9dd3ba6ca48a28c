"""Lightning's callback ends steps and the training, and only while a forecast is open."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import OptionError

pytestmark = pytest.mark.skipif(
    find_spec("lightning") is None, reason="Lightning is not installed: pip install lightning"
)

UNUSED: Any = None


def ending(steps: int | None) -> Any:
    """The callback; Lightning is loaded where it is used, not where tests are collected."""
    from neusight.integrations.frameworks.lightning import LightningForecastCallback

    return LightningForecastCallback(steps=steps)


def trainer(global_step: int = 0) -> Any:
    return SimpleNamespace(global_step=global_step, should_stop=False)


def batch(callback: Any, run: Any, *, steps_optimizer: bool = True) -> None:
    torch.ones(8, device="cuda") + 1
    run.global_step += steps_optimizer
    callback.on_train_batch_end(run, UNUSED, None, None, 0)


def test_each_optimizer_step_ends_a_step_and_the_last_the_training() -> None:
    run, callback = trainer(), ending(3)

    with neusight.forecast_on("H100") as forecast:
        callback.on_train_start(run, UNUSED)
        for _ in range(3):
            assert not run.should_stop
            batch(callback, run)

    assert run.should_stop
    assert sum(step.count for step in forecast.recording.steps) == 3


def test_accumulated_batches_are_one_step() -> None:
    run, callback = trainer(), ending(None)

    with neusight.forecast_on("H100") as forecast:
        callback.on_train_start(run, UNUSED)
        for number in range(4):
            batch(callback, run, steps_optimizer=number % 2 == 1)

    assert sum(step.count for step in forecast.recording.steps) == 2
    assert not run.should_stop


def test_without_a_forecast_the_training_goes_on() -> None:
    run, callback = trainer(7), ending(1)

    callback.on_train_start(run, UNUSED)
    run.global_step += 1
    callback.on_train_batch_end(run, UNUSED, None, None, 0)

    assert not run.should_stop


def test_a_second_fit_counts_from_zero() -> None:
    run, callback = trainer(), ending(2)

    with neusight.forecast_on("H100"):
        callback.on_train_start(run, UNUSED)
        batch(callback, run)
        callback.on_train_start(run, UNUSED)
        batch(callback, run)

    assert not run.should_stop


def test_no_steps_at_all_is_refused() -> None:
    with pytest.raises(OptionError, match="it must be 1 or more"):
        ending(0)
