"""Compiled programs against measured times, and what compiling gains: data/kernelbench.

    python benchmarks/compiled_programs.py              all: tables by GPU and level
    python benchmarks/compiled_programs.py --gpu L40S --list     a line for each program too
    python benchmarks/compiled_programs.py --update     stores the scores (ratchet.py)

Each program is compiled for its GPU, without a GPU, by the torch of this machine; it was measured
with torch 2.5 or 2.9. Where those fused less or more than this one does, the kernels are not the
same: such rows are named with the reason, and scored apart. Programs whose name hashes odd judge
what was chosen on the even ones (programs.py). Fusion must conserve: the FLOPs of products are
those of the eager program, and no more bytes are moved, but for copies to NHWC; else it is named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation

import kernelbench
import programs
import ratchet
from kernelbench import Case
from programs import RECORDINGS, Result, median_of
from tables import write_table

from neusight.forecast import Forecast
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import OpCall

#: The GPUs that are compiled for: a program is compiled again for each, in seconds to minutes.
GPUS = ("H100-PCIE-80GB", "H100-SXM5-80GB", "L40S")

#: Classes whose FLOPs fusion leaves alone.
_PRODUCTS = frozenset({KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION})

#: Releases of torch since which Inductor does what it says (pytorch/pytorch: issue 153241 shows the
#: first in 2.7; pull requests 148209 and 148210, of March 2025; 172951, of January 2026).
_ONLINE_SOFTMAX = ((2, 7), "sums up a softmax in one pass")
_POOLS = ((2, 8), "fuses pooling in three dimensions or with dilation")
_ATTENTION = ((2, 11), "leaves attention in FP32 apart without TF32")

#: Bytes that a compiled program may move beyond the eager one's: masks of dropout, partial sums.
_MORE_BYTES = 1.01


@dataclass(frozen=True)
class Row:
    """A compiled program beside its eager run on the same GPU; `newer` says what the torch that
    was measured did not do yet; the rest is what fusion must conserve."""

    compiled: Result
    eager: Result
    newer: str
    byte_share: float
    flop_share: float
    has_copies: bool

    @property
    def measured(self) -> float:
        """How many times faster it was measured compiled."""
        return self.eager.measured_us / self.compiled.measured_us

    @property
    def forecast(self) -> float:
        """How many times faster it is forecast compiled."""
        return self.eager.forecast_us / self.compiled.forecast_us

    @property
    def error(self) -> float:
        """The signed error of that ratio, a share."""
        return self.forecast / self.measured - 1.0


def measured_rows(options: argparse.Namespace) -> tuple[list[Row], list[Result]]:
    """Every program that was measured in both ways, and those that cannot be forecast."""
    eager = {_place(case): case for case in kernelbench.cases()}
    found: list[Row] = []
    missing: list[Result] = []
    for case in kernelbench.cases(mode=kernelbench.COMPILED):
        plain = eager.get(_place(case))
        if plain is None or case.gpu not in GPUS or not programs.is_chosen(case, options):
            continue
        results = [programs.result_of(item, options.recordings) for item in (case, plain)]
        failed = [result for result in results if result.reason]
        missing += failed
        if not failed and options.half in ("", results[0].half):
            found.append(_row(case, plain, results, options.recordings))
    return found, missing


def rows() -> list[ratchet.Row]:
    """What the ratchet holds."""
    if not kernelbench.DATA.exists():
        return []
    every = argparse.Namespace(gpu="", only="", level="", half="", recordings=RECORDINGS)
    return scored(measured_rows(every)[0])


def _place(case: Case) -> tuple[str, ...]:
    """What a program's runs in different modes share."""
    return case.blob, case.gpu, case.method, case.version, case.torch, case.host or ""


def _row(case: Case, plain: Case, results: list[Result], folder: Path) -> Row:
    compiled, eager = (programs.recorded(item, folder, case.gpu) for item in (case, plain))
    fused, single = (
        [span.kernel for span in programs.kernels_of(found, item)]
        for found, item in ((compiled, case), (eager, plain))
    )
    flops = [
        sum(kernel.flops for kernel in kernels if kernel.kernel_class in _PRODUCTS)
        for kernels in (fused, single)
    ]
    num_bytes = [sum(kernel.num_bytes for kernel in kernels) for kernels in (fused, single)]
    return Row(
        *results,
        newer=_newer(case, compiled, eager),
        byte_share=num_bytes[0] / max(1, num_bytes[1]),
        flop_share=flops[0] / flops[1] if flops[1] else 1.0 + flops[0],
        has_copies=any(kernel.layout == "channels_last" for kernel in fused),
    )


def _newer(case: Case, compiled: Forecast, eager: Forecast) -> str:
    """What this torch does to the program that the measured one did not, "" if nothing."""
    version = tuple(int(part) for part in case.torch.split(".")[:2])
    checks: tuple[tuple[tuple[tuple[int, int], str], Callable[[], bool]], ...] = (
        (_ONLINE_SOFTMAX, lambda: any(map(_is_online_softmax, _calls(compiled)))),
        (_POOLS, lambda: any(map(_is_newly_fused_pool, _calls(eager)))),
        (_ATTENTION, lambda: _has_attention_in_parts(compiled)),
    )
    for (since, what), holds in checks:
        if version < since and holds():
            return what
    return ""


def _calls(found: Forecast) -> list[OpCall]:
    return [entry for entry in found.recording.steps[-1].entries if isinstance(entry, OpCall)]


def _is_online_softmax(call: OpCall) -> bool:
    return "online" in str(call.signature.by_name.get("origins", ""))


def _is_newly_fused_pool(call: OpCall) -> bool:
    dilation = call.signature.by_name.get("dilation", ())
    is_pool = call.signature.op.startswith("aten::max_pool")
    is_dilated = isinstance(dilation, tuple) and any(item != 1 for item in dilation)
    return is_pool and ("max_pool3d" in call.signature.op or is_dilated)


def _has_attention_in_parts(found: Forecast) -> bool:
    """Whether a softmax lies between two products of batches."""
    names = [call.signature.op for call in _calls(found) if "::empty" not in call.signature.op]
    return any(
        before in _BATCHED and after in _BATCHED and "softmax" in name
        for before, name, after in zip(names, names[1:], names[2:], strict=False)
    )


_BATCHED = ("aten::bmm", "aten::baddbmm")


def scored(found: list[Row]) -> list[ratchet.Row]:
    """What the ratchet holds of each program: its compiled time, and what compiling gains."""
    return [
        ratchet.Row(what, row.compiled.gpu, mode=row.compiled.level, error=error)
        for row in found
        for what, error in (("compiled", row.compiled.error), ("gain of compiling", row.error))
    ]


#: Ends the names of groups without the rows whose torch fuses otherwise.
_ALIKE = ", fused alike"


def _groups(found: list[Row]) -> dict[str, list[Row]]:
    groups = {"all": found}
    for gpu in GPUS:
        own = [row for row in found if row.compiled.gpu == gpu]
        groups[gpu] = own
        for level in sorted({row.compiled.level for row in own}):
            groups[f"{gpu} {level}"] = [row for row in own if row.compiled.level == level]
        groups[f"{gpu}{_ALIKE}"] = [row for row in own if not row.newer]
    groups[f"all{_ALIKE}"] = [row for row in found if not row.newer]
    return {name: group for name, group in groups.items() if group}


def _figures(group: list[Row]) -> list[str]:
    """Cases; errors of eager and compiled time; that of the ratio, and its halves; correlation."""
    halves = [
        median_of(abs(row.error) for row in group if row.compiled.half == half)
        for half in ("even", "odd")
    ]
    logs = [(math.log(row.measured), math.log(row.forecast)) for row in group]
    related = correlation(*zip(*logs, strict=True)) if len(group) > 2 else math.nan
    return [
        f"{len(group)}",
        f"{median_of(abs(row.eager.error) for row in group):.1%}",
        f"{median_of(abs(row.compiled.error) for row in group):.1%}",
        f"{median_of(row.compiled.error for row in group):+.1%}",
        f"{median_of(abs(row.error) for row in group):.1%}",
        *(f"{half:.1%}" for half in halves),
        f"{related:.2f}",
    ]


_COLUMNS = ("cases", "eager", "compiled", "bias", "ratio", "even", "odd", "corr.")


def table(found: list[Row]) -> str:
    """Errors by GPU and level."""
    lines = [f"{'group':<44}" + "".join(f"{name:>9}" for name in _COLUMNS)]
    for name, group in _groups(found).items():
        lines.append(f"{name:<44}" + "".join(f"{figure:>9}" for figure in _figures(group)))
    return "\n".join(lines)


def show(row: Row) -> None:
    """A line of a program."""
    print(
        f"{row.compiled.half:<4} {row.compiled.gpu:<15} {row.compiled.name:<66}"
        f" {row.compiled.error:>+7.1%} {row.measured:>6.2f} {row.forecast:>6.2f} {row.error:>+7.1%}"
        f" {row.compiled.bound:<6} {row.newer}"
    )


def write_csv(found: list[Row], path: Path) -> None:
    """The errors of every program as a row, without the measurements, which are others' data."""
    rows = []
    for row in found:
        stated = (getattr(row.compiled, name) for name in _OF_RESULT)
        errors = (row.eager.error, row.compiled.error, row.error)
        shown = (f"{error:.4f}" for error in errors)
        rows.append((*stated, row.newer, *shown, row.compiled.is_inside))
    write_table(path, (*_OF_RESULT, "newer", *_ERRORS, "is_inside"), rows)


_OF_RESULT = ("gpu", "host", "level", "name", "half", "bound", "dominant")
_ERRORS = ("eager_error", "compiled_error", "ratio_error")


def main() -> int:
    """The command."""
    options = ratchet.parsed(programs.parser_of(__doc__), kernelbench.DATA, "measured programs")
    found, missing = measured_rows(options)
    if not found:
        print("no such program")
        return 2
    report(found, missing, options)
    if programs.is_part(options):
        return 0
    return ratchet.judged("compiled_programs", scored(found), options)


def report(found: list[Row], missing: list[Result], options: argparse.Namespace) -> None:
    """Prints the table, what was not conserved and what could not be forecast; writes files."""
    print(table(found))
    if options.list:
        for row in sorted(found, key=lambda row: abs(row.error)):
            show(row)
    for row in found:
        if row.flop_share != 1.0:
            print(f"{row.flop_share:.3f} of the FLOPs of products: {row.compiled.name}")
        if row.byte_share > _MORE_BYTES and not row.has_copies:
            print(f"{row.byte_share:.3f} of the bytes: {row.compiled.name}")
    for name, reason in sorted({(result.name, result.reason) for result in missing}):
        print(f"not forecast: {name}: {reason}")
    if options.csv:
        write_csv(found, options.csv)


if __name__ == "__main__":
    raise SystemExit(main())
