"""One program on several GPUs, side by side: how long, does it fit, what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neusight.memory.spread import MemoryVerdict
from neusight.predictors.errors import OptionError
from neusight.predictors.files import number_of
from neusight.predictors.formatting import aligned, milliseconds_text
from neusight.predictors.gpu import find_gpu
from neusight.predictors.terminal_text import printable

if TYPE_CHECKING:
    from neusight.forecast import Forecast

_US_PER_HOUR = 3600e6
_US_PER_MS = 1e3
_MILLION = 1e6
_THOUSAND = 1e3
_GIB = 2**30


@dataclass(frozen=True)
class SideBySideRow:
    """A steady step on one GPU. Costs are in the currency of the price; None: not known. Where it
    is that of one rank of `world_size`, rates and costs are those of all ranks, all else its own.

    `trained` is the share of the kernel time that a trained model priced; `used_bytes` is what the
    caching allocator reserves and the CUDA context takes.
    """

    gpu: str
    latency_us: float
    low_us: float
    high_us: float
    bound: str
    mfu: float
    fits: bool
    used_bytes: int | None
    capacity_bytes: int
    trained: float
    samples_per_second: float | None
    tokens_per_second: float | None
    price_per_hour: float | None
    cost_per_thousand_steps: float | None
    cost_per_million_samples: float | None
    cost_per_million_tokens: float | None
    memory_verdict: MemoryVerdict
    world_size: int
    #: By which means the batch is known (`Batch.source`).
    batch_source: str = ""
    #: Of a model that generates: the time to the first token, and to each more at the last context.
    ttft_us: float | None = None
    tpot_us: float | None = None


@dataclass(frozen=True)
class SideBySide:
    """The rows in the order asked for, all of as many ranks."""

    rows: tuple[SideBySideRow, ...]

    @property
    def fastest(self) -> SideBySideRow | None:
        """The shortest step among the GPUs on which the program fits."""
        return min(
            (row for row in self.rows if row.fits), key=lambda row: row.latency_us, default=None
        )

    @property
    def cheapest(self) -> SideBySideRow | None:
        """The lowest cost of a step among the GPUs on which it fits and whose price is known;
        None unless there are two."""
        priced = [row for row in self.rows if row.fits and row.cost_per_thousand_steps is not None]
        if len(priced) < 2:
            return None
        return min(priced, key=lambda row: row.cost_per_thousand_steps or 0.0)

    def table(self) -> str:
        """Aligned text; columns not known anything for are left out."""
        return text_table(self.header(), self.cells())

    def to_markdown(self) -> str:
        """The same as a Markdown table."""
        header, cells = self.header(), self.cells()
        lines = [header, ["---"] + ["---:"] * (len(header) - 1), *cells]
        return "".join(f"| {printable(' | '.join(line))} |\n" for line in lines)

    def to_json(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [asdict(row) for row in self.rows]

    def words(self) -> str:
        """The fastest and the cheapest, in a line; empty where there is nothing to choose. For
        several ranks also whose the rates and the costs are."""
        stated = []
        if len(self.rows) > 1 and self.fastest is not None:
            stated.append(_fastest_text(self.fastest, self.rows))
            if self.cheapest is not None:
                stated.append(f"cheapest a step: {self.cheapest.gpu}")
        if self.rows and self.rows[0].world_size > 1 and self._known_columns():
            stated.append(f"rates and costs are those of all {self.rows[0].world_size} ranks")
        return "; ".join(stated)

    def header(self) -> list[str]:
        """Titles of the columns."""
        return [
            "GPU", "ms a step", "80 % range", "bound", "MFU", "trained", "GiB", "fits",
            *(title for title, _ in self._known_columns()),
        ]  # fmt: skip

    def cells(self) -> list[list[str]]:
        """The rows as text."""
        columns = self._known_columns()
        return [
            [
                row.gpu,
                milliseconds_text(row.latency_us),
                f"{milliseconds_text(row.low_us)} to {milliseconds_text(row.high_us)}",
                row.bound,
                f"{row.mfu:.1%}",
                f"{row.trained:.0%}",
                f"{'?' if row.used_bytes is None else f'{row.used_bytes / _GIB:.1f}'} of "
                f"{row.capacity_bytes / _GIB:.0f}",
                fits_cell(row.memory_verdict),
                *(_number(_value(row, name)) for _, name in columns),
            ]
            for row in self.rows
        ]

    def _known_columns(self) -> list[tuple[str, str]]:
        """(title, field) of the optional columns that hold a figure; tokens rather than samples."""
        known = {
            name
            for _, name in _OPTIONAL_COLUMNS
            if any(_value(row, name) is not None for row in self.rows)
        }
        hidden = {samples for tokens, samples in _NEEDLESS_BESIDE.items() if tokens in known}
        return [(title, name) for title, name in _OPTIONAL_COLUMNS if name in known - hidden]


_OPTIONAL_COLUMNS = (
    ("TTFT ms", "ttft_us"),
    ("TPOT ms", "tpot_us"),
    ("samples/s", "samples_per_second"),
    ("tokens/s", "tokens_per_second"),
    ("price/h", "price_per_hour"),
    ("1000 steps", "cost_per_thousand_steps"),
    ("1M samples", "cost_per_million_samples"),
    ("1M tokens", "cost_per_million_tokens"),
)
#: A column of tokens makes the one of samples needless on the screen.
_NEEDLESS_BESIDE = {
    "tokens_per_second": "samples_per_second",
    "cost_per_million_tokens": "cost_per_million_samples",
}


def _value(row: SideBySideRow, name: str) -> float | None:
    """The figure of a column: times in milliseconds."""
    value: float | None = getattr(row, name)
    return value / _US_PER_MS if value is not None and name.endswith("_us") else value


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= _THOUSAND:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.2f}"


def lay_side_by_side(
    forecasts: Iterable[Forecast], prices: Mapping[str, float] | None = None
) -> SideBySide:
    """Lays forecasts of one program beside each other; `prices` by GPU name, for an hour.

    UnknownGPUError for a price of a GPU that is not known.
    """
    by_name = {find_gpu(name).name: price for name, price in (prices or {}).items()}
    return SideBySide(tuple(_row(item, by_name.get(item.gpu.name)) for item in forecasts))


def _row(forecast: Forecast, price: float | None) -> SideBySideRow:
    latency = forecast.step_latency_us
    is_unknown = forecast.memory_verdict == "unknown"
    batch, world_size = forecast.verdict.whole_batch, forecast.verdict.replicas.world_size
    rate = 1e6 / latency.median if latency.median else 0.0
    phases = forecast.phases
    cost = None if price is None else world_size * price * latency.median / _US_PER_HOUR
    return SideBySideRow(
        gpu=forecast.gpu.name,
        latency_us=latency.median,
        low_us=latency.low,
        high_us=latency.high,
        bound=forecast.bound,
        mfu=round(forecast.mfu, 6),
        trained=forecast.coverage["trained"],
        fits=forecast.fits,
        used_bytes=None if is_unknown else forecast.peak_reserved_bytes + forecast.context_bytes,
        capacity_bytes=forecast.gpu.memory_bytes,
        samples_per_second=None if batch.samples is None else batch.samples * rate,
        tokens_per_second=None if batch.tokens is None else batch.tokens * rate,
        price_per_hour=price,
        cost_per_thousand_steps=None if cost is None else cost * _THOUSAND,
        cost_per_million_samples=_cost_of_a_million(cost, batch.samples),
        cost_per_million_tokens=_cost_of_a_million(cost, batch.tokens),
        memory_verdict=forecast.memory_verdict,
        world_size=world_size,
        batch_source=batch.source,
        ttft_us=None if phases is None else phases.ttft_us,
        tpot_us=None if phases is None else phases.tpot_us[1],
    )


def fits_cell(verdict: MemoryVerdict) -> str:
    """The verdict in a table's column "fits".

    >>> fits_cell("does not fit")
    'NO'
    """
    return {"fits": "yes", "close": "close", "does not fit": "NO", "unknown": "?"}[verdict]


def _cost_of_a_million(cost: float | None, count: int | None) -> float | None:
    return None if cost is None or not count else cost / count * _MILLION


#: Steps whose times differ by a smaller share are called equally fast.
_EQUAL_SHARE = 0.005


def _fastest_text(best: SideBySideRow, rows: Sequence[SideBySideRow]) -> str:
    """The fastest; several where the others are not slower, as where the host bounds all."""
    equals = [
        row for row in rows if row.fits and row.latency_us <= best.latency_us * (1 + _EQUAL_SHARE)
    ]
    if len(equals) == 1:
        return f"fastest: {best.gpu}"
    reason = " (host-bound)" if all(row.bound == "host" for row in equals) else ""
    return f"equally fast: {', '.join(row.gpu for row in equals)}{reason}"


def parse_prices(texts: Iterable[str], *, gpus: Sequence[str] | None = None) -> dict[str, float]:
    """Prices an hour by canonical GPU name, from "H100=2.49,L40S=0.99" (also several such texts).

    OptionError for what is no price, and for the price of a GPU that is not among `gpus`;
    UnknownGPUError for what is no GPU.

    >>> parse_prices(["H100=2.49,l40s=1"])
    {'H100-SXM5-80GB': 2.49, 'L40S': 1.0}
    """
    prices: dict[str, float] = {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        if not item:
            continue
        name, equals, figure = item.rpartition("=")
        price = number_of(figure)
        if not equals or price is None or not 0 <= price < math.inf:
            raise OptionError(
                f"--price got {item!r}; it wants a GPU and its price an hour: --price H100=2.49"
            )
        prices[find_gpu(name.strip()).name] = price
    if gpus is not None:
        _require_among(gpus, prices)
    return prices


def _require_among(gpus: Sequence[str], prices: Iterable[str]) -> None:
    for name in prices:
        if name not in gpus:
            raise OptionError(
                f"--price names {name}, which is not among the GPUs asked for: "
                f"{', '.join(gpus)}. Ask for {name} too, or leave its price out."
            )


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the first to the left, the others to the right.

    >>> print(text_table(["GPU", "ms"], [["T4", "10.5"]]))
    GPU    ms
    T4   10.5
    """
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    return "\n".join(aligned(lines))
