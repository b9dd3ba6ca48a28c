"""The ratchet of whole steps: forecasts of measured workloads, compared with the stored scores.

    python benchmarks/validation.py             compares, exit code 1 where one got worse
    python benchmarks/validation.py --update    stores better scores; worse ones only with --worse

Every folder of benchmarks/measured is validated as `neusight validate` does it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from neusight.integrations.profiles.validation import Validation, validate
from neusight.predictors.errors import DataError

STORED = Path(__file__).with_name("validation_scores.json")
MEASURED = Path(__file__).with_name("measured")

#: What an absolute error of a step may grow by before it counts as worse.
TOLERANCE = 0.003

Scores = dict[str, dict[str, float]]


def scores(measured: Path = MEASURED) -> Scores:
    """Absolute errors of step time, memory and kernels of each workload, shares."""
    found: Scores = {}
    for folder in sorted(path for path in measured.glob("*") if path.is_dir()):
        try:
            validation = validate(folder, progress=lambda text: print(f"  {text}", flush=True))
        except DataError as error:
            print(f"{folder.name}: {error}")
            continue
        print(validation.table())
        found |= scores_of(folder.name, validation)
    return found


def scores_of(folder: str, validation: Validation) -> Scores:
    """A folder's rows by "folder workload"."""
    return {
        f"{folder} {row.workload}": {
            name: round(abs(error), 4)
            for name, error in (
                ("step", row.error),
                ("memory", row.memory_error),
                ("kernels", row.kernel_error),
            )
            if error is not None
        }
        for row in validation.rows
    }


def worse(now: Scores, stored: Scores) -> list[str]:
    """What got worse, or is no longer scored, in words."""
    lines = [f"{name}: no longer scored" for name in stored if name not in now]
    for name, errors in now.items():
        for kind, error in errors.items():
            before = stored.get(name, {}).get(kind)
            if before is not None and error > before + TOLERANCE:
                lines.append(f"{name}: {kind} {before:.1%} -> {error:.1%}")
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="store the scores")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    stored: Scores = json.loads(STORED.read_text()) if STORED.exists() else {}
    now = scores()
    if not now and not stored:
        print(f"skipped: no workloads were measured yet (there is nothing in {MEASURED})")
        return 0
    lines = worse(now, stored)
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and (not lines or options.worse):
        STORED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
