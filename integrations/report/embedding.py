"""A forecast as notebooks show it: the verdict in words, and below it the report in a frame."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from neusight.integrations.report.html import html_report
from neusight.predictors.formatting import bytes_text, counted

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Height of the frame in pixels, until a reader pulls at its corner.
_FRAME_HEIGHT = 620

#: Classes of kernels that the words below the verdict name.
_CLASSES_SHOWN = 3

#: Notes shown; the report has all of them.
_NOTES_SHOWN = 3


def notebook_html(forecast: Forecast) -> str:
    """What notebooks show of a forecast: the first line of its summary, where the time and the
    memory go, notes, and the report of `neusight run --html` in a frame.

    The frame is a page of its own, whose script reaches nothing of the notebook; where HTML is
    cleaned of frames (a notebook that is not trusted, or one shown on the web), the words stay.
    """
    first, *_ = forecast.summary().split("\n")
    is_whole = not forecast.failure and forecast.verdict.num_kernels > 0
    lines = [*(_words(forecast) if is_whole else [forecast.failure]), *_notes(forecast)]
    shown = "".join(f"<br>{escape(line)}" for line in lines if line)
    frame = _frame(forecast) if forecast.recording.num_ops else ""
    return f'<div class="neusight"><p><strong>{escape(first)}</strong>{shown}</p>{frame}</div>'


def _words(forecast: Forecast) -> list[str]:
    verdict, memory = forecast.verdict, forecast.needs_most.memory
    classes = [f"{row.name} {row.share:.0%}" for row in verdict.by_kernel_class[:_CLASSES_SHOWN]]
    priced = [f"{share:.0%} {origin}" for origin, share in forecast.coverage.items() if share]
    return [
        f"GPU time: {', '.join(classes)}; MFU {verdict.mfu:.1%}",
        f"memory: {bytes_text(memory.total_bytes)} of {bytes_text(forecast.gpu.memory_bytes)}; "
        f"priced: {', '.join(priced)}",
    ]


def _notes(forecast: Forecast) -> list[str]:
    notes = [f"note: {text}" for text in forecast.warnings]
    more = len(notes) - _NOTES_SHOWN
    return notes[:_NOTES_SHOWN] + (
        [f"{counted(more, 'more note')} in the report"] if more > 0 else []
    )


def _frame(forecast: Forecast) -> str:
    """The report as the frame's own document, so that nothing is fetched; sandboxed, its script
    runs and sees no cookie, no other frame and no kernel."""
    # In single quotes, as the page's data are full of double ones.
    page = html_report([forecast]).replace("&", "&amp;").replace("'", "&#39;")
    style = f"width: 100%; height: {_FRAME_HEIGHT}px; border: 1px solid #8886; resize: vertical"
    title = escape(f"Report of the forecast on {forecast.gpu.name}")
    return (
        f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" '
        f"srcdoc='{page}'></iframe>"
    )
