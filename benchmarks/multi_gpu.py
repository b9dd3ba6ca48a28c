"""Programs of many GPUs against published figures: data/e2e_published_dev.csv.

    python benchmarks/multi_gpu.py                    every case that a recipe reaches, a line each
    python benchmarks/multi_gpu.py --only torchtitan  those with this in their source or name
    python benchmarks/multi_gpu.py --csv benchmarks/results/multi_gpu.csv
    python benchmarks/multi_gpu.py --rows benchmarks/results/multi_gpu_rows.csv
                                                      a row for each case, as it comes; those of
                                                      cases that are not run now stay
    python benchmarks/multi_gpu.py --mechanisms benchmarks/results/multi_gpu_mechanisms.csv
                                                      errors without each mechanism as well

Each case is a script in `recipes/`, written from what its source says of it (wrapper, precision,
recomputation, batch, optimizer), forecast for one of its ranks. Recordings are kept under
`--results` (delete the folder after a change of how programs are recorded). Nothing is fitted to
these figures. Needs the extra `[test]`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from recordings import kept_recording
from tables import read_table, table_text, write_table

from neusight.forecast import Forecast
from neusight.integrations.cli.planning.processes import LostWorker, in_processes, num_cores
from neusight.predictors.clusters.named import with_cards
from neusight.predictors.physics.communication.system import system_of
from neusight.timeline.ranks import contention

SHARED = Path(__file__).parents[2] / "shared" / "data"
PUBLISHED = SHARED / "e2e_published_dev.csv"
RECIPES = Path(__file__).with_name("recipes")
RESULTS = Path(tempfile.gettempdir()) / "neusight-multi-gpu"

_GIB = 2**30
#: What several recipes import.
_SHARED = "split_layers.py"
#: The GPU of torchtitan's figures, in the words of its reports.
_TORCHTITAN_GPU = "H100-SXM5-96GB-HBM2E"


@dataclass(frozen=True)
class Run:
    """A recipe, its arguments, and the ranks that it runs on; `tokens` of a rank's step where their
    order (a sequence first) hides the batch."""

    script: str
    arguments: tuple[str, ...]
    gpu: str
    world_size: int
    network_gbps: str = ""
    torch: str = ""
    tokens: int = 0

    @property
    def words(self) -> list[str]:
        """The command that forecasts it, but for where its figures go."""
        network = ["--network-gbps", self.network_gbps] if self.network_gbps else []
        version = ["--torch", self.torch] if self.torch else []
        tokens = ["--tokens", str(self.tokens)] if self.tokens else []
        return [
            "--steps", "1", "--gpu", self.gpu, "--world-size",
            str(self.world_size), *network, *version, *tokens, str(RECIPES / self.script),
            *self.arguments,
        ]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A published figure: tokens a second and GPU, or GiB reserved."""

    name: str
    source: str
    run: Run
    is_memory: bool
    value: float

    @property
    def series(self) -> tuple[str, tuple[str, ...], bool]:
        """What cases have in common that differ in their ranks alone."""
        return self.run.script, self.run.arguments, self.is_memory


# -- rows as runs ----------------------------------------------------------------------------------


class NoRecipe(Exception):
    """The text says what a recording would need."""


def _torchtitan(row: dict[str, str]) -> Run:
    if "cp_" in row["case_id"] and "cp_1-" not in row["case_id"]:
        raise NoRecipe("context parallel, compiled: another recipe")
    recomputed = "op" if "op" in row["act_ckpt"] else "full"
    how = ("--recompute", recomputed, *(("--compile",) if row["compile"] == "yes" else ()))
    if "float8" in row["dtype"]:
        if find_spec("torchao") is None:
            raise NoRecipe("float8 linear layers: torchao is not installed")
        how = (*how, "--float8", "rowwise" if "rowwise" in row["dtype"] else "tensorwise")
    shape = ("--batch", row["batch"], "--seq", row["seq_or_res"])
    version = "2.6"
    if "TP 8" in row["notes"]:
        version = "2.8"  # June 2025
        size = row["model"].rpartition("-")[2].lower()
        how = (*how, "--tensor", "8", "--size", f"llama3-{size}")
        how = (*how, *(("--async-tensor",) if "AsyncTP" in row["notes"] else ()))
    gpu = _TORCHTITAN_GPU
    if "H200" in row["gpu"]:
        gpu, version = "H200", "2.8"  # June 2025
        how = (*how, "--compile-loss")
    return Run("llama.py", (*shape, *how), gpu, int(row["n_gpus"]), "", version)


def _llm_foundry(row: dict[str, str]) -> Run:
    if "fp8" in row["dtype"]:
        raise NoRecipe("fp8 of Transformer Engine")
    notes = row["notes"].split("; ")
    accumulate = next(n for n in notes if n.startswith("grad_accum")).split()[1]
    strategy = next(n for n in notes if n.startswith("FSDP")).split()[1]
    arguments = (
        "--size", row["model"].removeprefix("MPT-"), "--batch", row["batch"], "--seq",
        row["seq_or_res"], "--accumulate", accumulate, "--recompute", row["act_ckpt"],
        "--strategy", strategy, "--attention", "flash" if "Large Scale" in notes[0] else "triton",
    )  # fmt: skip
    return Run("mpt.py", arguments, _GPUS[row["gpu"]], int(row["n_gpus"]))


def _intern_evo(row: dict[str, str]) -> Run:
    notes = row["notes"].split("; ")
    tp = notes[0].removeprefix("TP")
    accumulate = next(n for n in notes if n.startswith("micro_num")).split()[1]
    group = row["optimizer"].rpartition(" ")[2]
    arguments = (
        "--batch", row["batch"], "--accumulate", accumulate, "--tp", tp, "--zero",
        "0" if group == "-1" else group, *(("--recompute",) if row["act_ckpt"] == "full" else ()),
    )  # fmt: skip
    return Run(
        "internlm.py", arguments, "A100-SXM4-80GB", int(row["n_gpus"]), f"{_FOUR_CARDS}:ecmp"
    )


def _megatron(row: dict[str, str]) -> Run:
    if "PP 1 " not in row["notes"]:
        raise NoRecipe("interleaved stages of a pipeline: another recipe")
    how = "selective" if row["act_ckpt"].startswith("selective") else "full"
    arguments = ("--batch", row["batch"], "--recompute", how)
    tokens = int(row["batch"]) * int(row["seq_or_res"])
    return Run("megatron.py", arguments, "A100-SXM4-80GB", int(row["n_gpus"]), tokens=tokens)


def _fms(row: dict[str, str]) -> Run:
    if row["act_ckpt"] != "none":
        raise NoRecipe("which blocks it recomputes is not published with the figure")
    size = "llama2-" + row["model"].rpartition("-")[2].lower()
    arguments = (
        "--size", size, "--batch", row["batch"], "--seq", row["seq_or_res"], "--shard", "8",
        "--reduce", "bf16", "--compile",
    )  # fmt: skip
    cards = _FOUR_CARDS if "A100" in row["gpu"] else "12.5x8"
    return Run("llama.py", arguments, _GPUS[row["gpu"]], int(row["n_gpus"]), cards)


#: 4 x 100 Gb/s for each host, 1e9 bytes per second.
_FOUR_CARDS = "12.5x4"
_GPUS = {
    "A100-SXM-80GB": "A100-SXM4-80GB",
    "A100-SXM-40GB": "A100-SXM4-40GB",
    "H100-SXM-80GB": "H100-SXM5-80GB",
}
_BUILDERS: dict[str, Callable[[dict[str, str]], Run]] = {
    "pytorch/torchtitan": _torchtitan,
    "mosaicml/llm-foundry": _llm_foundry,
    "InternLM/InternEvo": _intern_evo,
    "Korthikanti": _megatron,
    "foundation-model-stack": _fms,
}
_OUT_OF_REACH = {
    "KellerJordan": "a script of its own for each record",
    "NVIDIA-NeMo": "fused kernels of Transformer Engine",
    "NVIDIA/DeepLearningExamples": "kernels of its own (apex, fused attention)",
    "pytorch-labs": "tensor-parallel decoding under CUDA graphs: another recipe",
    "pytorch/torchtune": "LoRA over packed sequences: another recipe",
}


def _run_of(row: dict[str, str]) -> Run:
    for prefix, build in _BUILDERS.items():
        if row["source"].startswith(prefix):
            return build(row)
    why = (text for prefix, text in _OUT_OF_REACH.items() if row["source"].startswith(prefix))
    raise NoRecipe(next(why, "no recipe"))


def cases(path: Path = PUBLISHED) -> tuple[list[Case], Counter[str]]:
    """The figures of several GPUs, and how many no recipe reaches, by source and reason."""
    rows = [row for row in read_table(path) if int(row["n_gpus"]) > 1]
    found, missing = [], Counter[str]()
    for row in rows:
        source = row["source"].split(" ")[0]
        try:
            run = _run_of(row)
        except NoRecipe as reason:
            missing[f"{source}: {reason}"] += 1
            continue
        is_memory = "memory" in row["metric"]
        found.append(Case(row["case_id"], source, run, is_memory, _figure(row)))
    return found, missing


def _figure(row: dict[str, str]) -> float:
    value = float(row["value"])
    if "iteration time" not in row["metric"]:
        return value
    batch = int(row["notes"].partition("global batch ")[2].partition(";")[0])
    return batch * int(row["seq_or_res"]) / value / int(row["n_gpus"])


# -- forecasts -------------------------------------------------------------------------------------


def forecast(folder: Path, run: Run, *, by_mechanism: bool = False) -> dict[str, Any]:
    """What `neusight run --json` says of it; the recording is kept in the folder. `by_mechanism`:
    under "without" the step without each of `_REPLACED` that acts on it, us."""
    texts = [repr(run), *(p.read_text() for p in (RECIPES / run.script, RECIPES / _SHARED))]
    try:
        saved = Forecast.load(kept_recording(folder, ".rec", texts, run.words))
    except RuntimeError as failure:
        return {"failure": str(failure)}
    document = _priced(saved, run, "").to_json()
    found = [mechanism for mechanism in _REPLACED if by_mechanism and _matters(run, mechanism)]
    return document | {"without": {name: _step_us(saved, run, name) for name in found}}


def _step_us(saved: Forecast, run: Run, without: str) -> float:
    with ExitStack() as undo:
        for module, name, other in _REPLACED[without]:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, other)
        return _priced(saved, run, without).step_latency_us.median


def _priced(saved: Forecast, run: Run, without: str) -> Forecast:
    network = run.network_gbps.removesuffix(":ecmp" if without == "paths by a hash" else "-")
    topology = with_cards(network, system_of(saved.gpu), 8) if network else None
    version = "" if without == "version of torch" else run.torch
    if without == "version of torch":
        saved = Forecast(saved.recording.as_torch(saved.recording.torch_version), saved.options)
    return saved.on(
        saved.gpu,
        predictor="tiled_burst" if without == "sustained clocks" else None,
        host=f"torch={version}" if version else None,
        topology=topology,
    )


#: What can be left out of the prices of a step, and what stands there then.
_REPLACED: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "links shared": (
        (contention, "shared_times_ns", lambda flows: [flow.alone_ns for flow in flows]),
    ),
    "SMs and DRAM taken": ((contention, "_cost_ns", lambda span, other: 0.0),),
    "who starts first": ((contention, "_queued", lambda kernels, collectives, rules: ()),),
    "slowest of hosts": ((contention, "slowest_share", lambda num_hosts: 0.0),),
    "sustained clocks": (),
    "version of torch": (),
    "paths by a hash": (),
}


def _matters(run: Run, mechanism: str) -> bool:
    """Whether the run has anything that the mechanism acts on."""
    if mechanism == "version of torch":
        return bool(run.torch)
    if mechanism == "slowest of hosts":
        return run.world_size > 8
    return mechanism != "paths by a hash" or run.network_gbps.endswith(":ecmp")


def _forecast_figure(case: Case, document: dict[str, Any]) -> tuple[float, bool]:
    """The forecast of the case's figure, and whether the interval holds the measured one."""
    if case.is_memory:
        low, high = sorted(document["memory"]["needed_range_bytes"].values())
        context = document["context_bytes"]
        is_inside = low <= case.value * _GIB + context <= high
        return document["peak_reserved_bytes"] / _GIB, is_inside
    everyone, latency = document["all_ranks"], document["step_latency_us"]
    tokens = everyone["tokens_per_step"] / everyone["world_size"]
    low, high = (1e6 * tokens / latency[name] for name in ("high", "low"))
    return 1e6 * tokens / latency["median"], low <= case.value <= high


def _flops_per_token(document: dict[str, Any]) -> float:
    """FLOPs of a rank's step for each token of a rank, recomputed ones included."""
    everyone = document["all_ranks"]
    tokens = (everyone["tokens_per_step"] or 0.0) / everyone["world_size"]
    return float(document["flops_per_step"] / tokens) if tokens else 0.0


@dataclass(frozen=True)
class Result:
    """A case beside its forecast, and that without each mechanism, by name."""

    case: Case
    forecast: float
    is_inside: bool
    flops_per_unit: float = 0.0
    without: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float:
        """The signed error, a share."""
        return self.forecast / self.case.value - 1.0


def results(
    found: list[Case], folder: Path, jobs: int, *, by_mechanism: bool = False
) -> Iterator[Result | tuple[Case, str]]:
    """Each case with its forecast, or with the reason why there is none."""
    runs = list(dict.fromkeys(case.run for case in found))
    work = partial(forecast, folder, by_mechanism=by_mechanism)
    for position, document in in_processes(work, runs, at_once=jobs):
        if isinstance(document, LostWorker):
            document = {"failure": document.failure}
        for case in found:
            if case.run != runs[position]:
                continue
            if document.get("failure"):
                yield case, document["failure"]
            elif not case.is_memory and not document["all_ranks"]["tokens_per_step"]:
                yield case, "how many tokens enter a step was not found"
            else:
                value, is_inside = _forecast_figure(case, document)
                step_us = document["step_latency_us"]["median"]
                without = [(k, value * step_us / us) for k, us in document["without"].items()]
                yield Result(case, value, is_inside, _flops_per_token(document), tuple(without))


def constant_errors(done: list[Result]) -> dict[str, float]:
    """The signed error, by case, of one share of the peak for each GPU and source: the median of
    every other row, for the rows between them. Recomputed FLOPs count (HFU)."""
    errors: dict[str, float] = {}
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in done:
        if not result.case.is_memory and result.flops_per_unit:
            key = (result.case.source, result.case.run.gpu)
            groups.setdefault(key, []).append(result)
    for own in groups.values():
        own.sort(key=lambda result: result.case.name)
        for half in (0, 1):
            others = [r.case.value * r.flops_per_unit for r in own[1 - half :: 2]]
            for result in own[half::2] if others else ():
                rate = median(others) / result.flops_per_unit
                errors[result.case.name] = rate / result.case.value - 1.0
    return errors


def scaling(done: list[Result]) -> dict[str, tuple[float, float]]:
    """Tokens a second and GPU of the most ranks over those of the fewest, measured and forecast."""
    ratios = {}
    for series in dict.fromkeys(result.case.series for result in done):
        own = [r for r in done if r.case.series == series and not r.case.is_memory]
        own.sort(key=lambda result: result.case.run.world_size)
        for more in own[1:]:
            few = own[0]
            if few.case.run.world_size == more.case.run.world_size:
                continue
            sizes = f"{few.case.run.world_size} to {more.case.run.world_size}"
            name = f"{more.case.source} {sizes}: {' '.join(series[1])}"
            measured = more.case.value / few.case.value
            ratios[name] = (measured, more.forecast / few.forecast)
    return ratios


# -- tables ---------------------------------------------------------------------------------------


_COLUMNS = ("source", "figure", "rows", "median_error_percent", "median_signed_percent",
            "in_80_percent", "constant_hfu_error_percent")  # fmt: skip


def csv_text(done: list[Result]) -> str:
    """A row for each source and figure; last, the error of one constant HFU for each GPU."""
    rows = []
    constant = constant_errors(done)
    for (source, is_memory), own in sorted(_by_source(done).items()):
        signed = [result.error for result in own]
        share = sum(result.is_inside for result in own) / len(own)
        errors = (100 * median(map(abs, signed)), 100 * median(signed))
        of_constant = [abs(constant[r.case.name]) for r in own if r.case.name in constant]
        rows.append(
            (
                source,
                _figure_name(is_memory=is_memory),
                len(own),
                *(f"{error:.1f}" for error in errors),
                f"{100 * share:.0f}",
                f"{100 * median(of_constant):.1f}" if of_constant and not is_memory else "",
            )
        )
    return table_text(_COLUMNS, rows)


_ROW_COLUMNS = ("source", "name", "figure", "gpu", "ranks", "error_percent")


def update_rows(path: Path, result: Result) -> None:
    """Writes the row of a case into a table, in place of an earlier one; in order."""
    case = result.case
    rows = {(row["source"], row["name"]): list(row.values()) for row in read_table(path)}
    rows[case.source, case.name] = [
        case.source, case.name, _figure_name(is_memory=case.is_memory), case.run.gpu,
        str(case.run.world_size), f"{100 * result.error:.1f}",
    ]  # fmt: skip
    write_table(path, _ROW_COLUMNS, (rows[key] for key in sorted(rows)))


def _figure_name(*, is_memory: bool) -> str:
    return "GiB reserved" if is_memory else "tokens/s"


def mechanisms_text(done: list[Result]) -> str:
    """A row for each mechanism and source: the errors of the cases whose forecast it changes, with
    and without it."""
    columns = ("mechanism", "source", "rows", "median_error_percent", "without_percent",
               "median_signed_percent", "signed_without_percent")  # fmt: skip
    rows = []
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result in done:
        for mechanism, value in () if result.case.is_memory else result.without:
            if value != result.forecast:
                pair = (result.error, value / result.case.value - 1.0)
                pairs.setdefault((mechanism, result.case.source), []).append(pair)
    for (mechanism, source), own in sorted(pairs.items()):
        each = [100 * median(map(abs, errors)) for errors in zip(*own, strict=True)]
        each += [100 * median(errors) for errors in zip(*own, strict=True)]
        rows.append((mechanism, source, len(own), *(f"{error:.1f}" for error in each)))
    return table_text(columns, rows)


def _by_source(done: list[Result]) -> dict[tuple[str, bool], list[Result]]:
    found: dict[tuple[str, bool], list[Result]] = {}
    for result in done:
        found.setdefault((result.case.source, result.case.is_memory), []).append(result)
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only sources or names with this in them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=num_cores(), help="forecasts at once")
    parser.add_argument("--csv", type=Path, help="write the errors by source there")
    parser.add_argument("--rows", type=Path, help="write the error of each case there")
    parser.add_argument("--mechanisms", type=Path, help="write the errors without each there")
    options = parser.parse_args()
    if not PUBLISHED.exists():
        print(f"skipped: there are no published figures at {SHARED}")
        return 0
    found, missing = cases()
    found = [case for case in found if options.only in f"{case.source} {case.name}"]
    done: list[Result] = []
    by_mechanism = options.mechanisms is not None
    for item in results(found, options.results, options.jobs, by_mechanism=by_mechanism):
        if not isinstance(item, Result):
            case, reason = item
            print(f"failed   {case.name}: {reason}", flush=True)
            missing[f"{case.source}: failed"] += 1
            continue
        done.append(item)
        if options.rows:
            update_rows(options.rows, item)
        unit = "GiB" if item.case.is_memory else "tokens/s"
        print(
            f"{item.case.run.gpu:<20} {item.case.run.world_size:>5} {item.case.name:<70}"
            f" {item.case.value:>10,.1f} {item.forecast:>10,.1f} {unit:<8} {item.error:>+7.1%}",
            flush=True,
        )
    if done:
        for name, (measured, forecast_ratio) in scaling(done).items():
            print(f"scaling  {name}: measured {measured:.3f}, forecast {forecast_ratio:.3f}")
        print(csv_text(done))
    for reason, count in sorted(missing.items()):
        print(f"not run  {count} of {reason}")
    if options.csv:
        options.csv.write_text(csv_text(done), encoding="utf-8")
    if options.mechanisms:
        print(mechanisms_text(done))
        options.mechanisms.write_text(mechanisms_text(done), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
