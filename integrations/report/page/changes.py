"""What to change, in tables: what makes it faster, what makes it fit, what compiling made."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from neusight.advice.advice import Advice
from neusight.advice.memory import MemoryAdvice
from neusight.integrations.report.page.html_tables import (
    Cell,
    bytes_cell,
    count_cell,
    table,
    time_cell,
)
from neusight.output.compiled import Compilation, compiled_lines
from neusight.predictors.formatting import bytes_text, time_text


def advice_table(advice: Iterable[Advice]) -> str:
    """What each change would gain."""
    rows: list[list[str | Cell]] = [
        [item.what, time_cell(item.latency_us), Cell(f"{-item.gain:.0%}", -item.gain), item.assumes]
        for item in advice
    ]
    caption = "Each alone, computed by pricing the recording again."
    return table(["change", "a step", "gain", "assumes"], rows, caption=caption, words={3})


def compiled_tables(found: Compilation) -> str:
    """Graphs and fusion in a line, then breaks and recompiles where there are any."""
    first, *_ = compiled_lines(found)
    tables = [f"<p>{escape(first.split(maxsplit=1)[1])}</p>"]
    breaks: list[list[str | Cell]] = [
        [stop.line, stop.reason, count_cell(stop.num_calls), time_cell(stop.host_us),
         count_cell(stop.num_waits), time_cell(stop.wait_us)]
        for stop in found.breaks
    ]  # fmt: skip
    if breaks:
        header = ["graph break", "torch's reason", "more calls", "host", "waits", "waited"]
        caption = "Of a step. The fusion that is lost across a break is not counted."
        tables.append(table(header, breaks, caption=caption, words={1}))
    again: list[list[str | Cell]] = [
        [item.line, item.function, item.reason, count_cell(item.num_times)]
        for item in found.recompiles
    ]
    if again:
        header = ["recompiled for", "function", "torch's reason", "times"]
        tables.append(table(header, again, words={1, 2}))
    return "".join(tables)


def remedy_table(advice: MemoryAdvice) -> str:
    """What would make it fit, with what each change costs."""
    rows: list[list[str | Cell]] = [
        [
            remedy.what,
            bytes_cell(remedy.total_bytes),
            bytes_cell(remedy.saved_bytes),
            "yes" if remedy.fits else "no",
            Cell("-")
            if remedy.added_us is None
            else Cell(time_text(remedy.added_us, signed=True), remedy.added_us),
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
    return table(header, rows, caption=caption, words={5})
