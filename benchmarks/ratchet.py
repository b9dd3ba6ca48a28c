"""Scores by group, of every source, so that no better total hides a group that got worse.

    python benchmarks/ratchet.py                        every source, against its stored scores
    python benchmarks/ratchet.py llm_layers deepbench   some of them
    python benchmarks/ratchet.py --update               stores the scores
    python benchmarks/ratchet.py --table                all groups with median, bias and intervals
    python benchmarks/ratchet.py --history FILE.csv     stored scores beside the first ones in git

A group is what a source measured on one GPU in one layout and dtype, in training or in inference;
groups of fewer than 8 rows are not held. One is worse where its median error grew by more than 10 %
of itself, or where rows of it are no longer scored. A worse group fails, and is not stored, unless
CHANGELOG.md says why: in a line of `### Groups that got worse` with the group's name in backticks.
The scores lie in `group_scores/`, a file a source. Each benchmark compares its own source alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tables import write_table

STORED = Path(__file__).with_name("group_scores")
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"

#: Rows from which on a group is held.
LEAST_ROWS = 8
#: What a group's median error may grow by, as a share of itself.
TOLERANCE = 0.1
#: What it may grow by at least: another version of a library moves a rounding.
LEAST_GROWTH = 0.002

#: The heading of CHANGELOG.md below which groups that got worse are named, with the reason.
HEADING = "### Groups that got worse"

#: The module of each source, whose `rows()` scores it.
SOURCES = {
    "kernel_tables": "accuracy",
    "deepbench": "deepbench",
    "llm_layers": "llm_layers",
    "profiled_kernels": "profiled_kernels",
    "programs": "programs",
    "compiled_programs": "compiled_programs",
    "torchvision_cnn": "vision_networks",
    "suites": "suites",
}


@dataclass(frozen=True)
class Row:
    """A measurement beside its forecast: what it is of (an op, a level, a model's family), where
    and how it ran ("" where that does not matter), and the signed error, a share. `is_inside` says
    whether the measurement lies in the 80 % interval, where there is one."""

    what: str
    gpu: str
    dtype: str = ""
    layout: str = ""
    mode: str = ""
    error: float = 0.0
    is_inside: bool | None = None

    @property
    def group(self) -> str:
        """The group's name."""
        return " | ".join(filter(None, (self.what, self.gpu, self.dtype, self.layout, self.mode)))


@dataclass(frozen=True)
class Score:
    """A group: its rows, median error, bias (the median of signed errors), both shares, and the
    share of its rows in the 80 % interval (None where there is none)."""

    rows: int
    median: float
    bias: float
    in_80: float | None = None


def scores(rows: Iterable[Row]) -> dict[str, Score]:
    """The score of each group, by name."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return {name: _score(group) for name, group in sorted(groups.items())}


def _score(group: Sequence[Row]) -> Score:
    inside = [row.is_inside for row in group if row.is_inside is not None]
    return Score(
        rows=len(group),
        median=round(median(abs(row.error) for row in group), 4),
        bias=round(median(row.error for row in group), 4),
        in_80=round(sum(inside) / len(inside), 2) if inside else None,
    )


def worse(now: Mapping[str, Score], stored: Mapping[str, Score]) -> dict[str, str]:
    """What got worse, in words, by group: errors, and rows that are no longer scored."""
    found: dict[str, str] = {}
    for name, before in stored.items():
        after = now.get(name)
        if before.rows < LEAST_ROWS:
            continue
        if after is None or after.rows < before.rows:
            left = 0 if after is None else after.rows
            found[name] = f"{before.rows} -> {left} rows"
        elif after.median > max(before.median * (1.0 + TOLERANCE), before.median + LEAST_GROWTH):
            found[name] = f"{before.median:.1%} -> {after.median:.1%}"
    return found


def explained(changelog: str) -> dict[str, str]:
    """The groups that a changelog names as worse, and the line that says why."""
    _, _, section = changelog.partition(HEADING)
    section = re.split(r"^#{1,3} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    items = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(re.sub(r"`[^`]*`", "", item).split()).strip(" :,")
        for item in items
        for name in re.findall(r"`([^`]+)`", item)
    }


def read_scores(source: str, folder: Path = STORED) -> dict[str, Score]:
    """The stored scores of a source; empty where there are none."""
    path = folder / f"{source}.json"
    if not path.exists():
        return {}
    return {name: Score(**values) for name, values in json.loads(path.read_text()).items()}


def write_scores(source: str, now: Mapping[str, Score], folder: Path = STORED) -> None:
    """Stores them, a line a group."""
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(_figures(score))}" for name, score in sorted(now.items())
    )
    (folder / f"{source}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _figures(score: Score) -> dict[str, float]:
    """Its figures; no share in an interval where there is none."""
    return {name: value for name, value in asdict(score).items() if value is not None}


def parsed(
    parser: argparse.ArgumentParser, data: Path = STORED, what: str = "scores"
) -> argparse.Namespace:
    """The options, with those that every benchmark with a ratchet has; where what it scores is not
    there, the command ends."""
    parser.add_argument("--update", action="store_true", help="store the scores")
    parser.add_argument("--table", action="store_true", help="all groups, with bias and intervals")
    options = parser.parse_args()
    if not data.exists():
        print(f"skipped: there are no {what} at {data}")
        parser.exit()
    return options


def judged(source: str, rows: Iterable[Row], options: argparse.Namespace) -> int:
    """Prints which groups of a source got worse, and stores its scores where asked; 1 where a
    group got worse and the changelog does not say why."""
    now, stored = scores(rows), read_scores(source)
    if options.table:
        print(table(source, now, stored))
    found = worse(now, stored)
    reasons = explained(CHANGELOG.read_text(encoding="utf-8"))
    unexplained = {name: what for name, what in found.items() if name not in reasons}
    for name, what in found.items():
        print(f"{source}: worse: {name}: {what} ({reasons.get(name, 'no reason in CHANGELOG.md')})")
    if not found:
        print(f"{source}: no group got worse ({len(now)} groups)")
    if options.update and not unexplained:
        write_scores(source, now)
    return 1 if unexplained else 0


def run(source: str, description: str | None, data: Path, rows: Callable[[], Iterable[Row]]) -> int:
    """The command of a benchmark that does no more than score a source."""
    options = parsed(argparse.ArgumentParser(description=description), data, "measurements")
    return judged(source, rows(), options)


def summary(groups: Mapping[str, Sequence[Row]]) -> str:
    """A line a group: cases, median error, bias, shares below 20 % and in the 80 % interval."""
    lines = [f"{'group':<52} {'cases':>5} {'median':>7} {'bias':>7} {'<20 %':>6} {'in 80 %':>7}"]
    for name, group in groups.items():
        score = _score(group)
        within = sum(abs(row.error) < 0.2 for row in group) / len(group)
        inside = "" if score.in_80 is None else f"{score.in_80:.0%}"
        lines.append(
            f"{name:<52} {score.rows:>5} {score.median:>7.1%} {score.bias:>+7.1%} {within:>6.0%}"
            f" {inside:>7}"
        )
    return "\n".join(lines)


def table(source: str, now: Mapping[str, Score], stored: Mapping[str, Score]) -> str:
    """A line a group: rows, median error and what it was, bias, share in the 80 % interval."""
    lines = [f"{source:<76} {'rows':>5} {'median':>7} {'before':>7} {'bias':>7} {'in 80 %':>7}"]
    for name, score in now.items():
        before = f"{stored[name].median:.1%}" if name in stored else ""
        inside = "" if score.in_80 is None else f"{score.in_80:.0%}"
        lines.append(
            f"{name:<76} {score.rows:>5} {score.median:>7.1%} {before:>7} {score.bias:>+7.1%}"
            f" {inside:>7}"
        )
    return "\n".join(lines)


def first_scores(source: str) -> dict[str, Score]:
    """The scores of a source in the commit that first stored them."""
    path = f"benchmarks/group_scores/{source}.json"
    commits = _git("log", "--diff-filter=A", "--format=%H", "--", path).split()
    text = _git("show", f"{commits[-1]}:{path}") if commits else "{}"
    return {name: Score(**values) for name, values in json.loads(text).items()}


def _git(*arguments: str) -> str:
    folder = Path(__file__).parents[1]
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def write_history(path: Path) -> None:
    """A line a group: its score as stored, and the first one; groups that are new have none."""
    figures = ("rows", "median", "bias")
    firsts = (f"first_{name}" for name in figures)
    rows = []
    for source in SOURCES:
        first = first_scores(source)
        for name, score in read_scores(source).items():
            before = first.get(name)
            past = (before.rows, before.median, before.bias) if before else ("", "", "")
            rows.append((source, name, score.rows, score.median, score.bias, score.in_80, *past))
    write_table(path, ("source", "group", *figures, "in_80", *firsts), rows)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="*", metavar="SOURCE", help=", ".join(SOURCES))
    parser.add_argument("--history", type=Path, metavar="FILE", help="write it, and no more")
    options = parsed(parser)
    if options.history:
        write_history(options.history)
        return 0
    unknown = sorted(set(options.source) - set(SOURCES))
    if unknown:
        parser.error(f"unknown source {unknown[0]!r}; known: {', '.join(SOURCES)}")
    codes = []
    for source in options.source or SOURCES:
        rows = list(importlib.import_module(SOURCES[source]).rows())
        if not rows:
            print(f"{source}: skipped: its measurements are not there")
            continue
        codes.append(judged(source, rows, options))
    return max(codes, default=0)


if __name__ == "__main__":
    raise SystemExit(main())
