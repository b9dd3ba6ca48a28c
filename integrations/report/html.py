"""A forecast, or several, as one HTML file: verdict, timeline, modules, memory, tables. It needs no
network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from neusight._version import __version__
from neusight.advice.advice import Advice
from neusight.integrations.report.memory import MemoryReport
from neusight.integrations.report.page.beside import labels_of, view_of_several
from neusight.integrations.report.page.changes import advice_table, compiled_tables, remedy_table
from neusight.integrations.report.page.lanes import lanes_of
from neusight.integrations.report.page.memory_view import view_of_memory
from neusight.integrations.report.page.modules import view_of_modules
from neusight.integrations.report.page.tables import Detail
from neusight.integrations.report.page.time_tables import view_of_times
from neusight.integrations.report.page.timeline_view import timeline_words, view_of_timeline
from neusight.output.summary import headline, verdict_words
from neusight.predictors.errors import OptionError
from neusight.predictors.words import bytes_text, counted, time_text
from neusight.timeline.spans import StepSpan
from neusight.timeline.steady import steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast

__all__ = ["html_report", "report_date", "write_html_report"]

_STYLES = ("page.css",)
_SCRIPTS = ("theme.js", "timeline.js", "table.js", "tree.js")
#: A page is smaller: mail and notebooks carry it. What goes first is detail.
_MOST_BYTES = 1_000_000
_DETAIL = Detail(num_spans=9000, num_rows=300, num_instances=6000)
_LEAST_SHARE = 1 / 256
#: Forecasts that have a part of their own; the table has all.
_MOST_PARTS = 12


def write_html_report(
    path: str | Path,
    forecasts: Sequence[Forecast],
    *,
    advice: Sequence[Sequence[Advice]] = (),
    prices: Mapping[str, float] | None = None,
    command: str = "",
    date: str = "",
) -> None:
    """Writes the report aside and renames it; OSError where that cannot be."""
    from neusight.predictors.files import write_atomically

    page = html_report(forecasts, advice=advice, prices=prices, command=command, date=date)
    write_atomically(Path(path), page.encode())


def html_report(
    forecasts: Sequence[Forecast],
    *,
    advice: Sequence[Sequence[Advice]] = (),
    prices: Mapping[str, float] | None = None,
    command: str = "",
    date: str = "",
) -> str:
    """A whole page for one forecast or several, `advice` for each; below a million bytes.

    `command` is the command line that it came from, `date` the day; neither is told unless given,
    and equal arguments give equal bytes. A content security policy lets nothing be loaded and no
    script run but the page's own, known by its hash; all names are escaped besides. The page may
    stand in an iframe: as its `srcdoc` (escaped as an attribute), with `sandbox="allow-scripts"`;
    it has no links, wants no height of its own and lets the wheel scroll.
    """
    share = 1 / len(forecasts)
    page = _page(forecasts, advice, prices or {}, command, date, _DETAIL.shared(share))
    while len(page.encode()) >= _MOST_BYTES and share > _LEAST_SHARE:
        share /= 2
        page = _page(forecasts, advice, prices or {}, command, date, _DETAIL.shared(share))
    return page


def report_date() -> str:
    """The day to date a report with: today's in UTC, that of SOURCE_DATE_EPOCH where it is set, and
    none where that is empty. OptionError where it is no number of seconds."""
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    if stated == "":
        return ""
    try:
        now = datetime.now(timezone.utc)
        day = now if stated is None else datetime.fromtimestamp(int(stated), timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise OptionError(
            f"SOURCE_DATE_EPOCH is {stated!r}; it wants seconds since 1970, as `date +%s` prints "
            "them, or nothing for a report without a date"
        ) from None
    return f"{day:%Y-%m-%d}"


@cache
def _asset(*names: str) -> str:
    folder = files("neusight.integrations.report.page")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# -- the page ------------------------------------------------------------------------------------


def _page(
    forecasts: Sequence[Forecast],
    advice: Sequence[Sequence[Advice]],
    prices: Mapping[str, float],
    command: str,
    date: str,
    detail: Detail,
) -> str:
    first = forecasts[0]
    parts = [*_head(forecasts), *_opening(forecasts, command, date)]
    if (len(forecasts) > 1 or prices) and not first.failure:
        parts += ["<section><h2>Side by side</h2>", view_of_several(forecasts, prices, detail)]
        parts += ["</section>"]
    labels = labels_of(forecasts)
    for number, forecast in enumerate(forecasts[:_MOST_PARTS]):
        found = advice[number] if number < len(advice) else ()
        parts += _of_one(forecast, number, labels[number], found, detail)
    if len(forecasts) > _MOST_PARTS:
        parts.append(
            f'<p class="muted">The first {_MOST_PARTS} of {len(forecasts)} have a part of their '
            "own; the others are in the table only.</p>"
        )
    script = _asset(*_SCRIPTS)
    parts += [f'</main><div id="tip"></div><script>{script}</script>', "</body></html>", ""]
    return "\n".join(part for part in parts if part is not None)


def _head(forecasts: Sequence[Forecast]) -> list[str]:
    style, script = _asset(*_STYLES), _asset(*_SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="generator" content="neusight">',
        f"<title>{escape(_title(forecasts))} · neusight</title><style>{style}</style></head><body>",
    ]


def _title(forecasts: Sequence[Forecast]) -> str:
    scripts = dict.fromkeys(forecast.recording.script or "forecast" for forecast in forecasts)
    return " and ".join(scripts)


def _opening(forecasts: Sequence[Forecast], command: str, date: str) -> list[str]:
    first = forecasts[0]
    recording = first.recording
    said = [
        f"A forecast by neusight {__version__}",
        *([date] if date else []),
        f"recorded with torch {recording.torch_version}",
        f"host profile {first.host.name}",
    ]
    if recording.world_size > 1:
        said.append(f"rank {recording.rank} of {recording.world_size}")
    return [
        f"<header><h1>{escape(_title(forecasts))}</h1>",
        f'<p class="muted">{escape(", ".join(said))}. No GPU ran.</p>',
        f'<p class="command"><code>{escape(command)}</code></p>' if command else "",
        "</header><main>",
    ]


def _of_one(
    forecast: Forecast, number: int, label: str, advice: Sequence[Advice], detail: Detail
) -> list[str]:
    verdict, step = forecast.verdict, steady_step_of(forecast.timeline)
    parts = [
        f"<section><h2>{escape(label)}</h2>",
        _headline(forecast),
        _cards(forecast) if verdict.num_kernels and not forecast.failure else "",
        _notes(forecast),
    ]
    if not forecast.memory.fits and not forecast.failure:
        parts += ["<h3>What would make it fit</h3>", remedy_table(MemoryReport(forecast).advice)]
    if advice:
        parts += ["<h3>What to change</h3>", advice_table(advice)]
    if step is not None:
        parts += _of_step(forecast, step, number, label, detail)
    if forecast.memory.events:
        parts += ["<h3>Memory</h3>", view_of_memory(forecast, detail)]
    if forecast.compiled is not None:
        parts += ["<h3>What torch.compile made of it</h3>", compiled_tables(forecast.compiled)]
    if step is not None and verdict.num_kernels:
        parts += ["<h3>Where the time goes</h3>", view_of_times(forecast, step, detail)]
    return [*parts, "</section>"]


def _of_step(
    forecast: Forecast, step: StepSpan, number: int, label: str, detail: Detail
) -> list[str]:
    """Timeline and modules; nothing to draw where nothing ran."""
    drawn = lanes_of(forecast.timeline, step)
    if not any(lane.spans for lane in drawn.lanes[1:]):
        return []
    latency = time_text(forecast.verdict.step_latency.median)
    parts = [
        "<h3>Timeline of the steady step</h3>",
        view_of_timeline(
            drawn,
            f"timeline-{number}",
            label=f"Timeline of the steady step on {label}, {latency}",
            words=timeline_words(drawn),
            most=detail.num_spans,
        ),
    ]
    if forecast.verdict.num_kernels:
        parts += ["<h3>Modules</h3>", view_of_modules(forecast, step, f"modules-{number}", detail)]
    return parts


# -- the verdict ---------------------------------------------------------------------------------


def _headline(forecast: Forecast) -> str:
    if forecast.failure:
        first, *_ = forecast.summary().splitlines()
        told = first.removeprefix(f"{forecast.gpu.name}: ")
        return (
            f'<p><span class="bad">{escape(told)}</span>: {escape(forecast.failure)}</p>'
            "<p>The figures are of what was recorded until then.</p>"
        )
    if forecast.verdict.num_kernels == 0:
        ops = counted(forecast.recording.num_ops, "op")
        return (
            f'<p><span class="bad">Nothing to forecast</span>: {ops} recorded on the GPU, and no '
            "kernel in the steady step. Does the program move its model and data there "
            '(.cuda(), .to("cuda"))?</p>'
        )
    told = forecast.memory_verdict
    colour = {"fits": "good", "unknown": "muted"}.get(told, "bad")
    fits = f'<span class="{colour}">{verdict_words(told)}</span>'
    return f'<p class="verdict">{fits}, {escape(headline(forecast.verdict))}</p>'


def _cards(forecast: Forecast) -> str:
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
            for figure, words in _figures(forecast)
        )
        + "</div>"
    )


def _figures(forecast: Forecast) -> list[tuple[str, str]]:
    verdict, memory, gpu = forecast.verdict, forecast.memory, forecast.gpu
    latency, needed = verdict.step_latency, memory.needed_range
    used = memory.peak_reserved + gpu.context_bytes
    coverage = ", ".join(f"{s:.0%} {origin}" for origin, s in verdict.coverage.items() if s)
    rate = verdict.whole_batch.per_second(latency.median)
    ranks = f" on {verdict.replicas.words}" if verdict.replicas.world_size > 1 else ""
    return [
        (
            time_text(latency.median),
            f"a step; 80 % range {time_text(latency.low)} to {time_text(latency.high)}",
        ),
        *(
            [(f"{rate[0]:,.0f}", f"{rate[1]} a second{ranks}; {verdict.batch.known_by}")]
            if rate
            else []
        ),
        (
            bytes_text(used),
            f"of {bytes_text(gpu.memory_bytes)}: reserved and context; "
            f"{bytes_text(needed.low)} to {bytes_text(needed.high)}",
        ),
        (time_text(verdict.gpu_busy_us), f"GPU busy a step, {verdict.bound}-bound"),
        (f"{verdict.mfu:.1%}", f"MFU, {verdict.flops / 1e12:,.2f} TFLOP a step"),
        (
            f"{verdict.num_kernels:,}",
            f"{'kernel' if verdict.num_kernels == 1 else 'kernels'} a step of "
            f"{verdict.num_ops:,} {'op' if verdict.num_ops == 1 else 'ops'}",
        ),
        (
            f"{verdict.num_synchronizations}",
            f"{'wait' if verdict.num_synchronizations == 1 else 'waits'} of the host for the GPU "
            "a step",
        ),
        (coverage or "-", "how the kernel time was priced"),
    ]


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
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>'
