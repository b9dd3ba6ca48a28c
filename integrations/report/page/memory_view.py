"""Memory on a page: the curve over the recorded steps, and what is alive at the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from neusight.integrations.report.page.html_tables import (
    Cell,
    Detail,
    bytes_cell,
    count_cell,
    pattern_of,
    share_cell,
    table,
)
from neusight.predictors.formatting import bytes_text, counted, time_text

if TYPE_CHECKING:
    from neusight.forecast import Forecast

_NS_PER_US = 1000
#: Points of the curve: what a screen resolves.
_CURVE_POINTS = 1200
#: The drawing of the curve, in its own units; the page stretches it.
_WIDTH, _HEIGHT = 1000, 200
#: Space above the highest value, and how far above the peak the capacity is still shown.
_HEADROOM, _NEAR = 1.1, 1.6
#: More begins of steps would be a grid.
_STEPS_MARKED = 40

_Point = tuple[float, int, int]


def view_of_memory(forecast: Forecast, detail: Detail) -> str:
    """The curve and the table; says so where nothing was allocated."""
    if not forecast.memory.events:
        return '<p class="muted">Nothing was allocated on the GPU.</p>'
    return _curve(forecast, detail) + _alive_table(forecast, detail)


def _curve(forecast: Forecast, detail: Detail) -> str:
    """Allocated and reserved bytes from the first allocation on, against the capacity. The words
    stand beside the drawing, as it is stretched."""
    memory = forecast.memory
    capacity = forecast.gpu.memory_bytes - forecast.context_bytes
    top = max(1.0, memory.peak_reserved * _HEADROOM)
    if capacity < memory.peak_reserved * _NEAR:  # near enough to show
        top = max(top, capacity * _HEADROOM)
    points = _thinned(_points(forecast), min(_CURVE_POINTS, detail.num_spans))
    begin, end = points[0][0], max(points[0][0] + 1.0, points[-1][0])
    words = (
        f"Allocated (line, peak {bytes_text(memory.peak_allocated)}) and reserved (area, peak "
        f"{bytes_text(memory.peak_reserved)}) over the recorded steps."
    )
    if capacity <= top:
        words += f" Dashed: the {bytes_text(capacity)} that the GPU has beside the context."
    levels = "".join(f"<span>{bytes_text(round(value))}</span>" for value in (top, top / 2, 0.0))
    shapes = "".join(_shapes(forecast, points, (begin, end), top, capacity))
    return (
        f'<p class="muted">{words}</p><div class="curve"><div class="levels">{levels}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Memory over time: {escape(words)}">{shapes}</svg>'
        f'<div class="ends"><span>{time_text(begin / _NS_PER_US)}</span>'
        f"<span>{time_text(end / _NS_PER_US)}</span></div></div>"
    )


def _shapes(
    forecast: Forecast,
    points: Sequence[_Point],
    ends: tuple[float, float],
    top: float,
    capacity: int,
) -> Iterator[str]:
    begin, end = ends

    def x(at: float) -> float:
        return round((at - begin) / (end - begin) * _WIDTH, 1)

    def y(num_bytes: float) -> float:
        return round(_HEIGHT - num_bytes / top * _HEIGHT, 1)

    allocated = " ".join(f"{x(at)},{y(a)}" for at, a, _ in points)
    reserved = " ".join(f"{x(at)},{y(r)}" for at, _, r in points)
    area = f"{x(points[0][0])},{y(0)} {reserved} {x(points[-1][0])},{y(0)}"
    steps = [span for span in forecast.timeline.steps if span.start_ns >= begin]
    if len(steps) <= _STEPS_MARKED:
        yield from (_line("grid", x(span.start_ns), 0, x(span.start_ns), _HEIGHT) for span in steps)
    yield f'<polygon class="reserved" points="{area}"/>'
    yield f'<polyline class="allocated" points="{allocated}"/>'
    yield from (_line("grid", 0, y(value), _WIDTH, y(value)) for value in (0.0, top / 2, top))
    if capacity <= top:
        yield _line("capacity", 0, y(capacity), _WIDTH, y(capacity))


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _points(forecast: Forecast) -> list[_Point]:
    times = forecast.timeline.memory_ns
    points: list[_Point] = []
    for event in forecast.memory.events:
        at = times[event.mark] if 0 <= event.mark < len(times) else (points[-1][0] if points else 0)
        points.append((at, event.allocated, event.reserved))
    return points


def _thinned(points: Sequence[_Point], most: int) -> list[_Point]:
    """At most about `most` points; of each stretch the highest stays."""
    size = max(1, -(-len(points) // most))
    return [
        max(points[start : start + size], key=lambda point: point[1])
        for start in range(0, len(points), size)
    ]


def _alive_table(forecast: Forecast, detail: Detail) -> str:
    """Blocks that repeat in one row; the tree of modules has each."""
    peak = forecast.memory.peak_event
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in forecast.memory.alive:
        module = pattern_of(row.module) or "(no module)"
        found = sums[module, row.phase, row.kind.replace("_", " ")]
        found[0] += row.num_storages
        found[1] += row.num_bytes
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    total = sum(num_bytes for _, (_, num_bytes) in ordered) or 1
    rows: list[list[str | Cell]] = [
        [module, *_figures(figures, total), phase, kind]
        for (module, phase, kind), figures in ordered[: detail.num_rows]
    ]
    left = [figures for _, figures in ordered[detail.num_rows :]]
    rest: list[str | Cell] = []
    if left:
        sums_left = [sum(column) for column in zip(*left, strict=True)]
        rest = [counted(len(left), "more row"), *_figures(sums_left, total), "", ""]
    caption = (
        f"Alive at the peak, at {peak.source.op} in {peak.source.module or '(no module)'}. A star "
        "stands for each number."
        if peak
        else "Alive at the peak"
    )
    header = ["module", "memory", "share", "tensors", "phase", "kind"]
    return table(header, rows, caption=caption, words={4, 5}, rest=rest, bars={2})


def _figures(figures: Sequence[int], total: int) -> list[Cell]:
    num_storages, num_bytes = figures
    return [bytes_cell(num_bytes), share_cell(num_bytes / total), count_cell(num_storages)]
