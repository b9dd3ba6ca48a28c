"""Tables as CSV: measured ones, and those in `results/`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table with these columns."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue()


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table with these columns."""
    path.write_text(table_text(columns, rows), encoding="utf-8")
