"""The Trainer's callback ends steps and the training, and only while a forecast is open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neusight
from neusight.predictors.errors import OptionError

pytest.importorskip("transformers", reason="transformers is not installed")

from neusight.integrations.frameworks.transformers import TrainerForecastCallback


def test_each_step_ends_one_and_the_last_the_training() -> None:
    control: Any = SimpleNamespace(should_training_stop=False)
    unused: Any = None
    callback = TrainerForecastCallback(steps=3)

    with neusight.forecast_on("H100") as forecast:
        callback.on_train_begin(unused, unused, control)
        for _ in range(3):
            assert not control.should_training_stop
            torch.ones(8, device="cuda") + 1
            callback.on_step_end(unused, unused, control)

    assert control.should_training_stop
    assert sum(step.count for step in forecast.recording.steps) == 3


def test_without_a_forecast_the_training_goes_on() -> None:
    control: Any = SimpleNamespace(should_training_stop=False)
    unused: Any = None

    TrainerForecastCallback(steps=1).on_step_end(unused, unused, control)

    assert not control.should_training_stop


def test_no_steps_at_all_is_refused() -> None:
    with pytest.raises(OptionError, match="it must be 1 or more"):
        TrainerForecastCallback(steps=0)
