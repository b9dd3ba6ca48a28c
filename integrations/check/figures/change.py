"""How each figure changed against a baseline, and whether that is worse than is tolerated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from neusight.integrations.check.figures.batch_change import BatchChange
from neusight.integrations.check.figures.metrics import KEPT_METRICS, RATE_METRICS, Metric
from neusight.integrations.check.figures.tolerance import METRIC_OF, THROUGHPUT, Tolerance

Status = Literal["same", "within", "worse", "better", "tool"]

_LATENCY = "step_latency"
#: Baselines keep rates with three digits: sums of them are not exact beyond this.
_RATE_DIGITS = 1
_METRICS = {metric.name: metric for metric in KEPT_METRICS}


class MetricChange(NamedTuple):
    """A figure before and now. `by_tool` is the part of the change that the tool brought.

    Where the batch is another one, `per` says of what ("sample", "token") the figure is judged, as
    `title` does, and `counts` how many a step had of it, then and now; `before` and `after` are the
    step's all the same.
    """

    name: str
    title: str
    unit: str
    before: float
    after: float
    by_tool: float
    allowed: float
    tolerance: str
    status: Status
    per: str = ""
    counts: tuple[int, int] = (1, 1)

    @property
    def by_program(self) -> float:
        """The part of the change that is the program's; of a step of today's batch."""
        digits = _RATE_DIGITS if self.unit.endswith("/s") else 6
        return round(self.after - self.expected - self.by_tool, digits)

    @property
    def expected(self) -> float:
        """What the baseline comes to: with today's batch, where it is judged of one."""
        return self.before * self.counts[1] / self.counts[0]

    @property
    def one_before(self) -> float:
        """The earlier figure as shown: of one sample or token, where it is judged so."""
        return self.before / self.counts[0]

    @property
    def one_after(self) -> float:
        """The current figure as shown: of one sample or token, where it is judged so."""
        return self.after / self.counts[1]


class _Bounds(NamedTuple):
    """Between what a figure would be if nothing changed but the batch."""

    least: float
    most: float


def metric_changes(
    before: Mapping[str, float],
    now: Mapping[str, float],
    by_tool: Mapping[str, float],
    tolerances: Mapping[str, Tolerance],
    batch: BatchChange | None = None,
    *,
    compares_rates: bool = True,
) -> Iterator[MetricChange]:
    """The change of each figure that has a tolerance, and of the throughput where both know it and
    `compares_rates`."""
    latency: MetricChange | None = None
    for short, tolerance in tolerances.items():
        name = METRIC_OF.get(short, "")
        if name not in before:  # the throughput, or it did not compile, or the baseline is older
            continue
        change = _change(_METRICS[name], before, now, by_tool.get(name, 0.0), tolerance, batch)
        latency = change if short == _LATENCY else latency
        yield change
    metric = next((item for item in RATE_METRICS if item.name in before and item.name in now), None)
    if latency is not None and metric is not None and compares_rates:
        yield _throughput(metric, before, now, latency, tolerances.get(THROUGHPUT))


def _change(
    metric: Metric,
    before: Mapping[str, float],
    now: Mapping[str, float],
    tool: float,
    tolerance: Tolerance,
    batch: BatchChange | None,
) -> MetricChange:
    was, value = before[metric.name], now.get(metric.name, 0)
    words = tolerance.words(metric.unit)
    if batch is None or not metric.of_one:
        # Of what need not grow with the batch the growth is let pass, and no shrinking asked for.
        growth = 1.0 if batch is None else batch.growth
        bounds = _Bounds(was * min(1.0, growth), was * max(1.0, growth))
        return MetricChange(
            metric.name, metric.title, metric.unit, was, value, tool,
            allowed=tolerance.allowed(bounds.most),
            tolerance=f"{words}, x {growth:.3g} by the batch" if growth > 1 else words,
            status=_status(value, tool, bounds, tolerance, is_same=value == was),
        )  # fmt: skip
    expected, tool = was * batch.growth, tool * batch.growth
    return MetricChange(
        metric.name, f"{metric.of_one} a {batch.unit}", metric.unit, was, value, tool,
        allowed=tolerance.allowed(expected),
        tolerance=words,
        status=_status(value, tool, _Bounds(expected, expected), tolerance, is_same=False),
        per=batch.unit,
        counts=(batch.before, batch.now),
    )  # fmt: skip


def _status(
    value: float, by_tool: float, bounds: _Bounds, tolerance: Tolerance, *, is_same: bool
) -> Status:
    slack = 1e-9 * max(abs(value), abs(bounds.most))  # sums of parts are not exact
    by_program = value - by_tool
    allowed = tolerance.allowed(abs(bounds.most))
    if by_program > bounds.most + allowed + slack:
        return "worse"
    if abs(by_tool) > allowed + slack:
        return "tool"
    if by_program < bounds.least - tolerance.allowed(abs(bounds.least)) - slack:
        return "better"
    return "same" if is_same else "within"


def _throughput(
    metric: Metric,
    before: Mapping[str, float],
    now: Mapping[str, float],
    latency: MetricChange,
    tolerance: Tolerance | None,
) -> MetricChange:
    """It is the latency of one, the other way round: where no tolerance of its own is stated,
    it is as good or bad."""
    was, value = before[metric.name], now[metric.name]
    slower = latency.expected + latency.by_tool
    tool = was * (latency.expected / slower - 1) if slower > 0 else 0.0
    change = MetricChange(
        metric.name, metric.title, metric.unit, was, value, tool,
        allowed=was * latency.allowed / (latency.expected + latency.allowed or 1.0),
        tolerance=latency.tolerance,
        status=latency.status,
    )  # fmt: skip
    if tolerance is None:
        return change
    turned = _status(-value, -tool, _Bounds(-was, -was), tolerance, is_same=value == was)
    allowed = tolerance.allowed(was)
    return change._replace(allowed=allowed, tolerance=tolerance.words(metric.unit), status=turned)
