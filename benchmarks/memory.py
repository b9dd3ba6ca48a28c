"""Peaks of memory that real GPUs showed, beside their forecasts; and a ratchet on the errors.

    python benchmarks/memory.py                compares, exit code 1 where one got worse
    python benchmarks/memory.py rope sam       only these programs
    python benchmarks/memory.py --update       stores better errors; worse ones only with --worse

Three sources: the operator chains of data/fused_ops_baselines (allocated), the whole models of
data/e2e_published_dev.csv (allocated or reserved, as their authors' scripts read it), and
memory_published.csv: tables of older releases of torch and the memory events of two profiles. Used
is what nvidia-smi shows: reserved and context. What cannot be run here is listed with its reason.
`--max-memory` verdicts are beside each row: one that ran within its GPU must not be told "does not
fit", and one that ran out must not be told "fits".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import operator_chains
import torch
from memory_programs import PROGRAMS, torch_before_1_11
from tables import read_table

import neusight
from neusight.memory.placement import MemoryTimeline, memory_on

SHARED = Path(__file__).parents[2] / "shared" / "data"
MODELS = SHARED / "e2e_published_dev.csv"
PUBLISHED = Path(__file__).with_name("memory_published.csv")
STORED = Path(__file__).with_name("memory_scores.json")

MIB = 2**20
#: Runs of a program: the first makes gradients and the optimizer's states, of which the second has
#: the peak, which the third has again.
RUNS = 3
#: What an error may grow by before it counts as worse: a share.
TOLERANCE = 0.0005
METRICS = ("allocated", "reserved", "used")


@dataclass(frozen=True)
class Case:
    """A measured peak, MiB. `reason` says why its program cannot be forecast; `context_mib` is the
    context that the source measured beside; `ran_out` that it exceeded the GPU's memory. Of the
    metric "verdict" only that is known."""

    program: str
    settings: str
    gpu: str
    metric: str
    mib: float
    torch: str
    reason: str = ""
    context_mib: float | None = None
    ran_out: bool = False

    @property
    def name(self) -> str:
        """What distinguishes it."""
        return f"{self.program} {self.settings} {self.gpu} {self.metric}"


@dataclass(frozen=True)
class Result:
    """A case and its forecast, MiB; `base` is what both hold beyond what is compared."""

    case: Case
    memory: MemoryTimeline
    allocated: float
    base: tuple[float, float] = (0.0, 0.0)

    @property
    def forecast(self) -> float:
        """What was measured, as forecast."""
        if self.case.metric == "allocated":
            return self.allocated
        if self.case.metric == "verdict":
            return self.memory.total_bytes / MIB
        reserved = self.memory.peak_reserved / MIB
        if self.case.metric == "reserved":
            return reserved
        context = self.case.context_mib
        return reserved + (self.memory.context_bytes / MIB if context is None else context)

    @property
    def error(self) -> float:
        """The signed error, a share."""
        measured, forecast = self.case.mib - self.base[0], self.forecast - self.base[1]
        return forecast / measured - 1.0


# -- what was measured ---------------------------------------------------------------------------


def chain_cases() -> list[Case]:
    """The rows of the operator chains."""
    gpus = {"A100-SXM4-80GB": "A100", "H100-SXM5-80GB": "H100"}
    return [
        Case(
            chain.chain,
            json.dumps({**json.loads(chain.settings), "mode": chain.mode}),
            gpus.get(chain.gpu, chain.gpu),
            "allocated",
            chain.measured,
            chain.torch,
        )
        for chain in operator_chains.cases()
        if chain.metric == "memory"
    ]


_GPUS = {
    "H100-SXM-96G-HBM2E-500W": "H100-SXM5-96GB-HBM2E",
    "A100-SXM-80G": "A100-SXM4-80GB",
    "RTX-4090": "RTX-4090",
    "H200": "H200",
    "A100-UNKNOWN": "A100-SXM4-80GB",
}
#: MiB of the units that the tables use.
_UNITS = {"GiB": 1024.0, "MiB": 1.0, "GB": 1e9 / MIB}


def model_cases() -> list[Case]:
    """The rows of whole models."""
    found = []
    for row in read_table(MODELS):
        if "memory" not in row["metric"]:
            continue
        unit = next(unit for unit in _UNITS if unit in row["metric"])
        program, settings, metric, version, reason = _model(row)
        mib = float(row["value"]) * _UNITS[unit]
        gpu = _GPUS[row["gpu_key"]]
        found.append(Case(program, json.dumps(settings), gpu, metric, mib, version, reason))
    return found


def _model(row: dict[str, str]) -> tuple[str, dict[str, object], str, str, str]:
    """Program, settings, what its script reads, the torch of its time, and why it cannot run."""
    case = row["case_id"]
    if case.startswith("titan"):
        settings = {"ranks": int(row["n_gpus"]), "batch": int(row["batch"])}
        settings["length"] = int(row["seq_or_res"])
        reason = _titan_reason(row)
        if reason:
            return case, {}, "reserved", "2.6", reason
        return "titan_llama", settings, "reserved", "2.6", ""
    if case.startswith("samfast"):
        if "compile" in case:
            return case, {}, "allocated", "2.2", "compiled (max-autotune)"
        settings = {"batch": int(row["batch"])}
        dtype = "bfloat16" if row["dtype"] == "bf16" else "float32"
        return "sam", {**settings, "dtype": dtype}, "allocated", "2.2", ""
    if case == "torchao-llama_2_7b-bf16-mem":  # compiled; what is held are weights and cache
        return "gpt_fast_llama", {}, "reserved", "2.4", ""
    if case.startswith("torchao"):
        return case, {}, "reserved", "2.4", "needs torchao's quantized tensors"
    return case, {}, "reserved", "2.5", "compiled, and needs torchtune's loss in chunks"


def _titan_reason(row: dict[str, str]) -> str:
    if "float8" in row["dtype"]:
        return "needs torchao's float8 linear layers"
    return "compiled" if row["compile"] == "yes" else ""


def published_cases() -> list[Case]:
    """The rows of memory_published.csv."""
    return [
        Case(
            row["program"], row["settings"], row["gpu"], row["metric"], float(row["mib"] or "nan"),
            row["torch"], context_mib=float(row["context_mib"]) if row["context_mib"] else None,
            ran_out=row["ran_out"] == "yes",
        )
        for row in read_table(PUBLISHED)
    ]  # fmt: skip


# -- forecasts -----------------------------------------------------------------------------------


def forecasts(cases: list[Case]) -> Iterator[Result]:
    """Each case that can run, forecast; rows of one program after the other."""
    done: dict[tuple[str, str, str], tuple[MemoryTimeline, float]] = {}
    bases: dict[str, tuple[float, float]] = {}
    for case in cases:
        if case.reason:
            continue
        key = (case.program, case.settings, case.gpu)
        if key not in done:
            done[key] = _placed(case)
        memory, allocated = done[key]
        result = Result(case, memory, allocated)
        if case.program == "embedding":
            # The script's process still held 12 GiB of earlier runs, the same in all rows of a
            # series: what is compared is how much more a larger vocabulary takes.
            series = json.dumps({**json.loads(case.settings), "V": 0})
            if series not in bases:
                bases[series] = (case.mib, result.forecast)
                continue
            result = Result(case, memory, allocated, bases[series])
        yield result


def _placed(case: Case) -> tuple[MemoryTimeline, float]:
    """The memory of a case's program, and MiB allocated at the peak of a steady run."""
    settings = json.loads(case.settings)
    version = tuple(map(int, case.torch.split(".")))
    old = torch_before_1_11() if version < (1, 11) else nullcontext()
    runs = 1 if case.program == "bert_mlm" else RUNS
    ranks = settings.get("ranks", 1)
    with old, neusight.forecast_on(case.gpu, predictor="roofline", world_size=ranks) as found:
        with torch.device("cuda"):
            run = PROGRAMS[case.program](settings)
            for _ in range(runs):
                run()
                found.step()
        del run
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    memory = memory_on(found.recording.as_torch(case.torch), found.gpu)
    if case.program in operator_chains.CHAINS:  # a row of a script, which resets the peak
        kinds = [step for step in memory.steps if step.kind != "setup"] or list(memory.steps)
        return memory, max(step.peak_allocated for step in kinds[-1:]) / MIB
    return memory, memory.peak_allocated / MIB


# -- the report ----------------------------------------------------------------------------------


def _line(result: Result) -> str:
    case = result.case
    settings = " ".join(str(value) for value in json.loads(case.settings).values())
    is_measured = case.metric in METRICS
    measured = f"{case.mib:12.3f}" if is_measured else f"{'':12}"
    error = f"{result.error:+8.2%}" if is_measured else f"{'':8}"
    return (
        f"{case.program:<27} {settings[:44]:<44} {case.gpu[:16]:<16} {case.metric:<9} {measured} "
        f"{result.forecast:12.3f} {error}  "
        f"{result.memory.verdict}{', ran out' if case.ran_out else ''}"
    )


def worse(now: dict[str, float], stored: dict[str, float], *, is_whole: bool) -> list[str]:
    """What got worse, or is no longer scored, in words."""
    lines = [f"{name}: no longer scored" for name in stored if is_whole and name not in now]
    lines += [
        f"{name}: {stored[name]:+.2%} -> {error:+.2%}"
        for name, error in now.items()
        if name in stored and abs(error) > abs(stored[name]) + TOLERANCE
    ]
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help=", ".join(sorted(PROGRAMS)))
    parser.add_argument("--update", action="store_true", help="store the errors")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    if not operator_chains.DATA.exists():
        print(f"skipped: there are no measured tables at {SHARED}")
        return 0
    cases = [*chain_cases(), *model_cases(), *published_cases()]
    if options.programs:
        cases = [case for case in cases if case.program in options.programs]
    results = []
    for result in forecasts(cases):
        results.append(result)
        print(_line(result), flush=True)
    left_out = [case for case in cases if case.reason]
    for case in left_out:
        print(f"not run: {case.program}: {case.reason}")
    for metric in METRICS:
        errors = [abs(result.error) for result in results if result.case.metric == metric]
        if errors:
            print(f"{metric:<9} {len(errors)} rows, median {median(errors):.2%}, worst "
                  f"{max(errors):.2%}")  # fmt: skip
    return _judged(results, options)


def _judged(results: list[Result], options: argparse.Namespace) -> int:
    """Compares with the stored errors and with what the verdicts must not say."""
    reported = [
        result.case.name
        for result in results
        if result.memory.verdict == ("fits" if result.case.ran_out else "does not fit")
    ]
    now = {
        result.case.name: round(result.error, 5)
        for result in results
        if result.case.metric in METRICS
    }
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    lines = worse(now, stored, is_whole=not options.programs)
    lines += [f"{name}: told the opposite of what happened" for name in reported]
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and not options.programs and (not lines or options.worse):
        STORED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
