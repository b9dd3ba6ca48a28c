"""Kept outcomes: one table a kind, sorted by name."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tables import read_table, write_table

from covered.cases import Outcome, Status

#: Where the outcomes lie that the project keeps.
KEPT = Path(__file__).resolve().parents[1] / "coverage"


@dataclass(frozen=True, order=True)
class Row:
    """A case by name, and how it came out."""

    name: str
    status: Status
    reason: str = ""
    version: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


def row_of(name: str, outcome: Outcome) -> Row:
    """The row of an outcome."""
    return Row(name, outcome.status, outcome.reason, outcome.version)


def read(path: Path) -> dict[str, Row]:
    """The rows of a table by name; none where there is no table."""
    return {fields["name"]: Row(**fields) for fields in read_table(path)}  # type: ignore[arg-type]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes a table, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    write_table(draft, COLUMNS, map(astuple, sorted(rows)))
    draft.replace(path)


def append(path: Path, row: Row) -> None:
    """Adds a row at once, so that an interrupted run can go on."""
    if not path.exists():
        write(path, [])
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerow(astuple(row))


def merged(
    kept: dict[str, Row], tried: dict[str, Row], known: Iterable[str] | None
) -> dict[str, Row]:
    """The rows to keep: what was seen last. What could not be tried here does not replace how it
    came out elsewhere, but a failure: a package that is absent fails by many errors before its case
    names it. What is no longer a case goes, if `known` names all cases."""
    found = dict(kept)
    for name, row in tried.items():
        is_kept = name in kept and kept[name].status not in ("skipped", "failed")
        if row.status != "skipped" or not is_kept:
            found[name] = row
    names = set(found) if known is None else set(known)
    return {name: row for name, row in sorted(found.items()) if name in names}


#: From best to worst.
_ORDER = ("ok", "skipped", "difference", "refused", "failed")


def worse(kept: dict[str, Row], tried: dict[str, Row]) -> list[str]:
    """What came out worse than it is kept, in words."""
    return [
        f"{name}: {kept[name].status} -> {row.status}: {row.reason}"
        for name, row in sorted(tried.items())
        if name in kept
        and row.status != "skipped"
        and _ORDER.index(row.status) > _ORDER.index(kept[name].status)
    ]
