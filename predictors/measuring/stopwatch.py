"""Times kernels on a real GPU: their own durations from the profiler, and times between events.

Everything that needs a GPU is behind `Stopwatch`, so the way from probes to samples runs, and is
tested, without one.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple, Protocol, TypeAlias

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel
from neusight.predictors.measuring.folder import Quick, Sample
from neusight.predictors.measuring.probes import Probe, needs_gpus, prepared

Call: TypeAlias = "Callable[[], object]"
#: Says which kernels a call launches, as a forecast describes them.
Describe: TypeAlias = "Callable[[Call], tuple[Kernel, ...]]"

#: Calls before anything is timed: libraries choose and load their kernels in the first.
_WARM_UPS = 3
#: Runs of a probe: as many as fit into this time, within these bounds.
_RUNS_US = 20_000.0
_FEWEST_RUNS, _MOST_RUNS = 5, 20
#: A sample is measured again where half the range of its middle 80 % is above both: a share of
#: the median, and a time that the profiler's clock itself varies by.
_MOST_SPREAD = 0.10
_UNAVOIDABLE_US = 0.4
_TRIES = 3
#: Seconds under load before a sustained sample is taken: power limits act within a tenth of one.
_HEATING_SECONDS = 0.5
_MOST_HEATING_CALLS = 10_000


class TimedLaunch(NamedTuple):
    """A kernel, copy or memset that ran on the GPU."""

    name: str
    duration_us: float


class Conditions(NamedTuple):
    """The GPU's clock and power as they were, None where they cannot be read."""

    clock_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Refusal:
    """A probe or a workload that was not measured, and why."""

    subject: str
    reason: str


class Profiling(Protocol):
    """A profiler at work."""

    def mark(self, label: str) -> AbstractContextManager[object]:
        """What is launched inside belongs to `label`; a label may come again."""

    def launches(self) -> Mapping[str, Sequence[Sequence[TimedLaunch]]]:
        """For each label what was launched, one list for each time; known when it has ended."""


class Stopwatch(Protocol):
    """What times calls on a device."""

    @property
    def device(self) -> str:
        """The torch device that probes are prepared on."""

    @property
    def most_runs(self) -> int:
        """Runs of a probe that add anything; 1 where all are equal."""

    def events(self, call: Call, *, runs: int, cold: bool) -> list[float]:
        """Microseconds that a call takes on the device's stream; `cold`: after its L2 was used
        for something else."""

    def profiling(self) -> AbstractContextManager[Profiling]:
        """Profiles what is inside."""

    def cool(self) -> None:
        """Uses the L2 for something else."""

    def heat(self, call: Call, seconds: float) -> None:
        """Calls it for so long."""

    def synchronize(self) -> None:
        """Waits until the device has done all; raises where one of the calls failed there."""

    def conditions(self) -> Conditions:
        """The device's clock and power just now."""


# -- from probes to samples ---------------------------------------------------------------------


@dataclass
class _ProbeTrial:
    """A probe and what is known of it so far."""

    probe: Probe
    kernels: tuple[Kernel, ...]
    runs: int
    events: dict[str, list[float]] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)


def measured_probes(
    probes: Sequence[Probe],
    stopwatch: Stopwatch,
    describe: Describe,
    *,
    sustained: bool = False,
    begin: Callable[[Probe], object] = lambda probe: None,
) -> Iterator[Sample | Refusal]:
    """Samples of each probe, L2 cold and hot; or, under load, sustained ones. `begin` is called
    with each probe before it is run. A probe that fails, or stays noisy, gives a `Refusal`."""
    modes = ("hot",) if sustained else ("hot", "cold")
    trials: list[_ProbeTrial] = []
    for probe in probes:
        begin(probe)
        try:
            trials.append(_tried(probe, stopwatch, describe, modes, sustained=sustained))
        except Exception as error:  # an op that this GPU or torch does not have, or no memory
            yield Refusal(probe.text, _reason(error))
            stopwatch.synchronize()
    for attempt in range(_TRIES):
        launches = _profiled(trials, stopwatch, begin, modes, sustained=sustained)
        noisy: dict[str, _ProbeTrial] = {}
        for index, trial in enumerate(trials):
            for mode in modes:
                found = launches.get(_label(index, mode), [])
                samples = _samples(trial, mode, found, sustained)
                spread = max((_noise(sample) for sample in samples), default=0.0)
                if spread > _MOST_SPREAD and attempt + 1 < _TRIES:
                    noisy[trial.probe.text] = trial
                elif spread > _MOST_SPREAD:
                    yield Refusal(
                        f"{trial.probe.text} l2={mode}",
                        f"its runs differ by {spread:.0%} after {_TRIES} tries",
                    )
                else:
                    yield from samples
        trials = [
            _ProbeTrial(trial.probe, trial.kernels, 2 * trial.runs, trial.events)
            for trial in noisy.values()
        ]
        if not trials:
            return


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200] if text else ''}"


def _tried(
    probe: Probe,
    stopwatch: Stopwatch,
    describe: Describe,
    modes: Sequence[str],
    *,
    sustained: bool,
) -> _ProbeTrial:
    """Runs the probe without a profiler: which kernels it launches, and times between events."""
    with prepared(probe, device=stopwatch.device) as call:
        for _ in range(_WARM_UPS):
            call()
        stopwatch.synchronize()
        kernels = _described(probe, call, describe)
        if not kernels:
            raise ValueError("it launches no kernel that neusight describes")
        fewest = min(_FEWEST_RUNS, stopwatch.most_runs)
        first_us = median(stopwatch.events(call, runs=fewest, cold=False))
        runs = round(min(stopwatch.most_runs, max(fewest, _RUNS_US / max(first_us, 1e-3))))
        trial = _ProbeTrial(probe, kernels, runs)
        if sustained:
            stopwatch.heat(call, _HEATING_SECONDS)
        for mode in modes:
            trial.events[mode] = stopwatch.events(call, runs=runs, cold=mode == "cold")
        stopwatch.synchronize()
    return trial


def _described(probe: Probe, call: Call, describe: Describe) -> tuple[Kernel, ...]:
    if probe.op == "all_reduce":  # NCCL is not called through an op
        ranks = needs_gpus(probe)
        return (Kernel.collective("all_reduce", 4 * probe["numel"], ranks, dtype="float32"),)
    return describe(call)


#: Annotations that are ours begin so; optimizers and others write their own.
_MARK = "neusight probe"


def _label(index: int, mode: str) -> str:
    return f"{_MARK} {index} {mode}"


def _profiled(
    trials: Sequence[_ProbeTrial],
    stopwatch: Stopwatch,
    begin: Callable[[Probe], object],
    modes: Sequence[str],
    *,
    sustained: bool,
) -> Mapping[str, Sequence[Sequence[TimedLaunch]]]:
    with stopwatch.profiling() as profiling:
        for index, trial in enumerate(trials):
            begin(trial.probe)
            with prepared(trial.probe, device=stopwatch.device) as call:
                for _ in range(_WARM_UPS):
                    call()
                stopwatch.synchronize()
                if sustained:
                    stopwatch.heat(call, _HEATING_SECONDS)
                for mode in modes:
                    for _ in range(trial.runs):
                        if mode == "cold":
                            stopwatch.cool()
                        with profiling.mark(_label(index, mode)):
                            call()
                stopwatch.synchronize()
                trial.conditions = stopwatch.conditions()
    return profiling.launches()


def _samples(
    trial: _ProbeTrial,
    mode: str,
    launches: Sequence[Sequence[TimedLaunch]],
    sustained: bool,
) -> list[Sample]:
    """One sample, or one a kernel where as many were launched as are described."""
    events = trial.events[mode]
    common: dict[str, Any] = {
        "op": trial.probe.op,
        "l2": mode,
        "clock_regime": "sustained" if sustained else "burst",
        "clock_mhz": trial.conditions.clock_mhz,
        "power_w": trial.conditions.power_w,
    }
    text, kernels = trial.probe.text, trial.kernels
    event_us = round(median(events), 4)
    counts = {len(run) for run in launches}
    if counts <= {0}:  # no profiler on this machine: events are all there is
        spread = _spread(events)
        return [
            Sample(probe=text, kernels=kernels, kernel_us=None, event_us=event_us, spread=spread,
                   num_runs=len(events), **common)
        ]  # fmt: skip
    common["num_runs"] = len(launches)
    if len(kernels) > 1 and counts == {len(kernels)}:
        return list(_parts(trial, launches, common))
    names = dict.fromkeys(launch.name for launch in launches[0])
    gpus = needs_gpus(trial.probe)  # each runs the kernel of a collective
    return [
        Sample(
            probe=text,
            kernels=kernels,
            event_us=event_us,
            num_launches=round(median(len(run) for run in launches)),
            kernel_name=" + ".join(names),
            **_duration([sum(launch.duration_us for launch in run) / gpus for run in launches]),
            **common,
        )
    ]


def _parts(
    trial: _ProbeTrial, launches: Sequence[Sequence[TimedLaunch]], common: Mapping[str, Any]
) -> Iterator[Sample]:
    """A sample for each kernel of the probe; equal ones, as an optimizer's, give their mean."""
    positions: defaultdict[Kernel, list[int]] = defaultdict(list)
    for position, kernel in enumerate(trial.kernels):
        positions[kernel].append(position)
    for number, (kernel, places) in enumerate(positions.items(), start=1):
        yield Sample(
            probe=f"{trial.probe.text} part={number}/{len(positions)}",
            kernels=(kernel,),
            event_us=None,
            kernel_name=launches[0][places[0]].name,
            **_duration([mean(run[place].duration_us for place in places) for run in launches]),
            **common,
        )


def _duration(runs_us: list[float]) -> dict[str, Any]:
    return {"kernel_us": round(median(runs_us), 4), "spread": _spread(runs_us)}


def _spread(values: Sequence[float]) -> float:
    """Half the range of the middle 80 %, over the median."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    middle = median(ordered)
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return round((high - low) / 2 / middle, 4) if middle > 0 else 0.0


def _noise(sample: Sample) -> float:
    """The spread, where it is more than the profiler's own."""
    return sample.spread if sample.spread * sample.latency_us > _UNAVOIDABLE_US else 0.0


# -- constants ---------------------------------------------------------------------------------


def quick_of(kinds: Mapping[str, str], samples: Sequence[Sample], gpu: GPU | None) -> Quick:
    """The constants that follow from the quick samples; `kinds` says of each probe what it is for.

    Utilizations are the best of their samples, over the datasheet (None without one); floors are
    medians. "spread" is that of the samples each was taken from.
    """
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        kind = kinds.get(sample.probe)
        if kind is not None and sample.clock_regime == "burst" and sample.l2 == "hot":
            found[kind].append(sample)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for sample in found["gemm"]:
        kernel = sample.kernels[-1]
        is_product = isinstance(kernel.size, GemmSize)
        if is_product and gpu is not None and kernel.compute in gpu.peak_tflops:
            peak = gpu.peak_flops(kernel.compute, matrix=True)
            rates[kernel.compute].append(kernel.flops / (sample.latency_us * 1e-6) / peak)
    streams = [
        sample.kernels[0].num_bytes / (sample.latency_us * 1e3) / gpu.bandwidth_gbps
        for sample in found["stream"]
        if gpu is not None
    ]
    floors = [sample.latency_us for sample in found["floor"]]
    links = [sample.latency_us for sample in found["link"]]
    constants: dict[str, Any] = {
        "gemm_utilization": {unit: round(max(values), 4) for unit, values in rates.items()},
        "bandwidth_utilization": round(max(streams), 4) if streams else None,
        "floor_us": round(median(floors), 4) if floors else None,
        "link_floor_us": round(median(links), 4) if links else None,
        "spread": {
            "gemm_utilization": {unit: _spread(values) for unit, values in rates.items()},
            "bandwidth_utilization": _spread(streams) if streams else None,
            "floor_us": _spread(floors) if floors else None,
            "link_floor_us": _spread(links) if links else None,
        },
    }
    kept = tuple((kinds[s.probe], s) for values in found.values() for s in values)
    return Quick(kept, constants)


# -- a real GPU --------------------------------------------------------------------------------

#: Bytes read to use up the L2, as a multiple of its size: its replacement is not strictly LRU.
_FLUSH_L2_SIZES = 4
_FLUSH_BYTES = 512 * 2**20
#: Calls that the host launches while the GPU reads that much once (50 to 500 us, a launch 5 to 20).
_CALLS_PER_FLUSH = 4
_MOST_FLUSHES = 8
_TRAINS = 5


class CudaStopwatch:
    """Times calls on the current CUDA (or ROCm) GPU; `read_conditions` gives its clock and power.

    It changes no setting of the card.
    """

    device = "cuda"
    most_runs = _MOST_RUNS

    def __init__(self, read_conditions: Callable[[], Conditions] = Conditions) -> None:
        import torch

        self._torch = torch
        self._read_conditions = read_conditions
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        size = max(_FLUSH_L2_SIZES * l2_bytes, _FLUSH_BYTES // 4)
        self._flushed = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
        with self.profiling():  # the first one loads CUPTI
            self.cool()

    def events(self, call: Call, *, runs: int, cold: bool) -> list[float]:
        """A time for each run after a flush of the L2; or, hot, means of a few trains of runs."""
        torch = self._torch
        pairs = []
        per_pair = 1 if cold else max(2, runs // _TRAINS)
        for _ in range(runs if cold else _TRAINS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # While the GPU is busy with this the host gets ahead, and its own time, which between
            # short kernels is the longer one, lies outside of what is timed.
            for _ in range(min(_MOST_FLUSHES, 1 + per_pair // _CALLS_PER_FLUSH)):
                self.cool()
            for _ in range(0 if cold else _WARM_UPS):
                call()
            start.record()
            for _ in range(per_pair):
                call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 / per_pair for start, end in pairs]

    @contextmanager
    def profiling(self) -> Iterator[Profiling]:
        """torch.profiler, read through the trace that it writes, whose form is the same in all
        versions."""
        from torch.profiler import ProfilerActivity, profile

        work = _TorchProfiling()
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities) as profiler:
            yield work
            self.synchronize()
        with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            work.found = launches_of_trace(json.loads(path.read_bytes()))

    def cool(self) -> None:
        """Reads more than the L2 holds; what is read needs no write-back later."""
        self._flushed.sum()

    def heat(self, call: Call, seconds: float) -> None:
        """Calls it for about so long without a pause; the host queues it all in advance."""
        start = time.perf_counter()
        call()
        self.synchronize()
        once = time.perf_counter() - start
        for _ in range(min(_MOST_HEATING_CALLS, round(seconds / once))):
            call()

    def synchronize(self) -> None:
        """Waits for the GPU."""
        self._torch.cuda.synchronize()

    def conditions(self) -> Conditions:
        """Clock and power as they were read last."""
        return self._read_conditions()


class _TorchProfiling:
    def __init__(self) -> None:
        self.found: Mapping[str, Sequence[Sequence[TimedLaunch]]] = {}

    def mark(self, label: str) -> AbstractContextManager[object]:
        from torch.profiler import record_function

        marked: AbstractContextManager[object] = record_function(label)
        return marked

    def launches(self) -> Mapping[str, Sequence[Sequence[TimedLaunch]]]:
        return self.found


_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime")


def launches_of_trace(trace: Mapping[str, Any]) -> dict[str, list[list[TimedLaunch]]]:
    """What was launched within each of our annotations in a trace of torch.profiler, by its name
    and in the order of time; an annotation that comes again has a list for each time."""
    marks: list[tuple[float, float, str]] = []
    calls: dict[int, float] = {}
    kernels: list[tuple[float, int, TimedLaunch]] = []
    for event in trace["traceEvents"]:
        category, start = event.get("cat"), event.get("ts")
        if event.get("ph") != "X" or start is None:
            continue
        correlation = event.get("args", {}).get("correlation")
        if category == "user_annotation" and event["name"].startswith(_MARK):
            marks.append((start, start + event["dur"], event["name"]))
        elif category in _RUNTIME_CATEGORIES and correlation is not None:
            calls.setdefault(correlation, start)
        elif category in _DEVICE_CATEGORIES and correlation is not None:
            kernels.append((start, correlation, TimedLaunch(event["name"], event["dur"])))
    marks.sort()
    runs: list[list[TimedLaunch]] = [[] for _ in marks]
    position = 0
    launched = sorted(
        (calls[correlation], start, launch)
        for start, correlation, launch in kernels
        if correlation in calls
    )
    for called, _, launch in launched:
        while position < len(marks) and marks[position][1] < called:
            position += 1
        if position < len(marks) and marks[position][0] <= called:
            runs[position].append(launch)
    found: defaultdict[str, list[list[TimedLaunch]]] = defaultdict(list)
    for (_, _, name), run in zip(marks, runs, strict=True):
        found[name].append(run)
    return dict(found)
