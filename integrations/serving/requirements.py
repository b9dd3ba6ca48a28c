"""Limits on a server's figures, for a check in CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neusight.integrations.serving.service import LoadPoint
from neusight.predictors.errors import OptionError
from neusight.predictors.formatting import time_text
from neusight.serving.figures import seconds_of

_TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e": "e2e_s"}
_STATISTICS = ("mean", "p50", "p90", "p99")
_RATES = ("output_tokens_per_s", "tokens_per_s_user", "tokens_per_s_gpu", "request_rate",
          "goodput", "slo_share", "preemptions", "dollars_per_million_tokens")  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=)\s*([\w.]+)\s*")


@dataclass(frozen=True)
class Requirement:
    """A figure by name, on which side of a limit it lies, and the limit (s, or as the figure)."""

    figure: str
    is_most: bool
    limit: float
    text: str

    def failures(self, points: Sequence[LoadPoint]) -> Iterator[str]:
        """A sentence for each load whose figure is on the wrong side."""
        for point in points:
            value = self._value(point)
            if value is None or (value > self.limit if self.is_most else value < self.limit):
                yield (
                    f"{point.server.deployment.label}, {point.label}: {self.figure} is "
                    f"{self._text(value)}, required is {self.text}"
                )

    def _text(self, value: float | None) -> str:
        if value is None:
            return "not known"
        is_time = self.figure.rpartition("_")[0] in _TIMES
        return time_text(value * 1e6) if is_time else f"{value:.4g}"

    def _value(self, point: LoadPoint) -> float | None:
        name, _, statistic = self.figure.rpartition("_")
        if name in _TIMES:
            found: float = getattr(getattr(point.figures, _TIMES[name]), statistic)
            return found
        value: float | None = getattr(point.figures, self.figure)
        return value


def parse_requirements(text: str) -> list[Requirement]:
    """From "tpot_p50<=30ms,output_tokens_per_s>=1000"; OptionError for anything else.

    >>> parse_requirements("tpot_p50<=30ms")[0].limit
    0.03
    """
    return [_parsed(part) for part in text.split(",") if part.strip()]


def _parsed(part: str) -> Requirement:
    match = _FORM.fullmatch(part)
    times = [f"{name}_{statistic}" for name in _TIMES for statistic in _STATISTICS]
    if match is None or match[1] not in (*times, *_RATES):
        raise OptionError(
            f"--require got {part!r}; it takes a figure, <= or >=, and a limit: tpot_p50<=30ms. "
            f"Figures: ttft, tpot, itl, e2e with _mean, _p50, _p90 or _p99; {', '.join(_RATES)}"
        )
    figure, side, value = match.groups()
    if figure in times:
        limit = seconds_of(value, option="--require")
    else:
        try:
            limit = float(value)
        except ValueError:
            raise OptionError(f"--require got {part!r}: {value!r} is no number") from None
    return Requirement(figure, side == "<=", limit, part.strip())
