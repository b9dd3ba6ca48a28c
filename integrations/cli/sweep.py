"""One argument of a script over several values: the largest that fits, and the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from neusight.integrations.report.side_by_side import SideBySideRow, fits_cell, text_table
from neusight.memory.spread import MemoryVerdict
from neusight.predictors.errors import OptionError
from neusight.predictors.files import number_of
from neusight.predictors.formatting import milliseconds_text
from neusight.predictors.terminal_text import printable

#: Raised when the form of the document changes.
SCHEMA_VERSION = 1

#: What a flag takes in turn: not given, given.
FLAG_VALUES = ("no", "yes")

_GIB = 2**30
_BAR_WIDTH = 24
#: What steps of different sizes are compared by, the first that is known of all.
_THROUGHPUTS = ("tokens/s", "samples/s")
#: What a curve shows where neither is; it says nothing of which value is best.
_STEPS = "steps/s"
#: Columns of a model that generates.
_PHASES = {"ttft_us": "ms to first token", "tpot_us": "ms a token"}
#: Values among which a knee is looked for.
_LEAST_FOR_KNEE = 3
_FULL, _EMPTY = "█", "·"


@dataclass(frozen=True)
class Sweep:
    """An argument of the script by its name without dashes, and the values it takes in turn; a flag
    is left out and given: `FLAG_VALUES`."""

    argument: str
    values: tuple[str, ...]
    is_flag: bool = False

    def set_in(self, arguments: Sequence[str], value: str) -> tuple[str, ...]:
        """The script's arguments with this one set.

        >>> Sweep("fast", FLAG_VALUES, is_flag=True).set_in(["--fast", "--lr=1"], "no")
        ('--lr=1',)
        """
        if not self.is_flag:
            return with_argument(arguments, self.argument, value)
        spellings = _spellings(self.argument)
        others = tuple(word for word in arguments if word not in spellings)
        return others if value == FLAG_VALUES[0] else (*others, f"--{self.argument}")

    def to_json(self, points: Sequence[SweepPoint]) -> dict[str, Any]:
        """The document of `neusight run --sweep --json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "argument": self.argument,
            "points": [point.to_json() for point in points],
        }


@dataclass(frozen=True)
class SweepPoint:
    """A value and what `Forecast.to_json` says on one GPU; `failure` where the script failed."""

    value: str
    gpu: str
    latency_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    bound: str = ""
    fits: bool = False
    used_bytes: int = 0
    capacity_bytes: int = 0
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    cost_per_million_samples: float | None = None
    cost_per_million_tokens: float | None = None
    memory_verdict: MemoryVerdict = "does not fit"
    batch_source: str = ""
    ttft_us: float | None = None
    tpot_us: float | None = None
    failure: str = ""

    @classmethod
    def of(cls, value: str, row: SideBySideRow) -> SweepPoint:
        """The value's figures on one GPU."""
        own = {field.name for field in fields(cls)}
        return cls(value, **{name: item for name, item in vars(row).items() if name in own})

    def rate(self, unit: str) -> float | None:
        """How many of the unit a second: "tokens/s", "samples/s" or "steps/s"; None: not known."""
        if unit == _STEPS:
            return 1e6 / self.latency_us if self.latency_us else 0.0
        return self.tokens_per_second if unit == _THROUGHPUTS[0] else self.samples_per_second

    def to_json(self) -> dict[str, Any]:
        """The point as plain values."""
        return asdict(self)


def parse_sweep(text: str, *, takes_flags: bool = False) -> Sweep:
    """An argument and its values, from "batch=1,2,4", or only its name where flags are taken;
    OptionError for anything else.

    >>> parse_sweep("--batch-size=8,16").values, parse_sweep("fast", takes_flags=True).values
    (('8', '16'), ('no', 'yes'))
    """
    name, equals, values = text.lstrip("-").partition("=")
    if takes_flags and name and not equals:
        return Sweep(name, FLAG_VALUES, is_flag=True)
    found = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    if not equals or not name or not found:
        raise OptionError(
            f"--sweep got {text!r}; it wants an argument of the script and its values: "
            "--sweep batch=1,2,4,8"
        )
    return Sweep(name, found)


def with_argument(arguments: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """The script's arguments with one set: where it stands now, as a `{name}`, or added at the end.

    >>> with_argument(["--batch", "8", "--fast"], "batch", "2")
    ('--batch', '2', '--fast')
    >>> with_argument(["data.batch=8"], "data.batch", "2")
    ('data.batch=2',)
    >>> with_argument(["{batch}"], "batch", "2"), with_argument([], "batch", "2")
    (('2',), ('--batch', '2'))
    """
    spellings = _spellings(name)
    found, is_set = list(arguments), False
    for position, word in enumerate(arguments):
        before, equals, _ = word.partition("=")
        if equals and (before in spellings or before.lstrip("+") == name):
            found[position] = f"{before}={value}"
        elif word in spellings and position + 1 < len(arguments):
            found[position + 1] = value
        elif f"{{{name}}}" in word:
            found[position] = word.replace(f"{{{name}}}", value)
        else:
            continue
        is_set = True
    return tuple(found) if is_set else (*found, f"--{name}", value)


def _spellings(name: str) -> set[str]:
    spellings = {f"--{name}", f"--{name.replace('-', '_')}", f"--{name.replace('_', '-')}"}
    return spellings | {f"-{name}"} if len(name) == 1 else spellings


def sweep_table(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """A table with a curve for each GPU, and the largest value that fits."""
    parts = []
    for gpu in dict.fromkeys(point.gpu for point in points if not point.failure):
        mine = [point for point in points if point.gpu == gpu]
        parts.append(f"{printable(gpu)}\n{_curve(sweep, mine)}\n{_words(sweep, mine)}")
    failed = [point for point in points if point.failure]
    parts += [
        printable(f"{sweep.argument} {point.value} failed: {point.failure}") for point in failed
    ]
    return "\n\n".join(parts)


def unit_of(points: Sequence[SweepPoint]) -> str:
    """What the throughput counts, where that is known of all points by the same means."""
    if len({point.batch_source for point in points}) > 1:
        return _STEPS
    known = (u for u in _THROUGHPUTS if all(point.rate(u) is not None for point in points))
    return next(known, _STEPS)


def _curve(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    unit = unit_of(points)
    rates = [point.rate(unit) or 0.0 for point in points]
    top = max(rates)
    has_cost = any(point.cost_per_million_tokens is not None for point in points)
    header = [sweep.argument, "ms a step", "80 % range", "bound", "GiB", "fits", unit]
    times = [name for name in _PHASES if all(getattr(p, name) is not None for p in points)]
    header += [_PHASES[name] for name in times]
    header += ["1M tokens"] if has_cost else []
    rows = [
        [
            point.value,
            milliseconds_text(point.latency_us),
            f"{milliseconds_text(point.low_us)} to {milliseconds_text(point.high_us)}",
            point.bound,
            f"{point.used_bytes / _GIB:.1f} of {point.capacity_bytes / _GIB:.0f}",
            fits_cell(point.memory_verdict),
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}",
            *(milliseconds_text(getattr(point, name)) for name in times),
            *([f"{point.cost_per_million_tokens or 0.0:.3g}"] if has_cost else []),
        ]
        for point, rate in zip(points, rates, strict=True)
    ]
    first, *lines = text_table(header, rows).splitlines()
    bars = [
        (_FULL * round(rate / (top or 1.0) * _BAR_WIDTH)).ljust(_BAR_WIDTH, _EMPTY)
        for rate in rates
    ]
    return "\n".join([first, *(f"{line}  {bar}" for line, bar in zip(lines, bars, strict=True))])


def _words(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """What fits for sure; borderline cases are listed separately."""
    close = [point.value for point in points if point.memory_verdict == "close"]
    reported = _fitting_text(sweep, points)
    return f"{reported}; close: {', '.join(close)}" if close else reported


def _fitting_text(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    fitting = [point for point in points if point.memory_verdict == "fits"]
    if not fitting:
        return f"no {sweep.argument} of these fits"
    unit = unit_of(points)
    best = max(fitting, key=lambda point: point.rate(unit) or 0.0)
    stated = [f"most {unit} that fit: {sweep.argument} {best.value}"]
    if unit == _STEPS:
        stated = ["the batch of a step is not known, so no value is called the best"]
    numbers = [number for point in points if (number := number_of(point.value)) is not None]
    if len(numbers) == len(points):
        used = (point.used_bytes for point in points)
        known = sorted(zip(numbers, used, points, strict=True), key=lambda each: each[:2])
        if unit != _STEPS and len(fitting) >= _LEAST_FOR_KNEE:
            # Beyond it more of one costs more of the other: the largest throughput over latency
            # ("power": Kleinrock, ICC 1979, "Power and deterministic rules of thumb").
            knee = max(fitting, key=lambda p: (p.rate(unit) or 0.0) / (p.latency_us or 1.0))
            stated.append(f"knee: {sweep.argument} {knee.value}")
        largest = max(number for number, _, point in known if point in fitting)
        stated.append(f"largest that fits: {largest:g}{_beyond(known, points[0].capacity_bytes)}")
    return "; ".join(stated)


def _beyond(known: Sequence[tuple[float, int, SweepPoint]], capacity_bytes: int) -> str:
    """Where the straight line through the two largest values reaches the capacity."""
    if len(known) < 2:
        return ""
    (first, first_bytes, _), (second, second_bytes, _) = known[-2:]
    if second_bytes <= first_bytes:
        return ""
    slope = (second_bytes - first_bytes) / (second - first)
    reached = int(first + (capacity_bytes - first_bytes) / slope)
    return f" (memory grows by {slope / _GIB:.3g} GiB each: full at about {reached})"
