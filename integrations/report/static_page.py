"""A page of tables and curves that runs no script and needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

from neusight._version import __version__

_CHART_STYLE = """
.charts { display: grid; gap: 18px; }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.chart { margin: 0; background: var(--panel); border-radius: 8px; padding: 12px 14px; }
.chart figcaption { font-weight: 600; }
.chart svg { width: 100%; height: auto; }
.chart text { fill: var(--muted); font-size: 12px; }
.grid { stroke: var(--line); stroke-width: 1; }
.limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; }
.dot { stroke: var(--page); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 12.5px; color: var(--muted); }
.chart svg.swatch { width: 18px; height: 8px; margin-right: 5px; }
.line.c0 { stroke: #2f6db5; } .dot.c0 { fill: #2f6db5; }
.line.c1 { stroke: #d55e00; } .dot.c1 { fill: #d55e00; }
.line.c2 { stroke: #187344; } .dot.c2 { fill: #187344; }
.line.c3 { stroke: #a8509f; } .dot.c3 { fill: #a8509f; }
.line.c4 { stroke: #b8860b; } .dot.c4 { fill: #b8860b; }
.line.c5 { stroke: #00838f; } .dot.c5 { fill: #00838f; }
.line.c6 { stroke: #c2185b; } .dot.c6 { fill: #c2185b; }
.line.c7 { stroke: #6d4c41; } .dot.c7 { fill: #6d4c41; }
"""


@cache
def page_asset(name: str) -> str:
    """A style or script of pages."""
    return (files("neusight.integrations.report.page") / name).read_text(encoding="utf-8")


def source_of(text: str) -> str:
    """What a content security policy calls this style or script: its hash."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def page_html(
    title: str, body: Sequence[str], *, style: str = "", command: str = "", date: str = ""
) -> str:
    """The page; equal arguments give equal bytes. `style` is added to that of pages and charts,
    `command` the command line that it came from, `date` its day."""
    whole_style = page_asset("page.css") + _CHART_STYLE + style
    style_source = source_of(whole_style)
    policy = f"default-src 'none'; style-src {style_source}; base-uri 'none'; form-action 'none'"
    stated = ", ".join([f"A forecast by neusight {__version__}", *([date] if date else [])])
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)} · neusight</title><style>{whole_style}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="muted">{escape(stated)}. No GPU ran.</p>',
        f'<p class="command"><code>{escape(command)}</code></p>' if command else "",
        "</header><main>",
        *body,
        "</main></body></html>",
        "",
    ]
    return "\n".join(part for part in parts if part)
