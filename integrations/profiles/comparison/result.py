"""What a comparison of a forecast with a profile found, in figures and rows."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.integrations.profiles.comparison.breakdown import (
    ComparisonRow,
    OperatorRow,
    StepRow,
    error_of,
)
from neusight.integrations.profiles.comparison.figures import StepFigures
from neusight.integrations.profiles.comparison.operator_pairs import NO_OPERATORS, OperatorPairs


@dataclass(frozen=True)
class ComparedFigures:
    """What a comparison found, in figures and rows.

    `matched_share` is the part of the measured kernel time whose kernels have a partner of the
    same class and problem size in the forecast; `class_share` asks for the class alone,
    `name_share` for the same operator name as well. `score` is 1 where every row's time is right:
    1 less the rows' absolute errors over the sum of the larger times. `operator_pairs` are the
    operators on the host, paired by name and by place in the call tree. `warnings` show where the
    two are not the same program, so that the errors mean nothing.
    """

    measured: StepFigures
    forecast: StepFigures
    classes: tuple[ComparisonRow, ...]
    rows: tuple[ComparisonRow, ...]
    unmatched_measured: tuple[ComparisonRow, ...]
    unmatched_forecast: tuple[ComparisonRow, ...]
    matched_share: float
    class_share: float
    name_share: float
    score: float
    notes: tuple[str, ...]
    steps: tuple[StepRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    operator_pairs: OperatorPairs = NO_OPERATORS
    warnings: tuple[str, ...] = ()

    @property
    def kernel_time_error(self) -> float:
        """Forecast kernel time per step over the measured one, less one."""
        return error_of(self.forecast.kernel_us, self.measured.kernel_us) or 0.0

    @property
    def step_time_error(self) -> float:
        """Forecast step time over the measured one, less one."""
        return error_of(self.forecast.step_us, self.measured.step_us) or 0.0

    @property
    def same_bound(self) -> bool:
        """Whether both call the step host-bound, or both do not."""
        return self.measured.bound == self.forecast.bound
