"""The curves of a sweep on a page: throughput, latency and memory over the argument's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from neusight.integrations.cli.sweep import Sweep, SweepPoint, sweep_table, unit_of
from neusight.integrations.report.curves import ChartCurve, chart
from neusight.integrations.report.static_page import page_html
from neusight.predictors.files import number_of

_GIB = 2**30


def sweep_html(
    sweep: Sweep, points: Sequence[SweepPoint], *, command: str = "", date: str = ""
) -> str:
    """A whole page; values that are no numbers are drawn at equal distances."""
    groups: dict[str, list[SweepPoint]] = {}
    for point in points:
        if not point.failure:
            groups.setdefault(point.gpu, []).append(point)
    title = f"{sweep.argument} over {len(sweep.values)} values"
    table = f"<section><h2>Table</h2><pre>{escape(sweep_table(sweep, points))}</pre></section>"
    drawn = "".join(_charts(sweep, groups)) if groups else ""
    curves = f'<section><h2>Curves</h2><div class="charts">{drawn}</div></section>'
    return page_html(
        title, [curves if groups else "", table], style=_STYLE, command=command, date=date
    )


_STYLE = "pre { overflow-x: auto; font-size: 12.5px; }"


def _charts(sweep: Sweep, groups: dict[str, list[SweepPoint]]) -> list[str]:
    points = [point for group in groups.values() for point in group]
    unit = unit_of(points)
    limit = max(point.capacity_bytes for point in points) / _GIB
    charts = [
        _chart(sweep, groups, "Throughput", unit, lambda point: point.rate(unit) or 0.0),
        _chart(sweep, groups, "Latency of a step", "ms", _milliseconds("latency_us")),
        _chart(sweep, groups, "Memory", "GiB", lambda point: point.used_bytes / _GIB, limit=limit),
    ]
    for name, words in ("ttft_us", "ms to the first token"), ("tpot_us", "ms a token"):
        if all(getattr(point, name) is not None for point in points):
            charts.append(_chart(sweep, groups, words, "ms", _milliseconds(name)))
    return charts


def _milliseconds(name: str) -> Callable[[SweepPoint], float]:
    return lambda point: float(getattr(point, name)) / 1e3


def _chart(
    sweep: Sweep,
    groups: dict[str, list[SweepPoint]],
    title: str,
    unit: str,
    figure: Callable[[SweepPoint], float],
    *,
    limit: float | None = None,
) -> str:
    def place(point: SweepPoint) -> float:
        number = number_of(point.value)
        return sweep.values.index(point.value) if number is None else number

    curves = [
        ChartCurve(
            gpu,
            tuple(sorted((place(point), figure(point)) for point in group)),
            is_marked=True,
        )
        for gpu, group in groups.items()
    ]
    line = None if limit is None else (limit, f"{limit:.1f} GiB of the GPU")
    return chart(title, curves, x=sweep.argument, y=unit, limit=line)
