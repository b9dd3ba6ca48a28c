"""What runs under a forecast: operators, models, habits and public scripts; writes COVERAGE.md.

    python benchmarks/coverage.py                         everything (hours), with the time left
    python benchmarks/coverage.py operators habits        only these kinds
    python benchmarks/coverage.py operators --only cov    only cases with this in their names
    python benchmarks/coverage.py habits --again          only cases that were not ok, or are new
    python benchmarks/coverage.py --sample                a few of each kind, in a minute
    python benchmarks/coverage.py --document              only COVERAGE.md, from the kept tables

Cases run in processes of their own, two at a time, each with a time limit; one that dies or hangs
is a failed case. Outcomes are kept in `benchmarks/coverage/` (or `--out`), and a run that was
interrupted goes on where it was. Exit code 1 if a case came out worse than it was kept; `--worse`
keeps it all the same. A sample keeps nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from covered import document, rows
from covered.cases import STATUSES, CannotTry, Case
from covered.rows import Row
from covered.workers import Worker, serve

DOCUMENT = Path(__file__).resolve().parents[1] / "COVERAGE.md"

#: Processes that run cases at a time.
NUM_WORKERS = 2

#: Seconds between two lines of progress.
PROGRESS_S = 10.0


def cases_of(kind: str) -> list[Case]:
    """The cases of a kind; `CannotTry` where none can be listed here."""
    if importlib.util.find_spec(f"covered.{kind}") is None:
        raise CannotTry("nothing is listed yet")
    found = list(importlib.import_module(f"covered.{kind}").cases())
    counts = Counter(case.name for case in found)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"{kind}: several cases are called {', '.join(twice)}")
    return found


class Progress:
    """Lines that say how far a kind is."""

    def __init__(self, kind: str, num_cases: int) -> None:
        self._kind = kind
        self._num_cases = num_cases
        self._counts = dict.fromkeys(STATUSES, 0)
        self._began_s = self._said_s = time.monotonic()

    def add(self, row: Row) -> None:
        """Counts a row; reports it if it is not ok, and of all from time to time."""
        self._counts[row.status] += 1
        if row.status not in ("ok", "skipped"):
            print(f"  {row.status}: {row.name}: {row.reason}", flush=True)
        now_s = time.monotonic()
        if now_s - self._said_s > PROGRESS_S:
            self._said_s = now_s
            print(self.line(), flush=True)

    def line(self) -> str:
        """Counts, and the time that is left if the rest takes as long a case."""
        done = sum(self._counts.values())
        counts = ", ".join(f"{count} {status}" for status, count in self._counts.items() if count)
        left_s = (time.monotonic() - self._began_s) / max(done, 1) * (self._num_cases - done)
        left = (
            f"; {left_s // 60:.0f} min {left_s % 60:.0f} s left" if done < self._num_cases else ""
        )
        return f"{self._kind}: {done} of {self._num_cases}: {counts}{left}"


def tried(kind: str, cases: list[Case], partial: Path | None) -> dict[str, Row]:
    """Runs the cases, and adds each row to `partial`, whose cases are not run again."""
    names = {case.name for case in cases}
    before = rows.read(partial) if partial else {}
    found = {name: row for name, row in before.items() if name in names}
    if found:
        print(f"{kind}: {len(found)} of {len(cases)} were tried before the run was interrupted")
    progress = Progress(kind, len(cases) - len(found))
    workers: SimpleQueue[Worker] = SimpleQueue()
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", kind]
    every = [Worker(command) for _ in range(NUM_WORKERS)]
    for worker in every:
        workers.put(worker)

    def run(case: Case) -> Row:
        worker = workers.get()
        try:
            return rows.row_of(case.name, worker.run(case))
        finally:
            workers.put(worker)

    pool = ThreadPoolExecutor(NUM_WORKERS)
    try:
        pending = [pool.submit(run, case) for case in cases if case.name not in found]
        for future in as_completed(pending):
            row = future.result()
            found[row.name] = row
            progress.add(row)
            if partial:
                rows.append(partial, row)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in every:
            worker.end()
    print(progress.line(), flush=True)
    return found


def kept(kind: str, cases: list[Case], options: argparse.Namespace) -> list[str]:
    """Tries the cases of a kind that are asked for and keeps their rows; what got worse."""
    path = options.out / f"{kind}.csv"
    before = rows.read(path)
    ok = {name for name, row in before.items() if row.status == "ok"}
    chosen = [
        case
        for case in cases
        if options.only in case.name
        and (case.is_sampled or not options.sample)
        and not (options.again and case.name in ok)
    ]
    if options.sample or options.only or options.again:
        found = tried(kind, chosen, None)
    else:
        partial = options.out / f"{kind}.partial.csv"
        found = tried(kind, chosen, partial)
        partial.unlink(missing_ok=True)
    lines = rows.worse(before, found)
    if not options.sample and (options.worse or not lines or options.out != rows.KEPT):
        rows.write(path, rows.merged(before, found, [case.name for case in cases]).values())
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(document.KINDS)}; all if none")
    parser.add_argument("--sample", action="store_true", help="a few cases of each; keeps nothing")
    parser.add_argument("--only", default="", help="only cases with this in their names")
    parser.add_argument("--again", action="store_true", help="only cases that are not kept as ok")
    parser.add_argument("--out", type=Path, default=rows.KEPT, help="folder of the tables")
    parser.add_argument("--worse", action="store_true", help="keep worse outcomes too")
    parser.add_argument("--document", action="store_true", help="only write COVERAGE.md")
    parser.add_argument("--programs", type=Path, help="folder of the public scripts' checkouts")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.programs:  # the processes that run cases read it there
        os.environ["NEUSIGHT_PROGRAMS"] = str(options.programs.resolve())
    if options.serve:
        serve(iter(cases_of(options.serve)))
        return 0
    strangers = [kind for kind in options.kinds if kind not in document.KINDS]
    if strangers:
        parser.error(f"no kind is called {strangers[0]}: {', '.join(document.KINDS)}")
    lines = []
    for kind in [] if options.document else options.kinds or document.KINDS:
        try:
            lines += kept(kind, cases_of(kind), options)
        except CannotTry as missing:
            print(f"{kind}: skipped: {missing}")
    if not options.sample:
        path = DOCUMENT if options.out == rows.KEPT else options.out / DOCUMENT.name
        path.write_text(document.document(document.tables_in(options.out)), encoding="utf-8")
    if lines:
        print("\n".join(["worse:", *lines]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
