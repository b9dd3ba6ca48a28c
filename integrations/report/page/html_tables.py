"""Tables of a page: rows that read without a script; with it they sort and can be searched."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from neusight.predictors.formatting import bytes_text, time_text

#: Names are cut here: those of templated kernels have thousands of characters.
_LONGEST_TEXT = 240


@dataclass(frozen=True)
class Detail:
    """How much of each forecast a page shows; the rest is summed up, with a note."""

    num_spans: int
    num_rows: int
    num_instances: int

    def shared(self, share: float) -> Detail:
        """That part of it."""
        return Detail(
            num_spans=max(60, int(self.num_spans * share)),
            num_rows=max(10, int(self.num_rows * share)),
            num_instances=int(self.num_instances * share),
        )


class Cell(NamedTuple):
    """What is read, and the number that it sorts by (None: by its words)."""

    text: str
    value: float | None = None


def time_cell(microseconds: float) -> Cell:
    """A duration.

    >>> time_cell(1500.0)
    Cell(text='1.50 ms', value=1500.0)
    """
    return Cell(time_text(microseconds), round(microseconds, 3))


def bytes_cell(count: float) -> Cell:
    """An amount of memory."""
    return Cell(bytes_text(count), count)


def count_cell(count: int) -> Cell:
    """How many."""
    return Cell(f"{count:,}", count)


def share_cell(share: float) -> Cell:
    """A part of one."""
    return Cell(f"{share:.1%}", round(share, 6))


def pattern_of(module: str) -> str:
    """The path of a module with a star for each number in it: blocks that repeat are one.

    >>> pattern_of("GPT2.blocks.11.mlp.0")
    'GPT2.blocks.*.mlp.*'
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)


def shortened(text: str) -> str:
    """A name that is not too long for a page."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    *,
    caption: str = "",
    words: Collection[int] = (),
    kinds: Sequence[str] = (),
    rest: Sequence[str | Cell] = (),
    bars: Collection[int] = (),
) -> str:
    """`words` are the columns of prose; `kinds` the colour of each row, for its first cell; `rest`
    what is left out, in one row that stays below; `bars` the columns of shares, drawn as such."""
    classes = [
        " ".join([*(["words"] if c in words else []), *(["bar"] if c in bars else [])])
        for c in range(len(header))
    ]
    lines = ['<div class="table"><div class="scroll"><table class="data">']
    lines += [f"<caption><span>{escape(caption)}</span></caption>"] if caption else []
    heads = (f"<th{_class(classes[c])} scope=col>{escape(t)}</th>" for c, t in enumerate(header))
    lines.append(f"<thead><tr>{''.join(heads)}</tr></thead><tbody>")
    for number, row in enumerate(rows):
        mark = f'<span class="swatch c-{kinds[number]}"></span>' if number < len(kinds) else ""
        lines.append(_row(row, classes, mark))
    lines += ["</tbody>", *([f"<tfoot>{_row(rest, classes)}</tfoot>"] if rest else [])]
    return "\n".join([*lines, "</table></div></div>"])


def _row(row: Sequence[str | Cell], classes: Sequence[str], mark: str = "") -> str:
    cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
    return (
        "<tr>"
        + "".join(
            f"<td{_class(classes[column])}{_value(cell)}>{'' if column else mark}"
            f"{_breakable(cell.text) if cell.value is None else escape(cell.text)}</td>"
            for column, cell in enumerate(cells)
        )
        + "</tr>"
    )


def _breakable(text: str) -> str:
    """Names may be broken between their parts."""
    return re.sub(r"(?<=\w)([_.:/]+)(?=\w)", r"\1<wbr>", escape(shortened(text)))


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _value(cell: Cell) -> str:
    return "" if cell.value is None else f' data-v="{cell.value:.12g}"'


def data_element(name: str, value: Any) -> str:
    """JSON in a script element of that name: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>'
