"""Checks one program again and again under other conditions: every forecast must be the same bytes.

    python benchmarks/determinism.py [--runs 200] [--seed 0] [--project examples/ci]

Each run is a process of its own with another hash seed, number of threads, BLAS core type and set
of CPU features that NumPy may use. Every other run judges the project by the baseline that the
first one wrote: anything but "same as the baseline" is a false alarm. The rest write the baseline
again, rows and all: it must be equal byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
THREADS = ("1", "2", "3", "4", "8")
#: OpenBLAS kernels that an x86-64 with AVX2 can run.
CORE_TYPES = ("", "Prescott", "Nehalem", "Sandybridge", "Haswell", "Zen")
#: What NumPy is told to do without; unknown names are warned of and ignored.
FEATURES = ("", "AVX512F AVX512CD AVX512_SKX", "AVX2 FMA3", "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX")


def conditions(generator: random.Random) -> dict[str, str]:
    """Environment variables of one run."""
    threads = generator.choice(THREADS)
    return {
        "PYTHONHASHSEED": str(generator.randrange(2**32)),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "OPENBLAS_CORETYPE": generator.choice(CORE_TYPES),
        "NPY_DISABLE_CPU_FEATURES": generator.choice(FEATURES),
        "PYTHONWARNINGS": "ignore",
    }


def check(folder: Path, environment: dict[str, str], *options: str) -> tuple[int, str]:
    """Exit code and output of `neusight check` in the project."""
    done = subprocess.run(
        [sys.executable, "-m", "neusight", "check", "--quiet", *options],
        cwd=folder,
        env={**os.environ, **{name: value for name, value in environment.items() if value}},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Runs, prints the count of each outcome; 1 where any run differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--project", type=Path, default=ROOT / "examples" / "ci")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="neusight-") as temporary:
        folder = Path(temporary) / "project"
        shutil.copytree(options.project, folder)
        (folder / "neusight.json").unlink(missing_ok=True)
        code, printed = check(folder, conditions(generator), "--update")
        if code:
            print(printed)
            return code
        first = (folder / "neusight.json").read_bytes()
        for number in range(options.runs):
            environment = conditions(generator)
            if number % 2:
                code, printed = check(folder, environment)
                is_same = code == 0 and "same as the baseline" in printed
                outcome = "judged the same" if is_same else "FALSE ALARM"
            else:
                other = folder / "other.json"
                other.unlink(missing_ok=True)
                code, printed = check(folder, environment, "--update", "--baseline", other.name)
                is_same = code == 0 and other.read_bytes() == first
                outcome = "written byte for byte" if is_same else "OTHER BYTES"
            outcomes[outcome] += 1
            if not is_same:
                print(f"run {number}: {outcome} with {environment}\n{printed}", flush=True)
    seconds = (time.perf_counter() - started) / (options.runs + 1)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:>6}  {outcome}")
    print(f"{seconds:6.1f}  seconds a run")
    return int(any(outcome.isupper() for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
