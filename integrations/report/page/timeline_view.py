"""The timeline of a page: what its script draws, and what is said beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from neusight.integrations.report.page.colours import DARK_KINDS, KIND_NUMBER, KINDS, legend
from neusight.integrations.report.page.html_tables import data_element, shortened
from neusight.integrations.report.page.lanes import Lane, Lanes, coarsened
from neusight.predictors.formatting import time_text

_NS_PER_US = 1000
_KEYS = (
    "Drag, swipe or Shift ← → to move; Ctrl and wheel, pinch, + and - to zoom, 0 shows all. A "
    "click or ← → ↑ ↓ choose a span, Enter zooms to it, Escape leaves it."
)


class _Texts:
    """Each text once; spans name it by its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(shortened(text), len(self.numbers))


def view_of_timeline(drawn: Lanes, name: str, *, label: str, words: str, most: int) -> str:
    """The canvas, its data (element `name`) and its words; `label` is read aloud."""
    always = [lane for lane in drawn.lanes if not lane.is_optional]
    lanes, short_ns = coarsened(always, most)
    if short_ns:
        total, shown = (sum(len(lane.spans) for lane in some) for some in (always, lanes))
        words += (
            f" Spans shorter than {time_text(short_ns / _NS_PER_US)} are drawn as one with their "
            f"neighbours: {shown:,} for {total:,}."
        )
    optional, _ = coarsened([lane for lane in drawn.lanes if lane.is_optional], most)
    return "\n".join(
        [
            f'<p class="muted">{escape(words)}</p>',
            _legend(lanes),
            f'<div class="view" data-source="{name}">',
            f'<canvas class="timeline" tabindex="0" role="application" '
            f'aria-roledescription="timeline" aria-label="{escape(label)}" '
            f'aria-describedby="keys-{name}" data-source="{name}"></canvas>',
            '<p class="picked" aria-live="polite"></p>',
            f'<p class="muted keys" id="keys-{name}" hidden>{_KEYS}</p></div>',
            data_element(name, _data(drawn, [*lanes, *optional])),
            "<noscript><p>The timeline is drawn by a script of this page.</p></noscript>",
        ]
    )


def _legend(lanes: Sequence[Lane]) -> str:
    """The colours of kernels, where kernels are drawn: phases and modules have their names."""
    kernels = [
        lane for lane in lanes if any(span.detail or span.stands_for > 1 for span in lane.spans)
    ]
    return legend({span.kind for lane in kernels for span in lane.spans})


def timeline_text(drawn: Lanes) -> str:
    """From when to when the step is."""
    latency, ahead_ns = time_text(drawn.end_ns / _NS_PER_US), -drawn.start_ns
    if ahead_ns == 0:
        return f"The step is from 0 to {latency}."
    return (
        f"The step is from 0, when the GPU is done with the one before (grey), to {latency}. The "
        f"host began it {time_text(ahead_ns / _NS_PER_US)} earlier: it runs ahead of the GPU."
    )


def _data(drawn: Lanes, lanes: Sequence[Lane]) -> dict[str, Any]:
    texts = _Texts()
    return {
        "start_us": drawn.start_ns / _NS_PER_US,
        "end_us": drawn.end_ns / _NS_PER_US,
        "boundaries": [at / _NS_PER_US for at in drawn.boundaries],
        "lanes": [
            {
                "name": lane.name,
                "num_rows": lane.num_rows,
                "spans": _spans(lane, texts),
                **({"optional": True} if lane.is_optional else {}),
            }
            for lane in lanes
        ],
        "texts": list(texts.numbers),
        "light": list(KINDS.values()),
        "dark": list({**KINDS, **DARK_KINDS}.values()),
    }


def _spans(lane: Lane, texts: _Texts) -> list[list[float]]:
    """Start, duration, row, name, kind, detail and where, of each span."""
    return [
        [
            span.start_ns / _NS_PER_US,
            span.duration_ns / _NS_PER_US,
            span.row,
            texts.number(span.label),
            KIND_NUMBER[span.kind],
            texts.number(span.detail),
            texts.number(span.where),
        ]
        for span in lane.spans
    ]
