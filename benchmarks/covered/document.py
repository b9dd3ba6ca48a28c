"""COVERAGE.md, written from the kept tables and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from covered import rows
from covered.cases import STATUSES
from covered.rows import Row

#: Kind, its heading, and what one of its cases is.
KINDS = {
    "operators": (
        "Operators",
        "Each operator of torch's own test databases (`op_db` and its like), each module of"
        " `module_db` and each optimizer of `optim_db` with its flags, float32 and bfloat16,"
        " forward and backward: shapes, dtypes and strides are compared with those of the CPU, or"
        " with those of CUDA where they differ, for up to six samples of each. Values are not: a"
        " forecast has none. Mistakes: operands that an operator refuses on a GPU, by the class and"
        " the words of its errors.",
    ),
    "models": (
        "Models",
        "Each type of transformers' AutoConfig that a class of models takes, made small: forward, "
        "a step of AdamW and generate, where the CPU runs them. Sizes that values decide "
        "(durations, matches, waveforms) are invented, and so differ.",
    ),
    "habits": ("Habits", "What training and inference scripts do beside layers and losses."),
    "scripts": (
        "Scripts",
        "Public programs, unmodified, by name and commit. **ok**: the forecast's step is the one "
        "that the author means, with the author's batch (`benchmarks/covered/scripts.toml`); "
        "**difference**: it is not.",
    ),
}

_HEAD = """\
# What runs

What was tried under a forecast, and how it came out. This file is written by
`python benchmarks/coverage.py` from the tables in `benchmarks/coverage/`; `--sample` tries a few of
each kind, `--only NAME` those with this in their names.

**ok**: as on a GPU. **difference**: it ran, and a shape, dtype or stride is another one.
**refused**: a limit, with a message that names it. **failed**: anything else. **skipped**: it could
not be tried (a package is absent, a download is needed, torch's own CPU cannot run it). The share
is that of ok among all that were tried.
"""


def document(tables: dict[str, dict[str, Row]]) -> str:
    """The text of COVERAGE.md."""
    lines = [_HEAD, f"| kind | cases | {' | '.join(STATUSES)} | share |"]
    lines.append("|---|" + "---:|" * (len(STATUSES) + 2))
    for kind, table in tables.items():
        lines += [_totals(KINDS[kind][0], list(table.values()))]
        lines += [_totals(name, group) for name, group in _groups(table).items()]
    for kind, table in tables.items():
        title, words = KINDS[kind]
        versions = sorted({row.version for row in table.values() if row.version})
        tried = f" Tried with {', '.join(versions)}." if 0 < len(versions) <= 3 else ""
        link = f"[{kind}.csv](benchmarks/coverage/{kind}.csv)"
        lines += ["", f"## {title}", "", f"{words}{tried} All rows: {link}."]
        lines += _list(table)
        lines += _skipped(table)
    return "\n".join(lines) + "\n"


def _totals(name: str, group: list[Row]) -> str:
    counts = [sum(row.status == status for row in group) for status in STATUSES]
    return f"| {name} | {len(group)} | {' | '.join(map(str, counts))} | {_share(group)} |"


def _share(group: list[Row]) -> str:
    tried = [row for row in group if row.status != "skipped"]
    good = sum(row.status == "ok" for row in tried)
    return f"{100 * good / len(tried):.1f} %" if tried else ""


def _groups(table: dict[str, Row]) -> dict[str, list[Row]]:
    """Rows whose names begin alike, up to a slash: only where all of a kind have one."""
    if not table or any("/" not in name for name in table):
        return {}
    found: dict[str, list[Row]] = {}
    for name, row in table.items():
        found.setdefault(name.rpartition("/")[0], []).append(row)
    return found


#: The order of lists: what is wrong comes first.
_LISTED = ("failed", "difference", "refused")
#: Characters of a reason that are shown; the table has all of it.
_LONG_REASON = 110


def _list(table: dict[str, Row]) -> list[str]:
    """Every row that was tried and is not ok."""
    found = [row for row in table.values() if row.status in _LISTED]
    if not found:
        return ["", "All that were tried are ok." if table else "None was tried yet."]
    lines = ["", "| case | outcome | reason |", "|---|---|---|"]
    for row in sorted(found, key=lambda row: (_LISTED.index(row.status), row.name)):
        reason = row.reason.replace("|", "\\|")
        shown = reason if len(reason) <= _LONG_REASON else f"{reason[:_LONG_REASON].rstrip()} …"
        lines.append(f"| {row.name} | {row.status} | {shown} |")
    return lines


def _skipped(table: dict[str, Row]) -> list[str]:
    """How many could not be tried, by the beginning of the reason."""
    counts = Counter(
        row.reason.partition(":")[0] for row in table.values() if row.status == "skipped"
    )
    if not counts:
        return []
    shown = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(4))
    return ["", f"Skipped: {shown}{'; others' if len(counts) > 4 else ''}."]


def tables_in(folder: Path) -> dict[str, dict[str, Row]]:
    """The tables of all kinds in a folder."""
    return {kind: rows.read(folder / f"{kind}.csv") for kind in KINDS}
