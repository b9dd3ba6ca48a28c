"""Text as a terminal may show it: names of modules and files cannot control it, and no
line is longer than the terminal is wide."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from itertools import groupby
from typing import TextIO

#: Narrower, and lines are left to the terminal.
_LEAST_COLUMNS = 40
#: What a line of the first screen begins with; what is below it is indented as far.
_LABEL = re.compile(r"^  [^ ]+(?: [^ ]+)? {2,}")
#: The lines of a table have at least so many gaps.
_GAPS = 2
_GAP = re.compile(r"(?<=[^ ]) {2,}(?=[^ ])")
#: How far the rest of a row is indented.
_REST = 4


def fitted(text: str, stream: TextIO) -> str:
    """The text with its long lines broken where a terminal is narrower: prose below its beginning,
    tables between columns. As it is for a file or a pipe. COLUMNS states another width.

    >>> from io import StringIO
    >>> fitted("  note      a text that is long", StringIO())
    '  note      a text that is long'
    """
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    if columns < _LEAST_COLUMNS:
        return text
    found: list[str] = []
    for is_table, lines in groupby(text.split("\n"), _is_of_table):
        block = list(lines)
        if is_table and max(map(len, block)) > columns:
            found += _narrower(block, columns)
        else:
            found += [part for line in block for part in _broken(line, columns)]
    return "\n".join(found)


def _is_of_table(line: str) -> bool:
    return len(_GAP.findall(line)) >= _GAPS


def _narrower(rows: list[str], columns: int) -> list[str]:
    """A table with no more than two spaces between its columns; what is still too wide below."""
    width = max(map(len, rows))
    padded = [row.ljust(width) for row in rows]
    first = min(len(row) - len(row.lstrip()) for row in rows)
    blank = [all(row[at] == " " for row in padded) for at in range(width)]
    kept = [at for at in range(width) if at < first or not all(blank[max(at - 2, 0) : at + 1])]
    rows = ["".join(row[at] for at in kept).rstrip() for row in padded]
    blank = [blank[at] for at in kept]
    if max(map(len, rows)) <= columns:
        return rows
    starts = [at for at in range(2, len(blank)) if blank[at - 2] and blank[at - 1]]
    place = max((at for at in starts if first < at <= columns), default=columns)
    rest = [row[place:] for row in rows]
    indent = min((len(part) - len(part.lstrip()) for part in rest if part.strip()), default=0)
    below = [" " * (first + _REST) + part[indent:] if part.strip() else "" for part in rest]
    if any(len(part) > columns for part in below):
        below = [" " * (first + _REST) + re.sub(" {2,}", "  ", part.strip()) for part in rest]
    return [
        part
        for row, after in zip(rows, below, strict=True)
        for line in (row[:place].rstrip(), after.rstrip())
        for part in _broken(line, columns)
        if part
    ]


def _broken(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    label = _LABEL.match(line)
    indent = label.end() if label is not None else len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=" " * min(indent, columns // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str) -> str:
    """The text in one line, control characters and those that turn its direction as escapes.

    >>> print(printable("layer\\x1b[31m\\n.weight"))
    layer\\x1b[31m\\n.weight
    """
    if text.isprintable():
        return text
    tabless = text.replace("\t", " ")
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii")
        for one in tabless
    )


def printable_lines(lines: Iterable[str]) -> str:
    """A text of those lines, each as one."""
    return "\n".join(printable(line) for line in lines)


def printable_text(text: str) -> str:
    """The same for a text that has lines already."""
    return printable_lines(text.split("\n"))
