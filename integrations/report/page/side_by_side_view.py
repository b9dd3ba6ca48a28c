"""Several forecasts side by side: how long each takes and for what, on one scale and one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from neusight.integrations.report.page.colours import KIND_NUMBER, kind_of, legend
from neusight.integrations.report.page.html_tables import Cell, Detail, pattern_of, table, time_cell
from neusight.integrations.report.page.lanes import Lane, Lanes, work_lanes
from neusight.integrations.report.page.timeline_view import view_of_timeline
from neusight.integrations.report.side_by_side import lay_side_by_side
from neusight.output.figures import Row
from neusight.predictors.files import number_of
from neusight.predictors.formatting import counted, time_text
from neusight.predictors.kernel import KernelClass
from neusight.timeline.steady import kernels_of, steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Columns of the tables; the overview above them has all.
_MOST_COLUMNS = 6
#: The drawing of a bar, in its own units; the page stretches it.
_WIDTH, _HEIGHT = 1000, 20
#: Rows of the modules' lanes on the common clock.
_MODULE_ROWS = 2


def labels_of(forecasts: Sequence[Forecast]) -> list[str]:
    """What distinguishes forecasts: the GPU, the script, else a number."""
    gpus = [forecast.gpu.name for forecast in forecasts]
    if len(set(gpus)) == len(gpus):
        return gpus
    scripts = [forecast.recording.script or "forecast" for forecast in forecasts]
    both = [f"{script} on {gpu}" for script, gpu in zip(scripts, gpus, strict=True)]
    if len(set(both)) == len(both):
        return scripts if len(set(gpus)) == 1 else both
    return [f"{number}: {label}" for number, label in enumerate(both, start=1)]


def view_of_several(
    forecasts: Sequence[Forecast],
    labels: Sequence[str],
    prices: Mapping[str, float],
    detail: Detail,
    *,
    unlike: Sequence[str] | None = None,
) -> str:
    """What differs in what was run comes first; then figures, bars, timelines and tables."""
    stated = _unlike(forecasts, labels) if unlike is None else unlike
    compared = lay_side_by_side(forecasts, prices)
    rows: list[list[str | Cell]] = [
        [label, *map(_numbered, cells)]
        for label, (_, *cells) in zip(labels, compared.cells(), strict=True)
    ]
    parts = [
        *(f'<p class="bad">{escape(line)}</p>' for line in stated),
        table(compared.header(), rows, caption=compared.words()),
    ]
    if len(forecasts) > 1:
        parts += [_bars(forecasts, labels), _clock(forecasts, labels, detail)]
        parts.append("<h3>Where the time goes in each</h3>")
        shown, names = forecasts[:_MOST_COLUMNS], labels[:_MOST_COLUMNS]
        by_class = [_times(forecast.verdict.by_kernel_class) for forecast in shown]
        by_module = [_times(forecast.verdict.by_module) for forecast in shown]
        parts.append(_times_table("kernel class", names, by_class, detail))
        parts.append(_times_table("module", names, by_module, detail))
    return "".join(parts)


def _numbered(text: str) -> str | Cell:
    """Cells that are numbers with their value."""
    figure, *_ = text.replace(",", "").split()
    number = number_of(figure.removesuffix("%"))
    return text if number is None else Cell(text, number)


def _unlike(forecasts: Sequence[Forecast], labels: Sequence[str]) -> Iterator[str]:
    """What is not the same in what ran: a comparison of it compares that too."""
    stated: tuple[tuple[str, Callable[[Forecast], str]], ...] = (
        ("different programs", lambda one: one.recording.script or "a block"),
        ("different batches", _batch_text),
        ("different numbers of ranks", lambda one: f"{one.recording.world_size}"),
        ("different releases of torch", lambda one: one.recording.torch_version),
    )
    for what, of in stated:
        found = [of(forecast) for forecast in forecasts]
        if len(set(found)) > 1:
            reported = "; ".join(
                f"{label}: {text}" for label, text in zip(labels, found, strict=True)
            )
            yield f"These are forecasts of {what}: {reported}"


def _batch_text(forecast: Forecast) -> str:
    batch = forecast.verdict.whole_batch
    counts = ((batch.samples, "sample"), (batch.tokens, "token"))
    words = [counted(count, unit) for count, unit in counts if count]
    return ", ".join(words) or "not known"


# -- bars ----------------------------------------------------------------------------------------


def _bars(forecasts: Sequence[Forecast], labels: Sequence[str]) -> str:
    """A bar for each on one scale: kernels by kind, then what is left of the step."""
    longest = max(forecast.verdict.step_latency.high for forecast in forecasts) or 1.0
    items = [
        f'<li><span class="name">{escape(label)}</span>{_bar(forecast, longest)}'
        f"<b>{time_text(forecast.verdict.step_latency.median)}</b></li>"
        for forecast, label in zip(forecasts, labels, strict=True)
    ]
    kinds = {kind for forecast in forecasts for kind, _ in _times_by_kind(forecast)}
    return (
        '<h3>A step of each</h3><p class="muted">By what the kernels compute; the line below is '
        f"the 80 % range.</p>{legend([*kinds, 'idle'])}"
        f'<ol class="bars">{"".join(items)}</ol>'
    )


def _times_by_kind(forecast: Forecast) -> list[tuple[str, float]]:
    sums: dict[str, float] = defaultdict(float)
    for row in forecast.verdict.by_kernel_class:
        sums[kind_of(KernelClass(row.name))] += row.time_us
    return sorted(sums.items(), key=lambda item: KIND_NUMBER[item[0]])


def _bar(forecast: Forecast, longest: float) -> str:
    verdict = forecast.verdict
    scale = _WIDTH / longest
    total = sum(time_us for _, time_us in _times_by_kind(forecast)) or 1.0
    shown = verdict.gpu_busy_us / total * scale  # kernels that overlap count once
    at, shapes = 0.0, []
    for kind, time_us in _times_by_kind(forecast):
        shapes.append(_rect(f"c-{kind}", at, time_us * shown, 0, 14))
        at += time_us * shown
    latency = verdict.step_latency
    shapes.append(_rect("c-idle", at, max(0.0, latency.median * scale - at), 0, 14))
    shapes.append(_rect("range", latency.low * scale, (latency.high - latency.low) * scale, 16, 2))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(shapes)}</svg>"
    )


def _rect(kind: str, x: float, width: float, y: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{max(0.0, width):.1f}" '
        f'height="{height:g}"/>'
    )


# -- one clock -----------------------------------------------------------------------------------


def _clock(forecasts: Sequence[Forecast], labels: Sequence[str], detail: Detail) -> str:
    """Phases and modules of the steady steps, all begun at 0."""
    lanes: list[Lane] = []
    ends: set[int] = set()
    pairs = list(zip(forecasts, labels, strict=True))[:_MOST_COLUMNS]
    for forecast, label in pairs:
        step = steady_step_of(forecast.timeline)
        if step is None:
            continue
        ends.add(step.latency_ns)
        kernels = kernels_of(step, forecast.timeline)
        for lane in work_lanes(kernels, step.done_ns - step.latency_ns):
            spans = [span for span in lane.spans if span.row < _MODULE_ROWS]
            lanes.append(Lane(f"{label}: {lane.name}", spans))
    if not lanes:
        return ""
    drawn = Lanes(0, max(ends), (0, *sorted(ends)), tuple(lanes))
    words = "The steady step of each begins at 0; a line stands where one ends."
    if len(forecasts) > len(pairs):
        words += f" The first {len(pairs)} of {len(forecasts)}."
    label = f"Timelines of {', '.join(label for _, label in pairs)} on one clock"
    name = "timeline-all"
    return "<h3>On one clock</h3>" + view_of_timeline(
        drawn, name, label=label, words=words, most=detail.num_spans
    )


# -- tables --------------------------------------------------------------------------------------


def _times(rows: Sequence[Row]) -> dict[str, float]:
    """Time by name; blocks that repeat are one."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[pattern_of(row.name)] += row.time_us
    return sums


def _times_table(
    what: str, labels: Sequence[str], times: Sequence[Mapping[str, float]], detail: Detail
) -> str:
    """Times of each, the first one's difference to the second where there are two."""
    names = sorted(
        {name for found in times for name in found},
        key=lambda name: (-max(found.get(name, 0.0) for found in times), name),
    )
    rows = [_times_row(name, times) for name in names[: detail.num_rows]]
    left = names[detail.num_rows :]
    rest: list[str | Cell] = []
    if left:
        sums = [{"": sum(found.get(name, 0.0) for name in left)} for found in times]
        rest = [counted(len(left), f"more {what}"), *_times_row("", sums)[1:]]
    header = [what, *labels, *(["difference", "change"] if len(times) == 2 else [])]
    return table(header, rows, caption=f"By {what}", rest=rest)


def _times_row(name: str, times: Sequence[Mapping[str, float]]) -> list[str | Cell]:
    found = [each.get(name) for each in times]
    cells = [Cell("-", 0.0) if time_us is None else time_cell(time_us) for time_us in found]
    if len(found) != 2:
        return [name, *cells]
    first, second = found[0] or 0.0, found[1] or 0.0
    difference = Cell(time_text(second - first, signed=True), second - first)
    change = second / first - 1 if first else None
    return [name, *cells, difference, "-" if change is None else Cell(f"{change:+.0%}", change)]
