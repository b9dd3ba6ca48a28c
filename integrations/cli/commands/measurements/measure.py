"""`neusight measure`: measures the GPU of this machine, for better forecasts of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neusight.exit_codes import ExitCode
from neusight.integrations.profiles.measuring import (
    MeasuringResult,
    Part,
    WorkerProcess,
    WorkloadSetting,
    measure,
    read_settings,
    worker_command,
)
from neusight.predictors.errors import DataError
from neusight.predictors.terminal_text import printable

HELP = "measure the GPU of this machine"
DESCRIPTION = (
    "Measure the constants of this machine's GPU, kernels of every class, and whole training and "
    "inference steps, within a time budget. Run the same command again to continue. Nothing of "
    "the GPU is changed."
)

DEFAULT_MINUTES = 8.0
#: The workloads of the source tree.
WORKLOADS = Path(__file__).parents[4] / "benchmarks" / "workloads"

#: How `neusight measure` is started again as a measuring process.
MEASURE = (sys.executable, "-m", "neusight", "measure")

_BAR_WIDTH = 24
_REASONS_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `neusight measure`."""
    parser.add_argument("--out", metavar="DIR",
                        help="folder for the measurements; with the same one again, measuring "
                            "continues")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, metavar="N",
                        help=f"time budget, about ({DEFAULT_MINUTES:g})")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="only the constants of the GPU, a minute")  # fmt: skip
    parser.add_argument("--workloads", action="store_true",
                        help="only whole training and inference steps")  # fmt: skip
    parser.add_argument("--kernels", action="store_true", help="only kernels")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="this workload, also several")  # fmt: skip
    parser.add_argument("--workloads-from", metavar="DIR", default=str(WORKLOADS),
                        help="folder with settings.json and scripts")  # fmt: skip
    parser.add_argument("--even-if-busy", action="store_true",
                        help="measure although other work runs on the GPU")  # fmt: skip
    parser.add_argument("--rehearse", metavar="GPU",
                        help="go through all of it on a forecast of that GPU")  # fmt: skip
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace, *, start: Sequence[str] = MEASURE) -> int:
    """Measures, and shows what came out; `start` is the command that runs this one again."""
    if options.worker:
        from neusight.integrations.profiles.measuring_worker import main

        return main(options.rehearse)
    if not options.out:
        raise DataError("Say where to write: neusight measure --out DIR.")
    if not options.minutes > 0:
        raise DataError(f"--minutes is {options.minutes:g}; it must be above 0.")
    parts = _parts(options)
    settings = _settings(options, parts)
    command = worker_command(start, rehearsed_gpu=options.rehearse)
    folder = Path(options.out)
    if options.rehearse:
        print(f"a rehearsal: all times are forecasts for {options.rehearse}, none is measured")
    show = _Progress(options.minutes)
    try:
        outcome = measure(
            folder,
            lambda: WorkerProcess(command),
            minutes=options.minutes,
            parts=parts,
            settings=settings,
            even_if_busy=options.even_if_busy,
            report_progress=show,
        )
    except KeyboardInterrupt:
        show.end()
        print(
            f"neusight: interrupted; what was measured is in {folder}, and the same command "
            "continues from there",
            file=sys.stderr,
        )
        return ExitCode.INTERRUPTED
    finally:
        show.end()
    _report(outcome, folder)
    return ExitCode.OK


def _parts(options: argparse.Namespace) -> list[Part]:
    chosen: list[Part] = []
    if options.quick:
        chosen.append("quick")
    if options.workloads or options.only:
        chosen.append("workloads")
    if options.kernels:
        chosen.append("kernels")
    return chosen or ["quick", "workloads", "kernels"]


def _settings(options: argparse.Namespace, parts: Sequence[Part]) -> list[WorkloadSetting]:
    if "workloads" not in parts:
        return []
    settings = read_settings(Path(options.workloads_from))
    if not options.only:
        return settings
    unknown = set(options.only) - {setting.name for setting in settings}
    if unknown:
        import difflib

        name = sorted(unknown)[0]
        near = difflib.get_close_matches(name, [setting.name for setting in settings], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"There is no workload {name!r} in {options.workloads_from}.{hint}")
    return [setting for setting in settings if setting.name in options.only]


class _Progress:
    """A bar that is drawn over itself on a terminal, and a line for each new stretch elsewhere."""

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._begin = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._title = ""
        self._drawn = False

    def __call__(self, title: str, share: float, outcome: MeasuringResult) -> None:
        passed = time.monotonic() - self._begin
        text = (
            f"{min(share, 1.0):4.0%} {passed / 60:.1f} of {self._minutes:g} min,"
            f" {outcome.samples} samples, {outcome.workloads} workloads: {title}"
        )
        if self._is_terminal:
            filled = round(_BAR_WIDTH * min(share, 1.0))
            bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
            sys.stderr.write(f"\r\x1b[K[{bar}] {text}")
            self._drawn = True
        elif title != self._title:
            sys.stderr.write(f"{text}\n")
        self._title = title
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line."""
        if self._drawn:
            sys.stderr.write("\n")
            self._drawn = False


def _report(outcome: MeasuringResult, folder: Path) -> None:
    gpu, torch = outcome.environment.gpu, outcome.environment.torch
    print(printable(f"{gpu}, torch {torch}, in {folder}:"))
    print(f"  {outcome.samples} samples of kernels, {outcome.workloads} workloads")
    if outcome.left:
        print("  the time was up before all was measured; run the same command again to continue")
    if outcome.refusals:
        print(f"  {len(outcome.refusals)} could not be measured ({folder / 'refused.jsonl'}):")
        for refusal in outcome.refusals[:_REASONS_SHOWN]:
            print(printable(f"    {refusal.subject}: {refusal.reason}"))
    for note in outcome.notes:
        print(printable(f"  note: {note}"))
    if outcome.samples or outcome.workloads:
        print(f"  next: neusight calibrate {folder} --out calibration.json")
