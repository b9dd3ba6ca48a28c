"""A forecast as one HTML file: verdict, timeline, memory curve, tables. It needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight._version import __version__
from neusight.advice.advice import Advice
from neusight.integrations.report.memory import MemoryReport
from neusight.integrations.report.side_by_side import lay_side_by_side
from neusight.output.compiled import Compilation, compiled_lines
from neusight.output.figures import Row
from neusight.output.summary import headline, verdict_words
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.predictors.words import bytes_text, time_text
from neusight.timeline.spans import HostSpan, KernelSpan, StepSpan, Timeline
from neusight.timeline.steady import steady_step_of

if TYPE_CHECKING:
    from neusight.advice.memory import MemoryAdvice
    from neusight.forecast import Forecast

__all__ = ["html_report", "write_html_report"]

_NS_PER_US = 1000
#: Rows of a table; the rest is summed up in one.
_ROWS_SHOWN = 25
#: Points of the memory curve: what a screen resolves.
_CURVE_POINTS = 1200
#: The drawing of the memory curve, in its own units.
_CURVE_WIDTH, _CURVE_HEIGHT, _CURVE_LEFT = 1000, 220, 64
#: Space above the highest value, and how far above the peak the capacity is still shown.
_HEADROOM, _NEAR = 1.1, 1.6

#: Kinds of work by colour (html.css): name, colour, colour of the text upon it.
_KINDS = {
    "gemm": ("#0072b2", "#ffffff"),
    "convolution": ("#56b4e9", "#10202a"),
    "attention": ("#cc79a7", "#2a1020"),
    "pointwise": ("#009e73", "#ffffff"),
    "rows": ("#e6b800", "#2a2200"),
    "optimizer": ("#d55e00", "#ffffff"),
    "copy": ("#8c96a0", "#14181c"),
    "communication": ("#7a5cc7", "#ffffff"),
    "other": ("#a0825a", "#ffffff"),
    "module": ("#c3d3e6", "#1b1f24"),
    "op": ("#7f9bbd", "#10161d"),
    "wait": ("#d98880", "#2a1010"),
    "before": ("#b9bfc5", "#4a5158"),
    "forward": ("#8fc1e8", "#10202a"),
    "backward": ("#d9a3c4", "#2a1020"),
}
_KIND_NUMBER = {name: number for number, name in enumerate(_KINDS)}
_KIND_OF_CLASS = {
    KernelClass.GEMM: "gemm",
    KernelClass.CONVOLUTION: "convolution",
    KernelClass.ATTENTION: "attention",
    KernelClass.ELEMENTWISE: "pointwise",
    KernelClass.REDUCTION: "rows",
    KernelClass.SOFTMAX: "rows",
    KernelClass.NORMALIZATION: "rows",
    KernelClass.OPTIMIZER: "optimizer",
    KernelClass.COPY: "copy",
    KernelClass.GATHER: "copy",
    KernelClass.COLLECTIVE: "communication",
}
_KIND_OF_HOST = {"sync": "wait", "work": "wait", "module": "module", "annotation": "module"}
_LEGEND = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "pointwise": "pointwise",
    "rows": "norms, softmax, reductions",
    "optimizer": "optimizer",
    "copy": "copies, gathers",
    "communication": "communication",
    "before": "the step before",
}
#: Rows of the modules' lane: how many parts of their paths are told apart.
_MODULE_ROWS = 4


def write_html_report(
    path: str | Path,
    forecasts: Sequence[Forecast],
    *,
    advice: Sequence[Sequence[Advice]] = (),
    prices: Mapping[str, float] | None = None,
) -> None:
    """Writes the report aside and renames it; OSError where that cannot be."""
    from neusight.predictors.files import write_atomically

    write_atomically(Path(path), html_report(forecasts, advice=advice, prices=prices).encode())


def html_report(
    forecasts: Sequence[Forecast],
    *,
    advice: Sequence[Sequence[Advice]] = (),
    prices: Mapping[str, float] | None = None,
) -> str:
    """One page for forecasts of one program, `advice` for each; equal ones give equal bytes.

    A content security policy lets nothing be loaded and no script run but the page's own, known by
    its hash; all names are escaped besides.
    """
    style, script = _asset("html.css"), _asset("html.js")
    first = forecasts[0]
    title = first.recording.script or "forecast"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="generator" content="neusight">',
        f"<title>{escape(title)} · neusight</title><style>{style}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="muted">A forecast by neusight {escape(__version__)}, recorded with torch '
        f"{escape(first.recording.torch_version)}. No GPU ran.</p>",
    ]
    if (len(forecasts) > 1 or prices) and not first.failure:
        parts.append(_comparison(forecasts, prices or {}))
    for number, forecast in enumerate(forecasts):
        parts += _of_one(forecast, number, advice[number] if number < len(advice) else ())
    parts += [f'<div id="tip"></div><script>{script}</script>', "</body></html>", ""]
    return "\n".join(parts)


@cache
def _asset(name: str) -> str:
    return (files("neusight.integrations.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# -- the parts of a page -------------------------------------------------------------------------


def _comparison(forecasts: Sequence[Forecast], prices: Mapping[str, float]) -> str:
    compared = lay_side_by_side(forecasts, prices)
    header, cells = compared.header(), compared.cells()
    return "<h3>Side by side</h3>" + _table(header, cells, caption=compared.words())


def _of_one(forecast: Forecast, number: int, advice: Sequence[Advice]) -> list[str]:
    verdict, memory = forecast.verdict, forecast.memory
    parts = [
        f"<h2>{escape(forecast.gpu.name)}</h2>",
        _headline(forecast),
        "" if forecast.failure else _cards(forecast),
        _notes(forecast),
    ]
    if not memory.fits and not forecast.failure:
        parts += ["<h3>What would make it fit</h3>", _remedy_table(MemoryReport(forecast).advice)]
    if advice:
        parts += ["<h3>What to change</h3>", _advice_table(advice)]
    step = steady_step_of(forecast.timeline)
    if step is not None:
        parts += _timeline(forecast.timeline, step, number)
    if memory.events:
        parts += ["<h3>Memory</h3>", _memory_curve(forecast), _alive_table(forecast)]
    if forecast.compiled is not None:
        parts += ["<h3>What torch.compile made of it</h3>", _compiled_tables(forecast.compiled)]
    parts += [
        "<h3>Where the time goes</h3>",
        _rows_table(verdict.by_kernel_class, "kernel class", swatches=True),
        _rows_table(verdict.by_module, "module"),
        _rows_table(verdict.by_op, "op"),
        _kernel_table(forecast, step),
    ]
    return parts


def _headline(forecast: Forecast) -> str:
    if forecast.failure:
        first, *_ = forecast.summary().splitlines()
        told = first.removeprefix(f"{forecast.gpu.name}: ")
        return (
            f'<p><span class="bad">{escape(told)}</span>: {escape(forecast.failure)}</p>'
            "<p>The figures are of what was recorded until then.</p>"
        )
    told = forecast.memory_verdict
    colour = {"fits": "good", "unknown": "muted"}.get(told, "bad")
    fits = f'<span class="{colour}">{verdict_words(told)}</span>'
    return f"<p>{fits}, {escape(headline(forecast.verdict))}</p>"


def _cards(forecast: Forecast) -> str:
    verdict, memory, gpu = forecast.verdict, forecast.memory, forecast.gpu
    low, high = verdict.step_latency.low, verdict.step_latency.high
    used = memory.peak_reserved + gpu.context_bytes
    coverage = ", ".join(f"{s:.0%} {origin}" for origin, s in verdict.coverage.items() if s)
    cards = [
        (
            time_text(verdict.step_latency.median),
            f"a step; 80 % range {time_text(low)} to {time_text(high)}",
        ),
        (time_text(verdict.gpu_busy_us), f"GPU busy a step, {verdict.bound}-bound"),
        (
            bytes_text(used),
            f"of {bytes_text(gpu.memory_bytes)}: reserved and context; "
            f"{bytes_text(memory.needed_range.low)} to {bytes_text(memory.needed_range.high)}",
        ),
        (f"{verdict.mfu:.1%}", f"MFU, {verdict.flops / 1e12:,.2f} TFLOP a step"),
        (f"{verdict.num_kernels:,}", f"kernels a step of {verdict.num_ops:,} ops"),
        (f"{verdict.num_synchronizations}", "waits of the host for the GPU a step"),
    ]
    rate = verdict.whole_batch.per_second(verdict.step_latency.median)
    if rate is not None:
        ranks = f" on {verdict.replicas.words}" if verdict.replicas.world_size > 1 else ""
        cards.append((f"{rate[0]:,.0f}", f"{rate[1]} a second{ranks}; {verdict.batch.known_by}"))
    cards.append((coverage or "-", "how the kernel time was priced"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
            for figure, words in cards
        )
        + "</div>"
    )


def _notes(forecast: Forecast) -> str:
    notes = list(forecast.warnings)
    if forecast.unmapped:
        notes.append(f"unmapped, priced by bytes over bandwidth: {', '.join(forecast.unmapped)}")
    failure = forecast.memory.out_of_memory
    if failure is not None:
        notes.append(
            f"out of memory in step {failure.step} at {failure.op} in "
            f"{failure.module or '(no module)'}: {bytes_text(failure.num_bytes)} more, with "
            f"{bytes_text(failure.allocated)} allocated"
        )
    if not notes:
        return ""
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _advice_table(advice: Iterable[Advice]) -> str:
    rows = [
        [item.what, time_text(item.latency_us), f"{-item.gain:.0%}", item.assumes]
        for item in advice
    ]
    caption = "Each alone, computed by pricing the recording again."
    return _table(["change", "a step", "gain", "assumes"], rows, caption=caption, words={3})


def _compiled_tables(found: Compilation) -> str:
    """Graphs and fusion in a line, then breaks and recompiles where there are any."""
    first, *_ = compiled_lines(found)
    tables = [f"<p>{escape(first.split(maxsplit=1)[1])}</p>"]
    breaks = [
        [stop.line, stop.reason, f"{stop.num_calls}", time_text(stop.host_us), f"{stop.num_waits}",
         time_text(stop.wait_us)]
        for stop in found.breaks
    ]  # fmt: skip
    if breaks:
        header = ["graph break", "torch's reason", "more calls", "host", "waits", "waited"]
        caption = "Of a step. The fusion that is lost across a break is not counted."
        tables.append(_table(header, breaks, caption=caption, words={1}))
    again = [
        [item.line, item.function, item.reason, f"{item.num_times}"] for item in found.recompiles
    ]
    if again:
        header = ["recompiled for", "function", "torch's reason", "times"]
        tables.append(_table(header, again, words={1, 2}))
    return "".join(tables)


def _remedy_table(advice: MemoryAdvice) -> str:
    rows = [
        [
            remedy.what,
            bytes_text(remedy.total_bytes),
            bytes_text(remedy.saved_bytes),
            "yes" if remedy.fits else "no",
            "-" if remedy.added_us is None else time_text(remedy.added_us, signed=True),
            remedy.needs,
        ]
        for remedy in advice.remedies
    ]
    batch = advice.batch
    caption = f"It needs {bytes_text(advice.needed_bytes)} of {bytes_text(advice.limit_bytes)}."
    if batch is not None:
        caption += f" The largest batch that fits is {batch.batch} (now {batch.recorded})."
    header = ["change", "needs in all", "saves", "fits", "a step", "if"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return _table(header, rows, caption=caption, words={5})


# -- the timeline --------------------------------------------------------------------------------


class _Texts:
    """Each text once; spans name it by its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _timeline(timeline: Timeline, step: StepSpan, number: int) -> list[str]:
    """Time 0 is when the GPU is done with the step before: before it, the host runs ahead."""
    texts = _Texts()
    begin_ns = step.done_ns - step.latency_ns
    host = timeline.host[step.first_host : step.last_host]
    own = timeline.kernels[step.first_kernel : step.last_kernel]
    backlog = [k for k in timeline.kernels[: step.first_kernel] if k.end_ns > step.start_ns]
    data = {
        "start_us": (step.start_ns - begin_ns) / _NS_PER_US,
        "end_us": step.latency_ns / _NS_PER_US,
        "lanes": [
            *_work_lanes(own, begin_ns, texts),
            *_stream_lanes(own, backlog, step.start_ns, begin_ns, texts),
            *_host_lanes(host, step.first_host, begin_ns, texts),
        ],
        "texts": list(texts.numbers),
        "colours": [colour for colour, _ in _KINDS.values()],
        "inks": [ink for _, ink in _KINDS.values()],
    }
    source = f"timeline-{number}"
    return [
        "<h3>Timeline of the steady step</h3>",
        f'<p class="muted">{_timeline_words(step, begin_ns)} Wheel to zoom, drag to move, double '
        "click for all of it.</p>",
        _legend(),
        f'<canvas class="timeline" data-source="{source}"></canvas>',
        f'<script type="application/json" id="{source}">{_json(data)}</script>',
        "<noscript><p>The timeline is drawn by a script of this page.</p></noscript>",
    ]


def _timeline_words(step: StepSpan, begin_ns: int) -> str:
    latency = time_text(step.latency_ns / _NS_PER_US)
    ahead_ns = begin_ns - step.start_ns
    if ahead_ns == 0:
        return f"The step is from 0 to {latency}."
    return (
        f"The step is from 0, when the GPU is done with the one before (grey), to {latency}. The "
        f"host began it {time_text(ahead_ns / _NS_PER_US)} earlier: it runs ahead of the GPU."
    )


def _work_lanes(
    kernels: Sequence[KernelSpan], begin_ns: int, texts: _Texts
) -> Iterable[dict[str, Any]]:
    """What the busiest stream works for: phases, and modules by the parts of their paths."""
    busy: dict[int, int] = {}
    for span in kernels:
        busy[span.stream] = busy.get(span.stream, 0) + span.duration_ns
    if not busy:
        return
    main = max(sorted(busy), key=lambda stream: busy[stream])
    spans = [span for span in kernels if span.stream == main]
    phases = [
        _span(start, duration, 0, phase, "", phase, texts)
        for phase, start, duration in _stretches(spans, lambda span: span.call.phase, begin_ns)
    ]
    yield {"name": "phases, on the GPU", "num_rows": 1, "spans": phases}
    modules: list[list[Any]] = []
    for row in range(_MODULE_ROWS):
        for path, start, duration in _stretches(spans, _part_of_path(row), begin_ns):
            if path:
                name = path.rpartition(".")[2]
                modules.append(_span(start, duration, row, name, path, "module", texts))
    if modules:
        num_rows = 1 + max(span[2] for span in modules)
        yield {"name": "modules, on the GPU", "num_rows": num_rows, "spans": modules}


def _part_of_path(row: int) -> Callable[[KernelSpan], str]:
    """The first parts of the path of a kernel's module, in its phase; empty if it has fewer."""

    def part(span: KernelSpan) -> str:
        parts = span.call.module.split(".", row + 1)
        return ".".join(parts[: row + 1]) if len(parts) > row else ""

    return part


def _stretches(
    spans: Sequence[KernelSpan], name: Callable[[KernelSpan], str], begin_ns: int
) -> Iterable[tuple[str, int, int]]:
    """Kernels in a row of one name and phase: name, start and duration."""
    for (found, _), group in groupby(spans, key=lambda span: (name(span), span.call.phase)):
        members = list(group)
        start_ns, end_ns = members[0].start_ns, members[-1].end_ns
        yield found, start_ns - begin_ns, end_ns - start_ns


def _host_lanes(
    host: Sequence[HostSpan], first: int, start_ns: int, texts: _Texts
) -> Iterable[dict[str, Any]]:
    """A lane for each thread; what lies in another span lies a row below it."""
    depths: dict[int, int] = {}
    lanes: dict[str, list[list[Any]]] = {}
    for position, span in enumerate(host, start=first):
        above = depths.get(span.parent, -1)
        if span.parent >= first and host[span.parent - first].thread != span.thread:
            above = -1
        depths[position] = above + 1
        kind = _KIND_OF_HOST.get(span.kind, "op")
        module = span.call.module if span.call is not None else span.detail
        lanes.setdefault(span.thread, []).append(
            _span(span.start_ns - start_ns, span.duration_ns, depths[position], span.name, module,
                  kind, texts)
        )  # fmt: skip
    for thread, spans in lanes.items():
        rows = sorted({span[2] for span in spans})
        yield {
            "name": f"host, {thread} thread",
            "num_rows": len(rows),
            "spans": [[*span[:2], rows.index(span[2]), *span[3:]] for span in spans],
        }


def _stream_lanes(
    own: Sequence[KernelSpan],
    backlog: Sequence[KernelSpan],
    start_ns: int,
    begin_ns: int,
    texts: _Texts,
) -> Iterable[dict[str, Any]]:
    """A lane for each stream; kernels of the steps before are those that the host runs ahead of."""
    lanes: dict[int, list[list[Any]]] = {}
    for position, span in enumerate([*backlog, *own]):
        at_ns = max(start_ns, span.start_ns)
        kind = _KIND_OF_CLASS.get(span.kernel.kernel_class, "other")
        kind = "before" if position < len(backlog) else kind
        lanes.setdefault(span.stream, []).append(
            _span(at_ns - begin_ns, span.end_ns - at_ns, 0, span.kernel.name, _detail(span),
                  kind, texts)
        )  # fmt: skip
    for stream in sorted(lanes):
        yield {"name": f"GPU, stream {stream}", "num_rows": 1, "spans": lanes[stream]}


def _span(
    start_ns: int, duration_ns: int, row: int, name: str, detail: str, kind: str, texts: _Texts
) -> list[Any]:
    return [
        start_ns / _NS_PER_US,
        duration_ns / _NS_PER_US,
        row,
        texts.number(name),
        texts.number(detail),
        _KIND_NUMBER[kind],
    ]


def _detail(span: KernelSpan) -> str:
    estimate = span.estimate
    return (
        f"{_problem(span.kernel)}\n{_range(estimate)} (80 %), "
        f"{estimate.bound}-bound, {estimate.origin}\n{span.call.signature.op} in "
        f"{span.call.module or '(no module)'}"
    )


def _problem(kernel: Kernel) -> str:
    sizes = ", ".join(
        f"{name} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in kernel.size._asdict().items()
    )
    return f"{kernel.kernel_class.value}: {sizes}, {kernel.dtype}"


def _legend() -> str:
    items = "".join(
        f'<span><span class="swatch c-{kind}"></span>{words}</span>'
        for kind, words in _LEGEND.items()
    )
    return f'<div class="legend">{items}</div>'


def _json(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- memory --------------------------------------------------------------------------------------


def _memory_curve(forecast: Forecast) -> str:
    """Allocated and reserved bytes over the recorded steps, against the capacity."""
    memory, times = forecast.memory, forecast.timeline.memory_ns
    capacity = max(1, forecast.gpu.memory_bytes - forecast.context_bytes)
    top = max(1.0, memory.peak_reserved * _HEADROOM)
    if capacity < memory.peak_reserved * _NEAR:  # near enough to show
        top = max(top, capacity * _HEADROOM)
    points: list[tuple[float, int, int]] = []
    for event in memory.events:
        at = times[event.mark] if 0 <= event.mark < len(times) else (points[-1][0] if points else 0)
        points.append((at, event.allocated, event.reserved))
    thinned = _thinned(points, _CURVE_POINTS)
    end = max(1.0, points[-1][0])

    def x(at: float) -> float:
        return round(_CURVE_LEFT + at / end * (_CURVE_WIDTH - _CURVE_LEFT - 8), 1)

    def y(num_bytes: float) -> float:
        return round(_CURVE_HEIGHT - 22 - num_bytes / top * (_CURVE_HEIGHT - 36), 1)

    allocated = " ".join(f"{x(at)},{y(a)}" for at, a, _ in thinned)
    reserved = " ".join(f"{x(at)},{y(r)}" for at, _, r in thinned)
    area = f"{x(thinned[0][0])},{y(0)} {reserved} {x(thinned[-1][0])},{y(0)}"
    lines = [
        f'<line class="grid" x1="{_CURVE_LEFT}" x2="{_CURVE_WIDTH - 8}" y1="{y(v)}" y2="{y(v)}"/>'
        f'<text x="4" y="{y(v) + 4}">{bytes_text(round(v))}</text>'
        for v in (0.0, top / 2, top)
    ]
    if capacity <= top:
        lines.append(
            f'<line class="capacity" x1="{_CURVE_LEFT}" x2="{_CURVE_WIDTH - 8}" '
            f'y1="{y(capacity)}" y2="{y(capacity)}"/>'
            f'<text x="{_CURVE_LEFT + 6}" y="{y(capacity) - 5}">what the GPU has beside the '
            f"context: {bytes_text(capacity)}</text>"
        )
    return (
        f'<p class="muted">Allocated (line, peak {bytes_text(memory.peak_allocated)}) and reserved '
        f"(area, peak {bytes_text(memory.peak_reserved)}) over the recorded steps.</p>"
        f'<svg viewBox="0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}" role="img" '
        f'aria-label="memory over time"><polygon class="reserved" points="{area}"/>'
        f'<polyline class="allocated" points="{allocated}"/>{"".join(lines)}'
        f'<text x="{_CURVE_WIDTH - 70}" y="{_CURVE_HEIGHT - 6}">'
        f"{time_text(end / _NS_PER_US)}</text>"
        "</svg>"
    )


def _thinned(points: Sequence[tuple[float, int, int]], most: int) -> list[tuple[float, int, int]]:
    """At most about `most` points; of each stretch the highest stays."""
    size = max(1, -(-len(points) // most))
    return [
        max(points[start : start + size], key=lambda point: point[1])
        for start in range(0, len(points), size)
    ]


def _alive_table(forecast: Forecast) -> str:
    peak = forecast.memory.peak_event
    at = (
        f"Alive at the peak, at {peak.source.op} in {peak.source.module or '(no module)'}."
        if peak
        else ""
    )
    alive = forecast.memory.alive
    rows = [
        [row.module or "(no module)", row.phase, row.kind.replace("_", " "),
         f"{row.num_storages:,}", bytes_text(row.num_bytes)]
        for row in alive[:_ROWS_SHOWN]
    ]  # fmt: skip
    rest = alive[_ROWS_SHOWN:]
    if rest:
        rows.append(
            [f"{len(rest)} more", "", "", f"{sum(row.num_storages for row in rest):,}",
             bytes_text(sum(row.num_bytes for row in rest))]
        )  # fmt: skip
    return _table(["module", "phase", "kind", "tensors", "memory"], rows, caption=at, words={1, 2})


# -- tables --------------------------------------------------------------------------------------


def _range(estimate: Estimate) -> str:
    return f"{time_text(estimate.low_us)} to {time_text(estimate.high_us)}"


def _rows_table(rows: Sequence[Row], what: str, *, swatches: bool = False) -> str:
    shown = [
        [row.name, f"{row.count:,}", time_text(row.time_us), f"{row.share:.1%}"]
        for row in rows[:_ROWS_SHOWN]
    ]
    rest = rows[_ROWS_SHOWN:]
    if rest:
        total_us, share = sum(row.time_us for row in rest), sum(row.share for row in rest)
        count = sum(row.count for row in rest)
        shown.append([f"{len(rest)} more", f"{count:,}", time_text(total_us), f"{share:.1%}"])
    kinds = [_KIND_OF_CLASS.get(KernelClass(row.name), "other") for row in rows] if swatches else []
    return _table([what, "kernels", "time", "share"], shown, caption=f"By {what}", kinds=kinds)


def _kernel_table(forecast: Forecast, step: StepSpan | None) -> str:
    """Equal kernels of the steady step together, the longest first."""
    if step is None:
        return ""
    sums: dict[Kernel, tuple[int, Estimate]] = {}
    for span in forecast.timeline.kernels[step.first_kernel : step.last_kernel]:
        count, _ = sums.get(span.kernel, (0, span.estimate))
        sums[span.kernel] = (count + 1, span.estimate)
    longest = sorted(
        sums.items(), key=lambda item: (-item[1][0] * item[1][1].latency_us, item[0].key)
    )
    rows = [
        [f"{kernel.name} ({_problem(kernel)})", f"{count:,}", time_text(estimate.latency_us),
         _range(estimate), estimate.bound, estimate.origin]
        for kernel, (count, estimate) in longest[:_ROWS_SHOWN]
    ]  # fmt: skip
    header = ["kernel", "count", "each", "80 % range", "bound", "priced by"]
    return _table(header, rows, caption="Kernels that take longest together")


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    words: frozenset[int] | set[int] = frozenset(),
    kinds: Sequence[str] = (),
) -> str:
    """`words` are the columns of prose; `kinds` the colour of each row, for its first cell."""

    def cell(tag: str, text: str, column: int, mark: str = "") -> str:
        kind = ' class="words"' if column in words else ""
        return f"<{tag}{kind}>{mark}{escape(text)}</{tag}>"

    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    lines.append("<tr>" + "".join(cell("th", t, c) for c, t in enumerate(header)) + "</tr>")
    for number, row in enumerate(rows):
        swatch = f'<span class="swatch c-{kinds[number]}"></span>' if number < len(kinds) else ""
        cells = [cell("td", t, c, swatch if c == 0 else "") for c, t in enumerate(row)]
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"
