"""What a check saw: the case that a baseline would keep, and the lines of code behind its rows."""

from __future__ import annotations

import hashlib
import json
import linecache
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neusight._version import __version__
from neusight.integrations.check.baseline import (
    Case,
    CompileRow,
    MemoryRow,
    OperatorTimeRow,
    OpRow,
    WaitRow,
)
from neusight.integrations.check.figures.batch_change import intake_figures
from neusight.integrations.check.figures.kept_recording import recording_of, text_of_recording
from neusight.integrations.check.figures.metrics import KEPT_METRICS
from neusight.integrations.check.optimizer import optimizer_names
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize, Kernel, KernelClass
from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    OpCall,
    Recording,
    Synchronize,
)
from neusight.timeline.host import dispatch_us
from neusight.timeline.spans import KernelSpan, StepSpan
from neusight.timeline.steady import kernels_of, steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.output.compiled import Compilation
    from neusight.predictors.measuring.calibration import Calibration

#: Hex digits of the digests in a baseline: enough against chance, short enough to read.
_DIGITS, _SIGNATURE_DIGITS = 16, 8
#: Kernels that are named in an op's row.
_KERNELS_NAMED = 3
_SHORT_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
#: Sizes that say nothing.
_ONE = (("batch", 1), ("rows", 1))
#: Places that are remembered of an op which is called from many.
_PLACES_KEPT = 4
#: Waits whose cost is computed, each by scheduling the recording again.
_WAITS_PRICED = 16
#: What an op without a kernel is called: views of one module are one row.
VIEWS = "views"

#: Begins the names of what autograd's engine records around its nodes, which have the same time.
_ENGINE = "autograd::engine::"

CallStack = tuple[str, ...]


class Wait(NamedTuple):
    """A line that waits for the GPU; `cost_us` is how much faster the step is without."""

    stack: CallStack
    cost_us: float


@dataclass(frozen=True)
class Observation:
    """A case, and where its rows come from. Keys are rows without their numbers; an op that is
    called from several places has a stack for each (some of them). `made` says where each module
    was made, `unmapped` which ops have no kernels registered; `stops` has the line of each row of
    what was compiled. `forecast` prices what a baseline recorded as it priced this."""

    case: Case
    op_stacks: Mapping[tuple[str, ...], tuple[CallStack, ...]]
    memory_stacks: Mapping[tuple[str, ...], CallStack]
    waits: Mapping[tuple[str, str], Wait]
    made: Mapping[str, CallStack]
    unmapped: tuple[str, ...] = ()
    stops: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    forecast: Forecast | None = field(default=None, repr=False, compare=False)


def observe(
    forecast: Forecast,
    *,
    program: Iterable[str] = (),
    settings: Mapping[str, str] | None = None,
    files: str = "",
    folder: Path | None = None,
    known_waits: Collection[tuple[str, str]] = (),
    keeps_recording: bool = True,
    prices_waits: bool = True,
    with_operators: bool = False,
) -> Observation:
    """The case of a forecast. `folder` is what the files of its call stacks are relative to.
    `with_operators` keeps the kernel time in each operator, too.

    What waits cost is computed only for those that are not `known_waits`, (reason, code) of rows.
    ForecastStateError where the program launched no kernel: there is nothing to judge.
    """
    folder = folder or Path.cwd()
    step = steady_step_of(forecast.timeline)
    if step is None or step.first_kernel == step.last_kernel:
        raise ForecastStateError(
            "The program launched no kernel, so there is nothing to check. "
            + " ".join(forecast.warnings)
        )
    digests = _Digests()
    ops, op_stacks = _ops_of(forecast, step, digests)
    memory, memory_stacks, peak = _memory_of(forecast)
    waits, wait_stacks = _waits_of(step.replay.step.entries, folder)
    compiling, stops = _compiling_of(forecast.compiled, folder)
    case = Case(
        gpu=forecast.gpu.name,
        program=tuple(program),
        settings={
            "host": forecast.host.name,
            "predictor": forecast.predictor_name,
            **(settings or {}),
        },
        metrics=_metrics_of(forecast, step),
        bound=forecast.bound,
        tool=tool(forecast.recording.torch_version, forecast.gpu, forecast.calibration),
        work=_work_digest(forecast.recording, digests),
        files=files,
        peak=peak,
        ops=ops,
        memory=memory,
        waits=waits,
        compiling=compiling,
        optimizer=optimizer_names(step.replay.step.entries),
        batch_source=forecast.verdict.batch.source,
        recording=text_of_recording(forecast.recording)
        if keeps_recording and not forecast.ranks
        else "",
        operators=tuple(
            OperatorTimeRow(row.name, row.count, round(row.time_us * 1000))
            for row in (forecast.slowest.by_operator if with_operators else ())
            if not row.name.startswith(_ENGINE)
        ),
    )
    fresh = [key for key in wait_stacks if prices_waits and key not in known_waits]
    fresh = fresh[:_WAITS_PRICED]
    costs = {
        key: Wait(stack, _cost_of_wait(forecast, step, key, folder) if key in fresh else 0.0)
        for key, stack in wait_stacks.items()
    }
    made = forecast.recording.made
    unmapped = tuple(forecast.unmapped)
    return Observation(case, op_stacks, memory_stacks, costs, made, unmapped, stops, forecast)


def _metrics_of(forecast: Forecast, step: StepSpan) -> dict[str, float]:
    """The figures that are kept of a forecast, by name, in the order of the file."""
    verdict, phases = forecast.verdict, {}
    if forecast.phases is not None:
        ttft, (_, tpot) = forecast.phases.ttft_us, forecast.phases.tpot_us
        phases = {"ttft_us": round(ttft, 3), "tpot_us": round(tpot, 3)}
    figures = {
        "step_latency_us": verdict.step_latency.median,
        "gpu_busy_us": round(verdict.gpu_busy_us, 3),
        "peak_memory_bytes": forecast.peak_memory_bytes,
        "peak_reserved_bytes": forecast.peak_reserved_bytes,
        "num_kernels": verdict.num_kernels,
        "num_synchronizations": verdict.num_synchronizations,
        "flops": verdict.flops,
        "communication_bytes": _communication_bytes(kernels_of(step, forecast.timeline)),
        **intake_figures(verdict.whole_batch, verdict.step_latency.median),
        **phases,
        **_compiled_figures(forecast.compiled),
    }
    return {metric.name: figures[metric.name] for metric in KEPT_METRICS if metric.name in figures}


def priced_again(before: Case, after: Observation) -> Case | None:
    """The baseline's case as today's tool forecasts it from the recording that the baseline keeps;
    None where it keeps none. RecordingError where this version cannot read it.

    What the recording does not hold (lines that wait, the program's files) is the baseline's; times
    of operators, which it does not hold either, are those of another tool and left out.
    """
    if not before.recording or after.forecast is None:
        return None
    forecast = after.forecast.of(recording_of(before.recording))
    found = observe(forecast, keeps_recording=False, prices_waits=False).case
    return replace(
        before,
        metrics=found.metrics,
        bound=found.bound,
        tool=after.case.tool,
        work=found.work,
        peak=found.peak,
        ops=found.ops,
        operators=(),
        memory=found.memory,
        batch_source=found.batch_source,
    )


# -- what made the forecast ----------------------------------------------------------------------


def tool(torch_version: str, gpu: GPU, calibration: Calibration | None = None) -> dict[str, str]:
    """What can change a forecast without the program: versions, and digests of code and data."""
    import neusight
    from neusight import predictors

    folders = tuple(Path(str(package.__file__)).parent for package in (neusight, predictors))
    fitted = None
    if calibration is not None:  # from which measurements it was fitted does not matter
        fitted = json.dumps({**calibration.to_json(), "source": None}, sort_keys=True)
    return {
        "neusight": __version__,
        "torch": torch_version.partition("+")[0],  # the same ops in a build for CPU or CUDA
        "code": _folder_digest(folders, ".py"),
        "weights": _folder_digest(folders, ".npz"),
        "gpu": _text_digest(repr(gpu)),
        **({} if fitted is None else {"calibration": _text_digest(fitted)}),
    }


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@cache
def _folder_digest(folders: tuple[Path, ...], ending: str) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        # One folder may lie within another, as the sub-packages of an installed package do.
        inner = [other for other in folders if other != folder and folder in other.parents]
        inner.append(folder / "integrations")  # shows forecasts, changes none
        found = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob(f"*{ending}")
            if not any(place in path.parents for place in inner)
        }
        for name in sorted(found):
            digest.update(f"{name}\0".encode() + found[name].read_bytes())
    return digest.hexdigest()[:_DIGITS]


# -- what was recorded, prices aside -------------------------------------------------------------


def _work_digest(recording: Recording, digests: _Digests) -> str:
    digest = hashlib.sha256()
    known: dict[int, bytes] = {}
    for step in recording.steps:
        digest.update(f"{step.kind} {step.count}\n".encode())
        for entry in step.entries:
            text = known.get(id(entry))
            if text is None:
                text = known[id(entry)] = _entry_text(entry, digests).encode()
            digest.update(text)
    return digest.hexdigest()[:_DIGITS]


def _entry_text(entry: Entry, digests: _Digests) -> str:
    """What a step does, without where in the program it does it, nor the host's own work."""
    if isinstance(entry, OpCall):
        return f"{digests.of(entry)} {entry.phase} {entry.stream}\n"
    if isinstance(entry, Alloc):
        return f"+{entry.num_bytes} {entry.kind}\n"
    if isinstance(entry, Free):
        return f"-{entry.storage.age} {entry.storage.ordinal}\n"
    if isinstance(entry, Synchronize):
        return f"wait {entry.reason} {entry.stream}\n"
    if isinstance(entry, (EventRecord, EventWait)):
        return f"{type(entry).__name__} {entry.event} {entry.stream}\n"
    if isinstance(entry, HostWork) and entry.name != "cpu ops":  # those are estimates
        return f"{entry.name} {entry.duration_us}\n"
    return ""


class _Digests:
    """A short digest of what each op was called with, made once for each signature."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def of(self, call: OpCall) -> str:
        key = (id(call.signature), id(call.math))
        known = self._known.get(key)
        if known is None:
            signature = call.signature
            operands = _plain(signature.arguments), _plain(signature.outputs)
            text = f"{signature.op} {signature.overload} {operands} {call.math}"
            known = self._known[key] = hashlib.sha256(text.encode()).hexdigest()[:_SIGNATURE_DIGITS]
        return known


def _plain(value: object) -> object:
    """Floats are left out: another learning rate is the same work."""
    if isinstance(value, tuple):  # a TensorSpec is one, too
        return tuple(_plain(item) for item in value)
    return "float" if isinstance(value, float) else value


# -- rows ----------------------------------------------------------------------------------------


def _ops_of(
    forecast: Forecast, step: StepSpan, digests: _Digests
) -> tuple[tuple[OpRow, ...], dict[tuple[str, ...], tuple[CallStack, ...]]]:
    launched: dict[int, list[KernelSpan]] = defaultdict(list)
    for span in kernels_of(step, forecast.timeline):
        launched[id(span.call)].append(span)
    sums: dict[tuple[str, str, str, str, str], tuple[int, int, int, int]] = {}
    stacks: dict[tuple[str, ...], tuple[CallStack, ...]] = {}
    costs: dict[tuple[int, int, str], tuple[str, str, int]] = {}
    called = [entry for entry in step.replay.step.entries if isinstance(entry, OpCall)]
    counts = Counter(map(id, called))
    calls = {id(call): call for call in called}
    for number, call in calls.items():
        spans, count = launched[number], counts[number]
        each = spans[: len(spans) // count]
        cost_key = (id(call.signature), id(call.math), call.phase)
        if cost_key not in costs:
            kernels = [span.kernel for span in each]
            classes = tuple(kernel.kernel_class for kernel in kernels)
            host_us = dispatch_us(call, classes, host=forecast.host)
            host_us += len(each) * forecast.host.launch_us
            signature = digests.of(call) if each else ""
            costs[cost_key] = (_work_text(kernels), signature, round(host_us * 1000))
        work, signature, host_ns = costs[cost_key]
        op = call.signature.op if each else VIEWS
        key = (call.module, call.phase, op, work, signature)
        kernel_ns = sum(span.duration_ns for span in spans)
        old = sums.get(key, (0, 0, 0, 0))
        sums[key] = (
            old[0] + count, old[1] + len(spans), old[2] + kernel_ns, old[3] + host_ns * count
        )  # fmt: skip
        known = stacks.get(key, ())
        if call.stack and call.stack not in known and len(known) < _PLACES_KEPT:
            stacks[key] = (*known, call.stack)
    rows = tuple(OpRow(*key, *numbers) for key, numbers in sums.items())
    return rows, stacks


def _work_text(kernels: list[Kernel]) -> str:
    if not kernels:
        return "no kernel"
    texts = Counter(map(_kernel_text, kernels))
    named = [text if count == 1 else f"{count} {text}" for text, count in texts.items()]
    more = len(named) - _KERNELS_NAMED
    return " + ".join(named[:_KERNELS_NAMED]) + (f" + {more} more" if more > 0 else "")


def _kernel_text(kernel: Kernel) -> str:
    """A kernel in words: what it computes, its size, its type."""
    size = kernel.size
    if isinstance(size, CollectiveSize):
        return f"{kernel.name} {size.num_bytes} bytes on {size.world_size} GPUs"
    numbers = "x".join(
        ",".join(map(str, part)) if isinstance(part, tuple) else str(part)
        for name, part in size._asdict().items()
        if (name, part) not in _ONE and not isinstance(part, (bool, str))
    )
    return f"{kernel.name} {numbers} {_SHORT_TYPES.get(kernel.dtype, kernel.dtype)}"


def _communication_bytes(kernels: Iterable[KernelSpan]) -> int:
    return sum(
        span.kernel.size.num_bytes
        for span in kernels
        if span.kernel.kernel_class is KernelClass.COLLECTIVE
        and isinstance(span.kernel.size, CollectiveSize)
    )


def _memory_of(
    forecast: Forecast,
) -> tuple[tuple[MemoryRow, ...], dict[tuple[str, ...], CallStack], str]:
    """What is alive at the peak, in bytes asked for; and where the peak is, in words."""
    peak = forecast.memory.peak_event
    if peak is None:
        return (), {}, ""
    alive: dict[int, Alloc] = {}
    for event in forecast.memory.events:
        if event.num_bytes > 0:
            alive[event.address] = event.source
        else:
            del alive[event.address]
        if event is peak:
            break
    sums: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    stacks: dict[tuple[str, ...], CallStack] = {}
    for source in alive.values():
        key = (source.module, source.phase, source.kind, source.op)
        num_storages, num_bytes = sums.get(key, (0, 0))
        sums[key] = (num_storages + 1, num_bytes + source.num_bytes)
        stacks.setdefault(key, source.stack)
    rows = [MemoryRow(*key, *numbers) for key, numbers in sums.items()]
    # Blocks are rounded up, and what is left of one may be too small to cut off.
    slack = peak.allocated - sum(row.num_bytes for row in rows)
    if slack:
        rows.append(MemoryRow("(allocator)", "", "slack", "", 0, slack))
    return tuple(rows), stacks, f"{peak.source.op} in {peak.source.module or '(no module)'}"


# -- what torch.compile made of it ---------------------------------------------------------------


def _compiled_figures(found: Compilation | None) -> dict[str, int]:
    """What of `COMPILED_METRICS` is known: nothing where nothing was compiled."""
    if found is None:
        return {}
    return {
        "num_graph_breaks": len(found.breaks),
        "num_recompiles": sum(again.num_times for again in found.recompiles),
        "num_graphs": found.num_graphs,
        "num_fused_kernels": found.fused.count,
    }


def _compiling_of(
    found: Compilation | None, folder: Path
) -> tuple[tuple[CompileRow, ...], dict[tuple[str, str, str], str]]:
    """A row for each reason and line of code, and where that line is."""
    if found is None:
        return (), {}
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    places: dict[tuple[str, str, str], str] = {}
    for what, reason, line, count in (
        *(("graph break", stop.reason, stop.line, 1) for stop in found.breaks),
        *(("recompile", item.reason, item.line, item.num_times) for item in found.recompiles),
    ):
        key = (what, reason, code_at(line, folder) or line.rpartition(":")[0])
        counts[key] += count
        places[key] = line  # of equal ones it is not known which is new; the last is the best guess
    return tuple(CompileRow(*key, count) for key, count in sorted(counts.items())), places


# -- waits ---------------------------------------------------------------------------------------


def code_at(place: str, folder: Path) -> str:
    """The line of code at "file.py:12"; "" where the file is not there."""
    name, _, number = place.rpartition(":")
    return linecache.getline(str(folder / name), int(number)).strip() if number.isdigit() else ""


def _wait_key(entry: Synchronize, folder: Path) -> tuple[str, str]:
    place = entry.stack[0] if entry.stack else ""
    return entry.reason, code_at(place, folder) or entry.source.rpartition(":")[0]


def _waits_of(
    entries: Iterable[Entry], folder: Path
) -> tuple[tuple[WaitRow, ...], dict[tuple[str, str], CallStack]]:
    counts: Counter[tuple[str, str]] = Counter()
    stacks: dict[tuple[str, str], CallStack] = {}
    for entry in entries:
        if isinstance(entry, Synchronize):
            key = _wait_key(entry, folder)
            counts[key] += 1
            stacks.setdefault(key, entry.stack or ((entry.source,) if entry.source else ()))
    return tuple(WaitRow(*key, count) for key, count in sorted(counts.items())), stacks


def _cost_of_wait(forecast: Forecast, step: StepSpan, key: tuple[str, str], folder: Path) -> float:
    """How many microseconds the steady step gains where this wait is left out."""
    recording = forecast.recording
    steps = tuple(
        replace(
            item,
            entries=tuple(
                entry
                for entry in item.entries
                if not (isinstance(entry, Synchronize) and _wait_key(entry, folder) == key)
            ),
        )
        for item in recording.steps
    )
    without = steady_step_of(forecast.of(replace(recording, steps=steps)).timeline)
    assert without is not None  # as many steps as before
    return (step.latency_ns - without.latency_ns) / 1000
