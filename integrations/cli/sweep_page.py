"""The curves of a sweep on a page: throughput, latency and memory over the argument's values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from neusight.integrations.cli.sweep import Sweep, SweepPoint, sweep_table, unit_of
from neusight.integrations.report.curves import ChartCurve, chart
from neusight.integrations.report.static_page import page_html

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
    unit = unit_of([point for group in groups.values() for point in group])
    times = ("ttft_us", "ms to the first token"), ("tpot_us", "ms a token")
    charts = [
        _chart(sweep, groups, "Throughput", unit, [point.rate(unit) for point in _all(groups)]),
        _chart(
            sweep, groups, "Latency of a step", "ms", [p.latency_us / 1e3 for p in _all(groups)]
        ),
        _chart(sweep, groups, "Memory", "GiB", [p.used_bytes / _GIB for p in _all(groups)],
               limit=max(point.capacity_bytes for point in _all(groups)) / _GIB),
    ]  # fmt: skip
    for name, words in times:
        values = [getattr(point, name) for point in _all(groups)]
        if all(value is not None for value in values):
            charts.append(_chart(sweep, groups, words, "ms", [value / 1e3 for value in values]))
    return charts


def _all(groups: dict[str, list[SweepPoint]]) -> list[SweepPoint]:
    return [point for group in groups.values() for point in group]


def _chart(
    sweep: Sweep,
    groups: dict[str, list[SweepPoint]],
    title: str,
    unit: str,
    values: Sequence[float | None],
    *,
    limit: float | None = None,
) -> str:
    found = iter(values)
    curves = [
        ChartCurve(
            gpu,
            tuple(sorted((_place(sweep, point), next(found) or 0.0) for point in group)),
            is_marked=True,
        )
        for gpu, group in groups.items()
    ]
    line = None if limit is None else (limit, f"{limit:.1f} GiB of the GPU")
    return chart(title, curves, x=sweep.argument, y=unit, limit=line)


def _place(sweep: Sweep, point: SweepPoint) -> float:
    try:
        return float(point.value)
    except ValueError:
        return float(sweep.values.index(point.value))
