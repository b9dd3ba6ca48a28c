"""The ratchet of whole programs: both suites by every predictor, compared with what is stored.

    python benchmarks/suites.py                    compares, exit code 1 where a group got worse
    python benchmarks/suites.py --update           stores the errors (ratchet.py)
    python benchmarks/suites.py --recordings DIR   keeps what was recorded, and prices it again

`results/suite_paper.csv` and `results/suite_published.csv` hold the signed error of each case and
predictor, what was assumed, and why a row was not run. Nothing is fitted to these figures. Needs
transformers (extra `[test]`), pandas (`[data]`) and, for image models, timm.

What limits the paper's suite, and how its predictors were set up. The papers' own figures, of their
own cases: NeuSight 8.9 % on NVIDIA (8.1 on GPUs left out), 11.2 on AMD, 14.9 fused, 7.7 on four
GPUs; roofline 31, Li et al. 60, Habitat 200 to 700 (arXiv 2407.13853, section 6). Habitat has no
kernel measured on another GPU here, so it is its perceptrons, and the roofline where it has none.

Switch Transformers run as the library did in 2024: experts one after the other, the position bias
added to the scores in place. All tokens of the source are alike, so one expert of a layer works, on
64 tokens a sequence: 1 to 4 % of the step, so the experts are not what is missing. On the A100 512
tokens come out right; 2,048 tokens and the V100 are 17 to 21 % too fast. Most likely that is the
bias: its neighbours lie apart, so each element costs a sector of DRAM once a head's plane outgrows
the L2 (8 MB at 512 tokens, 134 at 2,048; L2 40 MB, V100 6), and the physics counts the L2's sectors
alone. No table of single kernels here has such an addition, so nothing was changed.

The P4 that was measured slows down: its aligned FP32 products reach 4.5 TFLOP/s where they last
under 20 ms, and a median of 2.4 to 2.7 from 1e12 FLOP on (kernels.parquet). `tiled` takes the short
ones' rate for a whole step. `linear` is fitted by deviations in shares of the time: in microseconds
the starts of its lines, milliseconds long, made it 950 % slow on the H100.

Our `neusight` has layers 128 wide; with the published 512 its fully connected class, the one that
takes the time, does 0.1 to 0.2 points better on held-out shapes of A100, P100, T4 and V100 (18.3 to
20.2 %, all sizes of random products) and 0.1 worse on P4, for 8.4 times the training (638 s of CPU
for this class; ten classes are to be fitted in 30 minutes) and 16 times the weights.
`neusight fit --predictor neusight --width 512` makes them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ratchet

from neusight.integrations.suites.case import CaseProgram
from neusight.integrations.suites.evaluation import SUITES, SuiteReport, evaluate_suite
from neusight.integrations.suites.rendering import csv_text
from neusight.predictors.registry import DEFAULT_PREDICTOR, predictor_names

DATA = Path(__file__).parents[2] / "shared" / "data"
FOLDERS = {"paper": DATA / "paper_fp32", "published": DATA}


def stored(name: str) -> Path:
    """Where the errors of a suite are kept."""
    return Path(__file__).parent / "results" / f"suite_{name}.csv"


def rows() -> list[ratchet.Row]:
    """What the ratchet holds: the cases of both suites by the default predictor."""
    if not DATA.exists():
        return []
    reports = (evaluate_suite(name, FOLDERS[name], [DEFAULT_PREDICTOR]) for name in SUITES)
    return [row for report in reports for row in rows_of(report)]


def rows_of(report: SuiteReport) -> list[ratchet.Row]:
    """The default's cases as the ratchet takes them."""
    return [
        ratchet.Row(
            result.case.source, result.case.gpu.name, result.case.program.precision,
            "NHWC" if result.case.program.channels_last else "", _how(result.case.program),
            result.error, result.is_inside,
        )
        for result in report.results
        if result.predictor == DEFAULT_PREDICTOR
    ]  # fmt: skip


def _how(program: CaseProgram) -> str:
    """Training or inference, compiled, on several GPUs."""
    mode = {"inf": "inference", "train": "training"}.get(program.mode, program.mode)
    compiled = program.compiled and f"compiled {program.compiled}"
    return " ".join(filter(None, (mode, compiled, program.split)))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one")
    parser.add_argument("--recordings", type=Path)
    options = ratchet.parsed(parser, DATA, "measured programs")
    if options.suite and options.update:
        parser.error("--update stores the scores of both suites; leave --suite out")
    found: list[ratchet.Row] = []
    texts: dict[str, str] = {}
    for name in options.suite or SUITES:
        report = evaluate_suite(
            name, FOLDERS[name], predictor_names(), kept=options.recordings,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        texts[name] = csv_text(name, report.results, report.left_out)
        found += rows_of(report)
    if options.suite:
        print("".join(texts.values()), end="")
        return 0
    code = ratchet.judged("suites", found, options)
    if options.update and not code:
        for name, text in texts.items():
            stored(name).write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
