"""A whole training run: days and cost, with failures and the checkpoints that limit their loss."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from neusight.integrations.layouts.pricing import LayoutPrice

#: What a failure costs beside lost work and reading the checkpoint, s: the time limit of a process
#: group, after which the others notice (torch.distributed, NCCL), is the most of it. A prior.
_RESTART_S = 600.0

_DAY_S = 86_400.0


@dataclass(frozen=True)
class TrainingTime:
    """`goodput` is the share of `days` in which steps are made that count; `interval_s` from one
    checkpoint to the next and `failure_s` from one failure to the next are None where no failures
    are assumed."""

    days: float
    gpu_hours: float
    goodput: float = 1.0
    interval_s: float | None = None
    failure_s: float | None = None


@dataclass(frozen=True)
class WholeTraining:
    """A training on so many tokens. `mtbf_hours` is the mean time between failures of one GPU with
    what belongs to it; None: nothing fails."""

    tokens: float
    mtbf_hours: float | None = None

    def time_of(self, price: LayoutPrice) -> TrainingTime:
        """Its time in a layout. Checkpoints come as often as costs least: every √(2 · saving · time
        between failures) (Young 1974). A failure loses half an interval, and the restart."""
        ranks, work_s = price.layout.world_size, self.tokens / price.tokens_per_s
        if self.mtbf_hours is None:
            return TrainingTime(work_s / _DAY_S, work_s / 3600.0 * ranks)
        failure_s = self.mtbf_hours * 3600.0 / ranks
        interval_s = sqrt(2.0 * price.checkpoint_s * failure_s)
        lost_s = interval_s / 2.0 + price.checkpoint_s + _RESTART_S
        slower = (1.0 + price.checkpoint_s / interval_s) * (1.0 + lost_s / failure_s)
        whole_s = work_s * slower
        return TrainingTime(
            whole_s / _DAY_S, whole_s / 3600.0 * ranks, 1.0 / slower, interval_s, failure_s
        )
