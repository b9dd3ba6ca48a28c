"""Steps that were measured on real GPUs against forecasts: benchmarks/measured; and a ratchet.

    python benchmarks/measured_steps.py             compares, exit code 1 where one got worse
    python benchmarks/measured_steps.py --update    stores better errors; worse ones with --worse

Every folder is validated as `neusight validate` does it; the errors are stored in
results/measured_steps.csv. The steps named tv_… need torchvision and hf_… transformers; without
them they are left out, and keep their rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import read_table, write_table

from neusight.integrations.profiles.validation import validate

BENCHMARKS = Path(__file__).resolve().parent
MEASURED = BENCHMARKS / "measured"
RESULTS = BENCHMARKS / "results" / "measured_steps.csv"

COLUMNS = ("gpu", "step", "measured_ms", "error", "busy_error", "memory_error", "in_80", "bound")
ERRORS = ("error", "busy_error", "memory_error")

#: What an absolute error of a step may grow by before it counts as worse.
TOLERANCE = 0.003

#: Rows by GPU and step.
Rows = dict[tuple[str, str], Mapping[str, Any]]


def rows_of(report: Mapping[str, Any]) -> Rows:
    """A row for each step of `neusight validate`'s report; errors are shares."""
    return {
        (report["gpu"], row["workload"]): {
            "gpu": report["gpu"],
            "step": row["workload"],
            "measured_ms": round(row["measured_us"] / 1e3, 3),
            **{name: round(row[name], 4) for name in ERRORS},
            "in_80": int(row["is_inside"]),
            "bound": "host" if row["is_host_bound"] else "GPU",
        }
        for row in report["rows"]
    }


def worse(now: Rows, stored: Rows) -> list[str]:
    """What got worse, in words."""
    return [
        f"{' '.join(key)}: {name} {before:.1%} -> {after:.1%}"
        for key in now.keys() & stored.keys()
        for name in ERRORS
        for before, after in [[abs(float(rows[key][name])) for rows in (stored, now)]]
        if after > before + TOLERANCE
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="store the errors")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    stored: Rows = {(row["gpu"], row["step"]): row for row in read_table(RESULTS)}
    now: Rows = {}
    for folder in sorted(path for path in MEASURED.iterdir() if path.is_dir()):
        report = validate(folder, progress=lambda text: print(f"  {text}", flush=True))
        print(report.table())
        now |= rows_of(report.to_json())
    lines = worse(now, stored)
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and (not lines or options.worse):
        rows = {**stored, **now}
        write_table(RESULTS, COLUMNS, (rows[key].values() for key in sorted(rows)))
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
