"""A callback for Hugging Face's Trainer that notifies an open forecast where steps end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from neusight.predictors.errors import OptionError
from neusight.session import open_forecast

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["TrainerForecastCallback"]


class TrainerForecastCallback(TrainerCallback):
    """Ends a step of the open forecast with each optimizer step, and the training after `steps` of
    them; where no forecast is open, it does nothing.

    Transformers and accelerate are needed: `pip install transformers accelerate`.
    """

    def __init__(self, *, steps: int | None = 6) -> None:
        if steps is not None and steps < 1:
            raise OptionError(
                f"TrainerForecastCallback(steps={steps}): it must be 1 or more, or None."
            )
        self.steps = steps
        self._num_steps = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Counts from here."""
        self._num_steps = 0

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """All micro-batches of gradient accumulation have passed."""
        forecast = open_forecast()
        if forecast is None:
            return
        forecast.step()
        self._num_steps += 1
        if self.steps is not None and self._num_steps >= self.steps:
            control.should_training_stop = True
