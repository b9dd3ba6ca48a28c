"""Steps that were measured on real GPUs against forecasts: benchmarks/measured.

    python benchmarks/measured_steps.py             prints a line for each step
    python benchmarks/measured_steps.py --update    writes results/measured_steps.csv too

The steps named tv_… need torchvision and hf_… transformers; without them they are left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from neusight.integrations.profiles.validation import validate

BENCHMARKS = Path(__file__).resolve().parent
MEASURED = BENCHMARKS / "measured"
RESULTS = BENCHMARKS / "results" / "measured_steps.csv"

COLUMNS = ("gpu", "step", "measured_ms", "error", "busy_error", "memory_error", "in_80", "bound")


def rows_of(report: dict[str, Any]) -> list[dict[str, object]]:
    """A row of the table for each step of `neusight validate`'s report; errors are shares."""
    return [
        {
            "gpu": report["gpu"],
            "step": row["workload"],
            "measured_ms": round(row["measured_us"] / 1e3, 3),
            "error": round(row["error"], 4),
            "busy_error": round(row["busy_error"], 4),
            "memory_error": round(row["memory_error"], 4),
            "in_80": int(row["is_inside"]),
            "bound": "host" if row["is_host_bound"] else "GPU",
        }
        for row in report["rows"]
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the table")
    options = parser.parse_args()
    found = [validate(folder) for folder in sorted(MEASURED.iterdir()) if folder.is_dir()]
    rows = [row for report in found for row in rows_of(report.to_json())]
    for report in found:
        print(report.table())
    if options.update:
        with RESULTS.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
