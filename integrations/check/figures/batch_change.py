"""The batch of a step, then and now: of another batch, figures are judged a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from neusight.integrations.check.figures.metrics import RATE_METRICS, Metric
from neusight.recording.recording import Batch


class BatchChange(NamedTuple):
    """Another number of samples a step than before (or of tokens, where each sample is of another
    length): `unit` is "sample" or "token"."""

    unit: str
    before: int
    now: int

    @property
    def growth(self) -> float:
        """Today's batch over the baseline's."""
        return self.now / self.before

    @property
    def words(self) -> str:
        """The batch then and now.

        >>> BatchChange("sample", 8, 16).words, BatchChange("token", 512, 1024).words
        ('batch 8 → 16', 'tokens a step 512 → 1,024')
        """
        what = "batch" if self.unit == "sample" else "tokens a step"
        return f"{what} {self.before:,} → {self.now:,}"


def intake_figures(batch: Batch, latency_us: float) -> dict[str, float]:
    """What a baseline keeps of it: samples and tokens a step and a second, as far as known.

    >>> intake_figures(Batch(samples=8), 1000.0)
    {'samples_per_step': 8, 'samples_per_second': 8000.0}
    """
    found: dict[str, float] = {}
    for name, count in (("samples", batch.samples), ("tokens", batch.tokens)):
        if count:
            found[f"{name}_per_step"] = count
            if latency_us > 0:
                found[f"{name}_per_second"] = round(count / latency_us * 1e6, 3)
    return found


def rate_of(figures: Mapping[str, float]) -> tuple[Metric, float] | None:
    """The throughput among the figures, tokens rather than samples; None where none is known."""
    known = (metric for metric in RATE_METRICS if metric.name in figures)
    return next(((metric, figures[metric.name]) for metric in known), None)


#: FLOPs of a step grow about as its batch does. Where the two growths are further apart than this,
#: one of the batches is not what it seems.
_PLAUSIBLE_RATIO = 4.0


def batch_change_of(before: Mapping[str, float], now: Mapping[str, float]) -> BatchChange | None:
    """How the figures then and now differ in the batch of a step; None where they do not, where
    either does not say, or where the FLOPs contradict it. Both must be known by the same means.

    >>> batch_change_of({"samples_per_step": 8}, {"samples_per_step": 16})
    BatchChange(unit='sample', before=8, now=16)
    """
    samples = _counts("samples_per_step", before, now)
    tokens = _counts("tokens_per_step", before, now)
    # Where a sample has another number of tokens than before.
    is_longer = (
        samples is not None
        and tokens is not None
        and samples[0] * tokens[1] != samples[1] * tokens[0]
    )
    unit, counts = ("token", tokens) if samples is None or is_longer else ("sample", samples)
    if counts is None or counts[0] == counts[1]:
        return None
    change = BatchChange(unit, *counts)
    was, is_now = before.get("flops", 0), now.get("flops", 0)
    if was and is_now:
        ratio = is_now / was / change.growth
        if not 1.0 / _PLAUSIBLE_RATIO <= ratio <= _PLAUSIBLE_RATIO:
            return None
    return change


def are_batches_comparable(first: str, second: str) -> bool:
    """Whether two batches are known by the same means (`Batch.source`), so that figures may be
    compared per sample.

    >>> are_batches_comparable("input", "input"), are_batches_comparable("input", "loader")
    (True, False)
    """
    return bool(first) and first == second


def _counts(
    name: str, before: Mapping[str, float], now: Mapping[str, float]
) -> tuple[int, int] | None:
    if not before.get(name) or not now.get(name):
        return None
    return int(before[name]), int(now[name])
