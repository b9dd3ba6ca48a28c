"""A callback for Lightning that notifies an open forecast where steps end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from neusight.predictors.errors import OptionError
from neusight.session import open_forecast

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["LightningForecastCallback"]


class LightningForecastCallback(Callback):
    """Ends a step of the open forecast with each optimizer step, and the training after `steps` of
    them; where no forecast is open, it does nothing.

    Lightning is needed: `pip install lightning`.
    """

    def __init__(self, *, steps: int | None = 6) -> None:
        if steps is not None and steps < 1:
            raise OptionError(
                f"LightningForecastCallback(steps={steps}): it must be 1 or more, or None."
            )
        self.steps = steps
        self._num_steps = 0
        self._seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts from here."""
        self._num_steps, self._seen = 0, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *outputs: Any
    ) -> None:
        """A batch that brought no optimizer step (gradient accumulation) is no step's end."""
        forecast = open_forecast()
        if forecast is None or trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        forecast.step()
        self._num_steps += 1
        if self.steps is not None and self._num_steps >= self.steps:
            trainer.should_stop = True
