"""A forecast, or several, as one HTML file: verdict, timeline, modules, memory, tables. It needs no
network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from neusight._version import __version__
from neusight.advice.advice import Advice
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.side_by_side_view import labels_of, view_of_several
from neusight.integrations.report.section import section_of
from neusight.integrations.report.static_page import page_asset, source_of
from neusight.predictors.errors import OptionError

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: A page is smaller: mail and notebooks carry it. What goes first is detail.
_MOST_BYTES = 1_000_000
_DETAIL = Detail(num_spans=9000, num_rows=300, num_instances=6000)
_LEAST_SHARE = 1 / 256
#: Forecasts that have a part of their own; the table has all.
_MOST_PARTS = 12


def html_report(
    forecasts: Sequence[Forecast],
    *,
    advice: Sequence[Sequence[Advice]] = (),
    prices: Mapping[str, float] | None = None,
    command: str = "",
    date: str = "",
    labels: Sequence[str] = (),
    unlike: Sequence[str] | None = None,
) -> str:
    """A whole page for one forecast or several, `advice` for each; below a million bytes.

    `labels` are the names of several, as those of their files; else what they differ in, as
    the GPU. `unlike` says first in what they are not alike (None: what is found here). `command` is
    the command line that it came from, `date` the day; neither is shown unless given, and equal
    arguments give equal bytes.

    A content security policy lets nothing be loaded and no script run but the page's own, known by
    its hash; all names are escaped besides. The page may stand in an iframe: as its `srcdoc`
    (escaped as an attribute), with `sandbox="allow-scripts"`; it has no links, wants no height and
    lets the wheel scroll.
    """
    whole = _Whole(
        forecasts,
        advice,
        prices or {},
        command,
        date,
        labels or labels_of(forecasts),
        unlike,
    )
    share = 1 / len(forecasts)
    page = _page(whole, _DETAIL.shared(share))
    while len(page.encode()) >= _MOST_BYTES and share > _LEAST_SHARE:
        share /= 2
        page = _page(whole, _DETAIL.shared(share))
    return page


class _Whole(NamedTuple):
    """What a page is of."""

    forecasts: Sequence[Forecast]
    advice: Sequence[Sequence[Advice]]
    prices: Mapping[str, float]
    command: str
    date: str
    labels: Sequence[str]
    unlike: Sequence[str] | None


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
def _script() -> str:
    return "\n".join(map(page_asset, ("theme.js", "timeline.js", "table.js", "tree.js")))


# -- the page ------------------------------------------------------------------------------------


def _page(whole: _Whole, detail: Detail) -> str:
    forecasts, labels = whole.forecasts, whole.labels
    parts = [*_head(forecasts), *_opening(forecasts[0], _title(forecasts), whole)]
    if (len(forecasts) > 1 or whole.prices) and not any(one.failure for one in forecasts):
        view = view_of_several(forecasts, labels, whole.prices, detail, unlike=whole.unlike)
        parts += ["<section><h2>Side by side</h2>", view, "</section>"]
    for number, forecast in enumerate(forecasts[:_MOST_PARTS]):
        found = whole.advice[number] if number < len(whole.advice) else ()
        parts += section_of(forecast, number, labels[number], found, detail)
    if len(forecasts) > _MOST_PARTS:
        parts.append(
            f'<p class="muted">The first {_MOST_PARTS} of {len(forecasts)} have a part of their '
            "own; the others are in the table only.</p>"
        )
    parts += [f'</main><div id="tip"></div><script>{_script()}</script>', "</body></html>", ""]
    return "\n".join(parts)


def _head(forecasts: Sequence[Forecast]) -> list[str]:
    style, script = page_asset("page.css"), _script()
    policy = (
        f"default-src 'none'; style-src {source_of(style)}; script-src {source_of(script)}; "
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


def _opening(first: Forecast, title: str, whole: _Whole) -> list[str]:
    recording, command, date = first.recording, whole.command, whole.date
    details = [
        f"A forecast by neusight {__version__}",
        *([date] if date else []),
        f"recorded with torch {recording.torch_version}",
        f"host profile {first.host.name}",
    ]
    if recording.world_size > 1:
        details.append(f"rank {recording.rank} of {recording.world_size}")
    return [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="muted">{escape(", ".join(details))}. No GPU ran.</p>',
        f'<p class="command"><code>{escape(command)}</code></p>' if command else "",
        "</header><main>",
    ]
