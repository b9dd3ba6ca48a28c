"""A page of a server under a load: curves over the rate, the frontier, the course of each run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from neusight.integrations.report.curves import ChartCurve, chart
from neusight.integrations.report.static_page import page_html
from neusight.integrations.serving.screen import (
    bound_text,
    frontier_of,
    seconds_text,
    server_lines,
    slo_text,
)
from neusight.integrations.serving.service import LoadPoint, Server
from neusight.serving.figures import Slo
from neusight.serving.scheduler import BOUNDS, StepRecord

#: Runs that have a part of their own; the table has all.
_MOST_RUNS = 8
#: Servers whose memory is described.
_MOST_DESCRIBED = 2
#: Points of the course of a run.
_COURSE_POINTS = 300

_STYLE = """
.scrolls { overflow-x: auto; }
table.serving { border-collapse: collapse; font-size: 12.5px; width: 100%; }
table.serving th, table.serving td { padding: 4px 3px; text-align: right; }
table.serving th, table.serving td { border-bottom: 1px solid var(--line); }
table.serving td { white-space: nowrap; }
table.serving th { color: var(--muted); font-weight: 600; font-size: 12px; }
table.serving th { vertical-align: bottom; }
table.serving .many { text-align: center; border-bottom-style: dotted; }
table.serving .text { text-align: left; white-space: normal; }
dl.terms { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; }
dl.terms dt { font-weight: 600; } dl.terms dd { margin: 0; color: var(--muted); }
"""

_TERMS = (
    ("TTFT", "time from sending a request to its first token"),
    ("TPOT", "mean time of each further token of a request"),
    ("ITL", "time between two tokens, every gap by itself"),
    ("E2E", "time from sending a request to its last token"),
    ("SLO", "the limits that a request must keep, stated with --slo"),
    ("Goodput", "requests a second that keep the limits"),
    ("KV cache", "what the GPU keeps of each token of running requests; when it is full, requests "
                 "wait, and running ones are interrupted and computed again (preempted)"),
    ("Limited by", "compute: arithmetic; memory: reading weights; kv: attention over the cache; "
                   "network: communication between GPUs; host: the server's own CPU time"),
)  # fmt: skip


def serving_page(
    points: Sequence[LoadPoint],
    highest: Sequence[tuple[Server, LoadPoint | None]] = (),
    *,
    slo: Slo,
    command: str = "",
    date: str = "",
) -> str:
    """A whole page that needs no network and runs no script; equal arguments give equal bytes."""
    body = [
        *_summary(points, highest, slo),
        *_over_rates(points, slo),
        *[part for point in points[:_MOST_RUNS] for part in _run(point, slo)],
        "<section><h2>What the words mean</h2>",
        '<dl class="terms">',
        *[f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in _TERMS],
        "</dl></section>",
    ]
    title = f"{points[0].server.model.name} under a load"
    return page_html(title, body, style=_STYLE, command=command, date=date)


def _summary(
    points: Sequence[LoadPoint],
    highest: Sequence[tuple[Server, LoadPoint | None]],
    slo: Slo,
) -> list[str]:
    first = points[0]
    cards = _cards(first)
    parts = ["<section><h2>Summary</h2>"]
    for server in list(dict.fromkeys(point.server for point in points))[:_MOST_DESCRIBED]:
        lines = " · ".join(line.strip() for line in server_lines(server))
        parts.append(f'<p class="muted">{escape(lines)}</p>')
    for server, point in highest:
        label = server.deployment.label
        if point is None or point.rate is None:
            words = f"{label}: no rate keeps {slo_text(slo)}"
            parts.append(f'<p class="verdict"><span class="bad">{escape(words)}</span></p>')
        else:
            words = f"{label}: up to {point.rate:,g} requests/s keep {slo_text(slo)}"
            more = f" for {slo.attainment:.0%} of requests"
            parts.append(
                f'<p class="verdict"><span class="good">{escape(words)}</span>{escape(more)}</p>'
            )
    if len(points) == 1:
        parts.append(f'<div class="cards">{cards}</div>')
    return [*parts, '<div class="scrolls">', _table(points), "</div></section>"]


def _cards(point: LoadPoint) -> str:
    found = point.figures
    cards = [
        (seconds_text(found.ttft_s.p50), f"to the first token (median); p99 "
                                         f"{seconds_text(found.ttft_s.p99)}"),
        (seconds_text(found.tpot_s.p50), f"each further token (median); p99 "
                                         f"{seconds_text(found.tpot_s.p99)}"),
        (f"{found.output_tokens_per_s:,.0f}", f"tokens out a second; "
                                              f"{found.tokens_per_s_user:,.1f} for each user"),
        (f"{found.kv_use:.0%}", f"of the KV cache used; {found.preemptions:,} preemptions"),
    ]  # fmt: skip
    return "".join(
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
        for figure, words in cards
    )


#: Columns of the table under their common heading, which has the unit.
_COLUMNS = (
    ("", ("load",)), ("TTFT, ms", ("p50", "p90", "p99")), ("TPOT, ms", ("p50", "p90", "p99")),
    ("E2E, s", ("p50",)), ("tokens a second", ("all", "a user", "a GPU")), ("", ("goodput /s",)),
    ("", ("KV",)), ("", ("waiting",)), ("", ("preempted",)), ("a M tokens", ("$", "kJ")),
    ("", ("limited by",)),
)  # fmt: skip


def _table(points: Sequence[LoadPoint]) -> str:
    many = len({point.server.deployment.label for point in points}) > 1
    best = frontier_of(points) if many else []
    # the page's heading names the only deployment
    columns = (*((("", ("deployment",)),) if many else ()), *_COLUMNS)
    rows = [_row(_cells(point, point in best)[0 if many else 1 :], many) for point in points]
    note = '<p class="muted">* on the frontier of tokens/s a user and a GPU</p>' if many else ""
    head = _heads(columns)
    return f'<table class="serving"><thead>{head}</thead>{"".join(rows)}</table>{note}'


def _heads(columns: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    groups = "".join(
        f'<th class="many" colspan="{len(names)}">{escape(group)}</th>'
        if group
        else f'<th rowspan="2">{escape(names[0])}</th>'
        for group, names in columns
    )
    below = "".join(
        f"<th>{escape(name)}</th>" for group, names in columns if group for name in names
    )
    return f"<tr>{groups}</tr><tr>{below}</tr>"


def _row(cells: Sequence[str], many: bool) -> str:
    num_words = 2 if many else 1
    words = "".join(f'<td class="text">{escape(cell)}</td>' for cell in cells[:num_words])
    return f"<tr>{words}{''.join(f'<td>{escape(cell)}</td>' for cell in cells[num_words:])}</tr>"


def _cells(point: LoadPoint, is_best: bool) -> tuple[str, ...]:
    found = point.figures
    dollars = found.dollars_per_million_tokens
    return (
        point.server.deployment.label + (" *" if is_best else ""),
        point.label,
        *(_ms_text(value) for value in (*found.ttft_s[1:], *found.tpot_s[1:])),
        f"{found.e2e_s.p50:,.2f}",
        f"{found.output_tokens_per_s:,.0f}",
        f"{found.tokens_per_s_user:,.1f}",
        f"{found.tokens_per_s_gpu:,.0f}",
        "-" if found.goodput is None else f"{found.goodput:,.2f}",
        f"{found.kv_use:.0%}",
        f"{found.waiting:,.1f}",
        f"{found.preemptions:,}",
        "-" if dollars is None else f"{dollars:,.2f}",
        f"{found.joules_per_million_tokens / 1e3:,.0f}",
        "saturated" if found.saturation else found.bound,
    )


def _ms_text(seconds: float) -> str:
    """Milliseconds, of whole seconds without tenths.

    >>> _ms_text(0.0325), _ms_text(65.5)
    ('32.5', '65,500')
    """
    return f"{seconds * 1e3:,.0f}" if seconds >= 1 else f"{seconds * 1e3:.1f}"


def _over_rates(points: Sequence[LoadPoint], slo: Slo) -> list[str]:
    """Latency and throughput over the rate, and the frontier; nothing of a single point."""
    every: dict[str, list[LoadPoint]] = {}
    for point in points:
        every.setdefault(point.server.deployment.label, []).append(point)
    rated = {label: [one for one in own if one.rate is not None] for label, own in every.items()}
    groups = {label: own for label, own in rated.items() if own}
    charts: list[str] = []
    if any(len(group) > 1 for group in groups.values()):
        for name, of, limit in (("TTFT", "ttft_s", slo.ttft_s), ("TPOT", "tpot_s", slo.tpot_s)):
            curves = [
                curve
                for at, (label, group) in enumerate(groups.items())
                for curve in _latency_curves(label, group, of, at)
            ]
            line = None if limit is None else (1e3 * limit, f"limit {seconds_text(limit)}")
            charts.append(
                chart(f"{name} over the rate", curves, x="requests a second", y="ms",
                      limit=line, is_log=True)
            )  # fmt: skip
        charts.append(
            chart(
                "Tokens out a second over the rate",
                [ChartCurve(label, tuple((point.rate or 0.0, point.figures.output_tokens_per_s)
                                    for point in sorted(group, key=lambda one: one.rate or 0.0)),
                       is_marked=True)
                 for label, group in groups.items()],
                x="requests a second", y="tokens a second",
            )
        )  # fmt: skip
    if len(points) > 1:
        charts.append(
            chart(
                "Speed for a user against throughput of a GPU (up and right is better)",
                [ChartCurve(label, tuple(sorted((point.figures.tokens_per_s_user,
                                            point.figures.tokens_per_s_gpu) for point in group)),
                       is_marked=True, is_joined=len(group) > 1)
                 for label, group in every.items()],
                x="tokens a second for a user", y="tokens a second for a GPU",
            )
        )  # fmt: skip
    if not charts:
        return []
    return ["<section><h2>Curves</h2>", '<div class="charts">', *charts, "</div></section>"]


def _latency_curves(label: str, group: list[LoadPoint], name: str, colour: int) -> list[ChartCurve]:
    ordered = sorted(group, key=lambda one: one.rate or 0.0)
    return [
        ChartCurve(
            f"{label}, {statistic}",
            tuple(
                (point.rate or 0.0, 1e3 * getattr(getattr(point.figures, name), statistic))
                for point in ordered
            ),
            is_marked=True,
            is_dashed=statistic == "p99",
            colour=colour % 8,
        )
        for statistic in ("p50", "p99")
    ]


def _run(point: LoadPoint, slo: Slo) -> list[str]:
    """The course of one run: requests, cache, tokens; what bounds it."""
    found = point.figures
    steps = point.runs[0].steps
    blocks = point.runs[0].num_blocks
    running = _course(steps, lambda step: step.running)
    waiting = _course(steps, lambda step: step.waiting)
    cache = _course(steps, lambda step: 100.0 * step.used_blocks / blocks)
    title = f"{point.server.deployment.label}, {point.label}"
    replica = " (the first replica)" if len(point.runs) > 1 else ""
    ttft = sorted((one.arrival_s, one.ttft_s) for run in point.runs for one in run.served)
    limited = ", ".join(
        f"{share:.0%} {bound_text(name)}"
        for share, name in sorted(((found.bounds[name], name) for name in BOUNDS), reverse=True)
        if share >= 0.005
    )
    parts = [
        f"<section><h2>{escape(title)}</h2>",
        f'<p class="muted">{found.num_steps:,} steps; the time goes to {escape(limited)}.</p>',
    ]
    if found.saturation:
        parts.append(f'<p class="bad">{escape(found.saturation)}</p>')
    limit = None if slo.ttft_s is None else (slo.ttft_s, f"limit {seconds_text(slo.ttft_s)}")
    return [
        *parts,
        '<div class="charts">',
        chart(f"Requests{replica}",
              [ChartCurve("running", running), ChartCurve("waiting", waiting)],
              x="seconds", y="requests"),
        chart(f"KV cache{replica}", [ChartCurve("used", cache)], x="seconds", y="% of its blocks"),
        chart("Time to the first token of each request",
              [ChartCurve("TTFT", tuple(ttft), is_marked=len(ttft) < _COURSE_POINTS,
                     is_joined=len(ttft) >= _COURSE_POINTS)],
              x="arrival, seconds", y="seconds", limit=limit),
        chart(f"Tokens out a second{replica}", [ChartCurve("tokens", _rate_of(steps))], x="seconds",
              y="tokens a second"),
        "</div></section>",
    ]  # fmt: skip


def _course(steps: Sequence[StepRecord], value: object) -> tuple[tuple[float, float], ...]:
    assert callable(value)
    chosen = steps[:: 1 + (len(steps) - 1) // _COURSE_POINTS] if steps else ()
    return tuple((step.start_s, float(value(step))) for step in chosen)


def _rate_of(steps: Sequence[StepRecord]) -> tuple[tuple[float, float], ...]:
    """Tokens a second in equal parts of the run."""
    if not steps:
        return ()
    end_s = steps[-1].start_s + steps[-1].latency_s
    parts = min(_COURSE_POINTS, max(1, int(end_s)))
    width_s = end_s / parts
    counts = [0] * parts
    for step in steps:
        counts[min(parts - 1, int((step.start_s + step.latency_s) / width_s))] += step.new_tokens
    return tuple(((at + 0.5) * width_s, count / width_s) for at, count in enumerate(counts))
