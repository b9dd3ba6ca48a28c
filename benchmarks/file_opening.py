"""CPU time that a process with a view of its own, or a supervised one, takes to begin and end.

    python benchmarks/file_opening.py [--files 100000] [--runs 7]

In a folder with that many files, and in an empty one: what opening costs must not grow with them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from neusight.integrations.program.guard.guarded_process import FILES_VARIABLE, in_guarded_process


def median_ms(folder: Path, runs: int) -> float:
    """CPU time of processes that do nothing, in a folder."""
    os.chdir(folder)
    times = []
    for _ in range(runs + 1):  # the first loads torch
        began = os.times()
        in_guarded_process(lambda store: None, ["script.py"])
        ended = os.times()  # of this process and of its children, user and system
        times.append(
            1e3 * sum(end - start for start, end in zip(began[:4], ended[:4], strict=True))
        )
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        empty, full = Path(place, "empty"), Path(place, "full")
        for folder in (empty, full):
            folder.mkdir()
        for number in range(options.files):
            (full / f"file-{number}").touch()
        for mode in ("view", "fallback"):
            os.environ[FILES_VARIABLE] = "overlay" if mode == "fallback" else "view"
            figures = [median_ms(folder, options.runs) for folder in (empty, full)]
            print(f"{mode:9} {figures[0]:7.1f} ms empty {figures[1]:7.1f} ms "
                  f"with {options.files:,} files")  # fmt: skip
        os.chdir("/")


if __name__ == "__main__":
    main()
