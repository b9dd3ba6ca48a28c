"""The summary of a forecast: the first screen as text, and all figures as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neusight.failure import failure_of, ran_out
from neusight.inference.phases import Phases, phase_lines, phases_json
from neusight.inference.pipeline import Pipeline, pipeline_json, pipeline_lines
from neusight.memory.placement import MemoryTimeline
from neusight.memory.spread import MemoryVerdict
from neusight.output.compiled import Compilation, compiled_json, compiled_lines
from neusight.output.figures import Verdict
from neusight.output.ranks import RankRow, rank_lines, ranks_run, run_as_text
from neusight.output.system import network_text
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.formatting import bytes_text, counted, time_text
from neusight.predictors.gpu import GPU
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.registry import clock_of
from neusight.predictors.terminal_text import printable_lines
from neusight.recording.recording import MEMORY_OPTION, RANK_OPTION, STEP_OPTION, Batch, Recording

#: Raised when a key of `to_json` changes its meaning or goes.
SCHEMA_VERSION = 1

_ROWS_SHOWN = 5
_US_PER_S = 1e6
#: Less of a category of memory is not shown.
_SHOWN_BYTES = 2**20 // 10
_STEP_WORDS = {"train": "training step", "eval": "inference step", "setup": "block"}


@dataclass(frozen=True)
class SummaryData:
    """What a forecast found, as far as it is shown.

    `unmapped` are ops without a mapping to kernels; `trace_path` where its trace was written;
    `compiled` what torch.compile made of it, if anything; `topology` the system that was stated,
    and `notes` what the figures rest on not stated. `ranks` are those that were run side by
    side: then `verdict` is of the slowest, `memory` of the one that needs most, `fits` of all.
    `phases` are those of a model that generates, `pipeline` models that are called in turn.
    `host_assumes` says which machine and software the costs of the host stand for, where it was not
    measured.
    """

    recording: Recording
    verdict: Verdict
    memory: MemoryTimeline
    fits: bool
    gpu: GPU
    predictor: str
    host: str
    unmapped: tuple[str, ...] = ()
    calibration: Calibration | None = None
    trace_path: str | None = None
    compiled: Compilation | None = None
    topology: Topology | None = None
    notes: tuple[str, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    phases: Phases | None = None
    pipeline: Pipeline | None = None
    host_assumes: str = ""

    @property
    def failure(self) -> str:
        """The error that ended the program early, as a message; empty where there was none."""
        return failure_of(self.recording)

    @property
    def memory_verdict(self) -> MemoryVerdict:
        """Whether it fits, does not, or is too close to call."""
        return memory_verdict(self.recording, self.memory)

    @property
    def warnings(self) -> list[str]:
        """What to know before believing the figures."""
        return [*self.recording.warnings, *self.notes]


def memory_verdict(recording: Recording, memory: MemoryTimeline) -> MemoryVerdict:
    """What is said of a recording's memory: one that ended because something did not fit does
    not."""
    if MEMORY_OPTION in recording.options:
        return "unknown"
    return "does not fit" if ran_out(recording) else memory.verdict


def verdict_text(verdict: MemoryVerdict) -> str:
    """The verdict as it is shown.

    >>> verdict_text("close")
    'close (may not fit)'
    """
    return _VERDICT_WORDS.get(verdict, verdict)


_NOT_RUN = "no other rank was run: --rank all-distinct runs and compares them"
_VERDICT_WORDS = {"close": "close (may not fit)", "unknown": "memory not known"}


def headline(verdict: Verdict) -> str:
    """One line."""
    latency, low, high = verdict.step_latency
    words = (
        f"{time_text(latency)} per {_STEP_WORDS[verdict.kind]} ({time_text(low, like=latency)} to "
        f"{time_text(high, like=latency)}), {verdict.bound}-bound"
    )
    rate = verdict.whole_batch.per_second(latency)
    if rate is None:
        return words
    ranks = f" on {verdict.replicas.words}" if verdict.replicas.world_size > 1 else ""
    return f"{words}, {rate[0]:,.0f} {rate[1]}/s{ranks}"


def describe(found: SummaryData, *, changes: Sequence[str] = ()) -> str:
    """The first screen: verdict, where the time goes, memory, coverage, warnings, then `changes`:
    the lines on what to change."""
    gpu = found.gpu
    if found.failure:
        return printable_lines(_failure_lines(found))
    if found.verdict.num_kernels == 0:
        head = f"{gpu.name}: nothing to forecast"
        if found.memory_verdict not in ("fits", "unknown"):
            head += f", and {verdict_text(found.memory_verdict)}"
            return printable_lines([head, *_known_memory_text(found), *_bullets(found.warnings)])
        return printable_lines([head, *_bullets(found.warnings)])
    lines = [
        f"{gpu.name}: {verdict_text(found.memory_verdict)}, {headline(found.verdict)}",
        "",
        *_time_text(found.verdict),
        "",
        *phase_lines(found.phases),
        *pipeline_lines(found.pipeline),
        *rank_lines(found.ranks, found.recording),
        *_known_memory_text(found),
        *(compiled_lines(found.compiled) if found.compiled is not None else []),
        _coverage_text(found.verdict, found.unmapped),
        _setting_text(found),
        *_premises(found),
        *_bullets(found.warnings),
        *changes,
        *_trace_text(found),
    ]
    return printable_lines(lines)


def _time_text(verdict: Verdict) -> list[str]:
    """Where the time goes, all of it in one unit."""
    busy_us = verdict.gpu_busy_us
    return [
        f"  where the time goes ({time_text(verdict.gpu_busy_us)} of GPU time a step, "
        f"{counted(verdict.num_kernels, 'kernel')}, {counted(verdict.num_ops, 'op')}, "
        f"MFU {verdict.mfu:.1%})",
        *(
            f"    {row.name:<24} {time_text(row.time_us, like=busy_us):>10}  {row.share:>5.1%}  "
            f"{counted(row.count, 'kernel', width=6)}"
            for row in verdict.by_kernel_class[:_ROWS_SHOWN]
        ),
    ]


def _premises(found: SummaryData) -> Iterator[str]:
    """What the figures rest on: the host, a calibration, what was taken for a batch and a step."""
    yield from _host_text(found)
    if found.calibration is not None:
        yield f"  measured  {found.calibration.headline()}"
    if found.verdict.batch:
        batch = found.verdict.batch
        yield f"  batch     {_counts(batch)} a step ({batch.known_by})"
        yield from _replica_text(found.verdict)
    elif found.verdict.kind != "setup":
        yield "  batch     not known; --samples N or --tokens N of a step gives the throughput"
    rank = found.recording.options.get(RANK_OPTION)
    if rank and not found.ranks:
        yield f"  rank      {rank}; all figures but those of all ranks are of this one"
        others = run_as_text(found.recording, [found.recording.rank])
        if others or found.recording.world_size > 1:
            yield f"            {others or _NOT_RUN}"
    if found.topology is not None:
        yield f"  topology  {found.topology.name}, {network_text(found.topology)}"
    taken = found.recording.options.get(STEP_OPTION)
    if found.pipeline is not None and taken and taken.startswith("one call of "):
        taken = taken if "," in taken else f"one call of {found.pipeline.loop.module}"
    if taken:
        whole = f", {time_text(found.verdict.latency_us)} in all"
        counted = _counted_steps(found.verdict.steps)
        yield f"  step      {taken}; {counted}{whole if found.verdict.kind == 'eval' else ''}"


def _trace_text(found: SummaryData) -> list[str]:
    return [f"  trace     {found.trace_path}"] if found.trace_path else []


def _counted_steps(rows: Iterable[dict[str, Any]]) -> str:
    """How many steps of each kind were recorded."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
    words = {"train": "training", "eval": "inference", "setup": "setup"}
    return ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if kind in counts)


def _bullets(texts: Iterable[str]) -> list[str]:
    return [f"  note      {text}" for text in texts]


def _failure_lines(found: SummaryData) -> list[str]:
    """Of a program that failed only what was recorded until then is known: no step, no verdict but
    that it does not fit, where that is why."""
    verdict, memory, gpu = found.verdict, found.memory, found.gpu
    why = "the script failed" if found.fits else "does not fit: the script ran out of memory"
    if not found.fits and not ran_out(found.recording):
        why = "does not fit, and the script failed"
    lines = [f"{gpu.name}: {why}"]
    lines += [f"  failure   {line}" for line in found.failure.splitlines()[:1]]
    if found.recording.num_ops:
        steps = _counted_steps(verdict.steps)
        lines.append(f"  recorded  until then: {steps}, {time_text(verdict.latency_us)} in all")
        lines += _memory_text(memory, gpu)
    else:
        lines.append("  recorded  until then: nothing on the GPU")
    lines += _bullets(found.warnings)
    return [*lines, *_trace_text(found)]


def _known_memory_text(found: SummaryData) -> list[str]:
    if found.memory_verdict != "unknown":
        return _memory_text(found.memory, found.gpu)
    return [
        f"  memory    not known, of {bytes_text(found.gpu.memory_bytes)}: the file that was read "
        "does not state it"
    ]


def _memory_text(memory: MemoryTimeline, gpu: GPU) -> list[str]:
    lines = [
        f"  memory    {bytes_text(memory.peak_allocated)} allocated, "
        f"{bytes_text(memory.peak_reserved)} reserved, {bytes_text(gpu.context_bytes)} context, "
        f"of {bytes_text(gpu.memory_bytes)}",
        f"            in all {bytes_text(memory.needed_range.low)} to "
        f"{bytes_text(memory.needed_range.high)}",
    ]
    if memory.reserved_for_graphs:
        lines.append(
            f"            {bytes_text(memory.reserved_for_graphs)} of what is reserved are private "
            "pools of CUDA graphs"
        )
    if memory.most_left_out:
        lines.append(
            f"            no space for {bytes_text(memory.most_left_out)} of cuDNN's workspace: "
            "other kernels run, which may be slower"
        )
    if memory.peak_event is not None:
        source = memory.peak_event.source
        line = f", {source.stack[0]}" if source.stack else ""
        lines.append(f"            peak at {source.op} in {source.module or '(no module)'}{line}")
        held = sorted(memory.by_category.items(), key=lambda item: -item[1])
        shown = ", ".join(
            f"{name.replace('_', ' ')} {bytes_text(num_bytes)}"
            for name, num_bytes in held
            if num_bytes >= _SHOWN_BYTES
        )
        lines += [f"            {shown}"] if shown else []
    # Where one of equal steps did not fit, the line on running out names it.
    left, failure = memory.steps_left, memory.out_of_memory
    if left is not None and left <= _LEAKING_STEPS:
        more = f": about {left:,} more fit" if memory.fits else ""
        lines.append(f"            grows by {bytes_text(memory.growth)} with each step{more}")
    if failure is not None:
        lines.append(
            f"            out of memory in step {failure.step} at {failure.op} in "
            f"{failure.module or '(no module)'}: {bytes_text(failure.num_bytes)} more, with "
            f"{bytes_text(failure.allocated)} allocated"
        )
    return lines


#: Where each step leaves something allocated, it is worth a line if no more of them fit than this.
_LEAKING_STEPS = 100_000


#: How an origin is shown, where it is no word of its own.
_ORIGIN_WORDS = {"custom": "kernels of the program's own by their bytes"}


def _coverage_text(verdict: Verdict, unmapped: Sequence[str]) -> str:
    shares = ", ".join(
        f"{share:.0%} {_ORIGIN_WORDS.get(origin, origin)}"
        for origin, share in verdict.coverage.items()
        if share
    )
    words = f"  coverage  {shares or 'no kernels'}"
    if unmapped:
        words += f"; {len(unmapped)} unmapped: {', '.join(unmapped[:5])}"
        if len(unmapped) > _ROWS_SHOWN:
            words += ", …"
    return words


def _setting_text(found: SummaryData) -> str:
    """What it was forecast for, and with."""
    torch = found.recording.torch_version.partition("+")[0]
    clock = clock_of(found.predictor)
    priced = f"{clock} clocks" if clock is not None else f"predictor {found.predictor!r}"
    return f"  setting   {found.gpu.name}, host {found.host!r}, torch {torch}, {priced}"


def _host_text(found: SummaryData) -> list[str]:
    """Which host was assumed, where the verdict hangs on it."""
    verdict = found.verdict
    if verdict.bound != "host":
        return []
    latency = verdict.step_latency.median
    lines = [
        f"  host      the profile {found.host!r} makes it host-bound: "
        f"{time_text(verdict.host_us, like=latency)} of the host a step, "
        f"{time_text(verdict.gpu_busy_us, like=latency)} of the GPU"
    ]
    if found.host_assumes:
        lines.append(f"            it assumes {found.host_assumes}; --host states another")
    return lines


def _counts(batch: Batch) -> str:
    counts = [
        f"{count:,} {unit}"
        for count, unit in ((batch.samples, "samples"), (batch.tokens, "tokens"))
        if count is not None
    ]
    return ", ".join(counts)


def _replica_text(verdict: Verdict) -> list[str]:
    """The batch of all ranks, where there are several."""
    replicas = verdict.replicas
    if replicas.world_size == 1:
        return []
    if replicas.count is None:
        return ["            of this rank; one stage does not show the samples of all ranks"]
    return [f"            x {replicas.words} = {_counts(verdict.whole_batch)}, all ranks"]


def to_json(found: SummaryData) -> dict[str, Any]:
    """The forecast as plain values, the same for the same script byte for byte."""
    verdict, memory, gpu = found.verdict, found.memory, found.gpu
    is_known = found.memory_verdict != "unknown"
    # Whether the rest of a script that failed fits is unknown.
    is_judged = not (found.failure and found.fits)
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": gpu.name,
        "predictor": found.predictor,
        "host": found.host,
        "host_assumes": found.host_assumes,
        "topology": None if found.topology is None else found.topology.name,
        "torch_version": found.recording.torch_version,
        "steps": verdict.steps,
        "step_is": found.recording.options.get(STEP_OPTION),
        "step_latency_us": verdict.step_latency._asdict(),
        "latency_us": verdict.latency_us,
        "gpu_busy_us": verdict.gpu_busy_us,
        "bound": verdict.bound,
        "peak_memory_bytes": memory.peak_allocated if is_known else None,
        "peak_reserved_bytes": memory.peak_reserved if is_known else None,
        "context_bytes": gpu.context_bytes,
        "memory_capacity_bytes": gpu.memory_bytes,
        "memory": _memory_json(memory) if is_known else None,
        "fits": found.fits if is_judged and is_known else None,
        "memory_verdict": found.memory_verdict if is_judged else None,
        "failure": found.failure or None,
        "coverage": verdict.coverage,
        "unmapped": list(found.unmapped),
        "flops_per_step": verdict.flops,
        "mfu": round(verdict.mfu, 6),
        "num_ops": verdict.num_ops,
        "num_kernels": verdict.num_kernels,
        "samples_per_step": verdict.batch.samples,
        "tokens_per_step": verdict.batch.tokens,
        "batch_known_by": verdict.batch.known_by,
        "batch_source": verdict.batch.source,
        **phases_json(found.phases),
        "pipeline": pipeline_json(found.pipeline),
        "all_ranks": _all_ranks_json(verdict),
        "ranks": [asdict(row) for row in found.ranks],
        "ranks_run": ranks_run(found.recording),
        "trace": found.trace_path,
        "compiled": compiled_json(found.compiled),
        "by_kernel_class": [asdict(row) for row in verdict.by_kernel_class],
        "by_module": [asdict(row) for row in verdict.by_module],
        "by_op": [asdict(row) for row in verdict.by_op],
        "warnings": found.warnings,
    }


def _all_ranks_json(verdict: Verdict) -> dict[str, Any]:
    """The batch of all ranks together; the same as this one where it is alone."""
    whole, latency_us = verdict.whole_batch, verdict.step_latency.median
    rates = {
        name: count / latency_us * _US_PER_S if count is not None and latency_us else None
        for name, count in (("samples", whole.samples), ("tokens", whole.tokens))
    }
    return {
        "world_size": verdict.replicas.world_size,
        "num_replicas": verdict.replicas.count,
        "samples_per_step": whole.samples,
        "tokens_per_step": whole.tokens,
        "samples_per_second": rates["samples"],
        "tokens_per_second": rates["tokens"],
    }


#: Rows of what is alive at the peak that `to_json` lists.
_ALIVE_ROWS = 20


def _memory_json(memory: MemoryTimeline) -> dict[str, Any]:
    """Where the peak is, and what is alive there by category and by module, phase and kind."""
    peak = memory.peak_event
    steps = memory.first_and_steady
    return {
        "peak_at": None
        if peak is None
        else {
            "step": peak.step,
            "op": peak.source.op,
            "module": peak.source.module,
            "phase": peak.source.phase,
            "line": peak.source.stack[0] if peak.source.stack else None,
        },
        "by_category": memory.by_category,
        "alive": [row._asdict() for row in memory.alive[:_ALIVE_ROWS]],
        "first_step_peak_bytes": None if steps is None else steps[0].peak_allocated,
        "steady_step_peak_bytes": None if steps is None else steps[1].peak_allocated,
        "peak_range_bytes": memory.allocated_range._asdict(),
        "needed_bytes": memory.total_bytes,
        "needed_range_bytes": memory.needed_range._asdict(),
        "reserved_for_cuda_graphs_bytes": memory.reserved_for_graphs,
    }


#: What `to_dict` takes of `to_json` as it is.
_TRACKED_WORDS = (
    "gpu", "predictor", "host", "topology", "torch_version", "bound", "memory_verdict", "failure",
)  # fmt: skip
_TRACKED_FIGURES = (
    "latency_us", "gpu_busy_us", "mfu", "flops_per_step", "num_ops", "num_kernels",
    "peak_memory_bytes", "peak_reserved_bytes", "context_bytes", "memory_capacity_bytes",
)  # fmt: skip
#: What is not known of a program that failed, or did nothing on the GPU.
_OF_A_WHOLE_STEP = (
    "bound", "step_latency_us", "step_latency_low_us", "step_latency_high_us", "gpu_busy_us", "mfu",
    "samples_per_second", "tokens_per_second", "ttft_us", "tpot_us", "tokens_per_s",
)  # fmt: skip


def to_dict(found: SummaryData) -> dict[str, Any]:
    """The figures as flat pairs of a name and a number or a word: see `Forecast.to_dict`.

    No name is another's with "/" behind it: MLflow's file store keeps names as paths.
    """
    reported = to_json(found)
    latency, memory = reported["step_latency_us"], reported["memory"] or {}
    # torch's version is a string of a class of its own, which not every tracker knows.
    words = {name: reported[name] for name in _TRACKED_WORDS}
    flat: dict[str, Any] = {name: word and str(word) for name, word in words.items()}
    flat |= {
        "step_latency_us": latency["median"],
        "step_latency_low_us": latency["low"],
        "step_latency_high_us": latency["high"],
    }
    flat |= {name: reported[name] for name in _TRACKED_FIGURES}
    flat |= {name: reported[name] for name in ("ttft_us", "tokens_per_s", "kv_bytes_per_token")}
    flat["tpot_us"] = reported["tpot_us"] and reported["tpot_us"]["last"]
    flat["needed_memory_bytes"] = memory.get("needed_bytes")
    flat["fits"] = None if reported["fits"] is None else int(reported["fits"])
    whole = {name: count for name, count in reported["all_ranks"].items() if name != "num_replicas"}
    flat |= whole | {"num_unmapped": len(reported["unmapped"])}
    flat |= {f"coverage/{origin}": share for origin, share in reported["coverage"].items()}
    flat |= {f"gpu_time_us/{row['name']}": row["time_us"] for row in reported["by_kernel_class"]}
    held = memory.get("by_category", {})
    flat |= {f"memory_bytes/{category}": size for category, size in held.items()}
    is_whole = not reported["failure"] and reported["num_kernels"] > 0
    known = {name: value for name, value in flat.items() if value is not None}
    return {name: known[name] for name in known if is_whole or name not in _OF_A_WHOLE_STEP}
