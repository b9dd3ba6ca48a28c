"""Ranks that were run side by side, on a page: a row of figures each, and all on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from neusight.integrations.report.page.colours import kind_of
from neusight.integrations.report.page.html_tables import (
    Cell,
    Detail,
    bytes_cell,
    share_cell,
    table,
    time_cell,
)
from neusight.integrations.report.page.lanes import Drawn, Lane, Lanes
from neusight.integrations.report.page.timeline_view import view_of_timeline
from neusight.output.ranks import slowest
from neusight.predictors.formatting import counted, time_text
from neusight.timeline.spans import StepSpan
from neusight.timeline.steady import kernels_of, steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Ranks that are drawn; the table has as many as a page holds rows.
_MOST_DRAWN = 16


def view_of_ranks(ranks: Sequence[Forecast], name: str, detail: Detail) -> str:
    """The slowest in words, the table, and what each GPU does from when the first of them begins
    its step."""
    rows = [rank.row for rank in ranks]
    last = slowest(rows)
    words = f"Slowest: rank {last.rank}, {time_text(last.step_us)} a step."
    cells: list[list[str | Cell]] = [
        [
            Cell(f"{row.rank}", row.rank),
            time_cell(row.step_us),
            share_cell(row.bubble),
            time_cell(row.waited_us),
            bytes_cell(row.peak_memory_bytes),
            row.memory_verdict,
        ]
        for row in rows
    ]
    header = ["rank", "step", "no compute", "waits", "memory", "fits"]
    left = cells[detail.num_rows :]
    rest = [counted(len(left), "more rank"), *[""] * 5] if left else []
    found = table(header, cells[: detail.num_rows], caption=words, rest=rest)
    return found + _clock(ranks[:_MOST_DRAWN], len(ranks), name, detail)


def _clock(ranks: Sequence[Forecast], num_ranks: int, name: str, detail: Detail) -> str:
    steps = [(rank, step) for rank in ranks if (step := steady_step_of(rank.timeline))]
    if not steps:
        return ""
    begin_ns = min(step.done_ns - step.latency_ns for _, step in steps)
    end_ns = max(step.done_ns for _, step in steps)
    lanes = tuple(
        Lane(f"rank {rank.recording.rank}", list(_drawn(rank, step, begin_ns)))
        for rank, step in steps
    )
    drawn = Lanes(0, end_ns - begin_ns, (0, end_ns - begin_ns), lanes)
    words = "On one clock: what each computes in its steady step, and below what it exchanges."
    if num_ranks > len(ranks):
        words += f" The first {len(ranks)} of {num_ranks}."
    label = f"Timelines of {counted(len(steps), 'rank')} on one clock"
    return view_of_timeline(drawn, name, label=label, words=words, most=detail.num_spans)


def _drawn(rank: Forecast, step: StepSpan, begin_ns: int) -> Iterator[Drawn]:
    for span in kernels_of(step, rank.timeline):
        kind = kind_of(span.kernel.kernel_class)
        waits = f"waits {time_text(span.waited_ns / 1000)} for others" if span.waited_ns else ""
        where = f"{span.call.signature.op} in {span.call.module or '(no module)'}"
        row = 1 if kind == "communication" else 0
        yield Drawn(
            span.start_ns - begin_ns, span.duration_ns, row, span.kernel.name, kind,
            waits or span.call.phase, where,
        )  # fmt: skip
