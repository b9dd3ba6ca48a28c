"""Small compiled programs with CUDA graphs against measured times: data/kernelbench v0.

    python benchmarks/graphed_programs.py                          reduce-overhead on H100
    python benchmarks/graphed_programs.py --mode cudagraphs --list

What is judged is the host: programs that take less than 75 us when compiled without graphs.
Programs whose name hashes odd judge what was chosen on the even ones (programs.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import kernelbench
import programs
from kernelbench import Case

#: Modes of the data, and what of their names is left out here.
MODES = {
    "reduce-overhead": "compile_inductor_reduce-overhead",
    "cudagraphs": "compile_cudagraphs",
}
#: Longest time of a program, compiled without graphs, that the host alone bounds.
LONGEST_US = 75.0


def cases(mode: str, gpu: str) -> list[Case]:
    """Programs that the host bounds, in that mode on that GPU."""
    plain = kernelbench.cases(mode=kernelbench.COMPILED)
    short = {
        case.blob
        for case in plain
        if (case.gpu, case.version) == (gpu, "v0") and case.measured_us < LONGEST_US
    }
    return [
        case
        for case in kernelbench.cases(mode=MODES[mode])
        if case.gpu == gpu and case.blob in short and case.level < 3
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=[*MODES], default="reduce-overhead")
    parser.add_argument("--gpu", default="H100-SXM5-80GB")
    parser.add_argument("--list", action="store_true", help="a line for each program")
    parser.add_argument("--recordings", type=Path, default=programs.RECORDINGS)
    options = parser.parse_args()
    if not kernelbench.DATA.exists():
        print(f"skipped: there are no measured programs at {kernelbench.DATA}")
        return 0
    results = [
        programs.result_of(case, options.recordings) for case in cases(options.mode, options.gpu)
    ]
    for result in results:
        if options.list:
            figures = f"{result.measured_us:>8.1f} {result.forecast_us:>8.1f} {result.error:>+7.1%}"
            print(f"{result.half:<4} {result.name:<70} {figures} {result.reason}")
    for half in ("even", "odd"):
        errors = [abs(item.error) for item in results if item.half == half and not item.reason]
        if errors:
            print(f"{half}: median error {median(errors):.1%} of {len(errors)} programs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
