"""One workload on a real GPU: its steps timed without a profiler, three of them with one."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from neusight.integrations.profiles.reading.profile import DeviceEvent, ProfileStep
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.predictors.errors import DataError
from neusight.predictors.measuring.folder import Workload
from neusight.timeline.steady import HOST_BOUND_IDLE_SHARE

#: Steps before anything counts: libraries choose kernels, the allocator and the optimizer settle.
_WARM_STEPS = 5
#: Timed steps: as many as fit into this time, within these bounds.
_TIMED_SECONDS = 1.0
_FEWEST_STEPS, _MOST_STEPS = 10, 50
#: Steps that the profiler records.
_PROFILED_STEPS = 3
#: A gap between two kernels up to this is the stream's own, not the host's lateness.
_QUEUE_GAP_NS = 3_000
#: A trace above this is written with fewer steps: all workloads together stay below 20 MB.
_MOST_TRACE_BYTES = 400_000


def measured_workload(
    name: str, script: Path, arguments: Sequence[str], *, environment: Mapping[str, Any]
) -> tuple[Workload, bytes]:
    """The workload's figures, and the gzipped trace of its profiled steps.

    Where the profiler sees no kernels (no CUPTI, or no right to use it) there is no trace, no
    kernel is counted, and how long the GPU was busy is read from events.
    """
    import torch

    with loaded(script) as module:
        settings = module.parser().parse_args(list(arguments))
        torch.manual_seed(0)
        step = module.build(settings)
        for _ in range(_WARM_STEPS):
            step()
        torch.cuda.synchronize()
        times_us = _timed(step, torch.cuda.synchronize)
        trace, profiled_us = _profiled(step)
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        kept = trimmed(trace)
        has_kernels = any(event.get("cat") == "kernel" for event in kept["traceEvents"])
        figures = (
            figures_of_trace(kept, step_us=median(times_us))
            if has_kernels
            else _figures_by_events(step, step_us=median(times_us))
        )
    workload = Workload(
        workload=name,
        command=(script.name, *arguments),
        arguments=vars(settings),
        mode=settings.mode,
        environment=dict(environment),
        step_us=step_times(times_us),
        profiled_step_us=round(median(profiled_us), 3),
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        trace=f"{name}.pt.trace.json.gz" if has_kernels else "",
        **figures,
    )
    return workload, zipped(kept) if has_kernels else b""


#: Floats that are summed to keep the GPU busy, and runs of the step behind that.
_FILLER_NUMEL = 2**26
_BUSY_RUNS = 3
#: How much longer the GPU is kept busy than the host needs for a step.
_FILLER_MARGIN = 1.5


def _figures_by_events(step: Callable[[], object], *, step_us: float) -> dict[str, Any]:
    """How long the GPU works on a step whose kernels are all queued before it begins with them;
    gaps between them count, and so does the host where the step itself waits for the GPU."""
    import torch

    filler = torch.zeros(_FILLER_NUMEL, device="cuda")
    host_us = _host_us(step)
    filler.sum()
    torch.cuda.synchronize()

    def fill() -> None:
        filler.sum()
        torch.cuda.synchronize()

    filling_us = _host_us(fill)
    event: Any = torch.cuda.Event  # has no annotations
    found = []
    for _ in range(_BUSY_RUNS):
        start, end = (event(enable_timing=True) for _ in range(2))
        for _ in range(1 + round(_FILLER_MARGIN * host_us / max(filling_us, 1.0))):
            filler.sum()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    busy_us = min(median(found), step_us)
    return {
        "num_kernels": 0,
        "gpu_busy_us": round(busy_us, 3),
        "host_bound": step_us - busy_us > HOST_BOUND_IDLE_SHARE * step_us,
        "kernels": (),
    }


def _host_us(call: Callable[[], object]) -> float:
    """Microseconds until the call returns, with nothing queued before it."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


@contextmanager
def loaded(script: Path) -> Iterator[ModuleType]:
    """The workload's file as a module; what lies beside it can be imported meanwhile."""
    spec = importlib.util.spec_from_file_location(f"workload_{script.stem}", script)
    if spec is None or spec.loader is None or not script.is_file():
        raise DataError(f"There is no workload {script}.")
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules)
    sys.path.insert(0, str(script.parent))
    try:
        spec.loader.exec_module(module)
        for needed in ("parser", "build"):
            if not callable(getattr(module, needed, None)):
                raise DataError(f"{script} is no workload: it has no function {needed}().")
        yield module
    finally:
        sys.path.remove(str(script.parent))
        for found in set(sys.modules) - known:
            origin = getattr(sys.modules[found], "__file__", None)
            if origin is not None and Path(origin).parent == script.parent:
                del sys.modules[found]


def step_times(times_us: Sequence[float]) -> dict[str, Any]:
    """Median and the middle 80 % of the steps."""
    ordered = sorted(times_us)
    cut = len(ordered) // 10
    return {
        "median": round(median(ordered), 3),
        "low": round(ordered[cut], 3),
        "high": round(ordered[-1 - cut], 3),
        "samples": [round(value, 3) for value in times_us],
    }


def _timed(step: Callable[[], object], synchronize: Callable[[], object]) -> list[float]:
    """Microseconds of each step and the wait for the GPU after it."""
    times_us: list[float] = []
    begin = time.perf_counter()
    while len(times_us) < _FEWEST_STEPS or (
        len(times_us) < _MOST_STEPS and time.perf_counter() - begin < _TIMED_SECONDS
    ):
        start = time.perf_counter()
        step()
        synchronize()
        times_us.append((time.perf_counter() - start) * 1e6)
    return times_us


def _profiled(step: Callable[[], object]) -> tuple[dict[str, Any], list[float]]:
    """The trace of some steps, and how long each took under the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    times_us = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=1, active=_PROFILED_STEPS),
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for number in range(1 + _PROFILED_STEPS):
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            if number:
                times_us.append((time.perf_counter() - start) * 1e6)
            if number < _PROFILED_STEPS:  # the last one would end the profile a second time
                profiler.step()
    with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found: dict[str, Any] = json.loads(path.read_bytes())
    return found, times_us


# -- traces ------------------------------------------------------------------------------------

#: What is kept of a trace: nothing of the machine but its GPU.
_KEPT_KEYS = (
    "schemaVersion",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "record_shapes",
    "profile_memory",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "hip_driver_version",
)
_KEPT_CATEGORIES = {
    "cpu_op",
    "user_annotation",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "hip_runtime",
}
_KEPT_DEVICE_KEYS = (
    "id",
    "name",
    "totalGlobalMem",
    "computeMajor",
    "computeMinor",
    "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor",
    "regsPerBlock",
    "regsPerMultiprocessor",
    "warpSize",
    "sharedMemPerBlock",
    "sharedMemPerMultiprocessor",
    "numSms",
    "sharedMemPerBlockOptin",
)
_DROPPED_ARGUMENTS = frozenset(
    (
        *("Call stack", "Module Hierarchy", "Python id"),
        *("Ev Idx", "Record function id", "Fwd thread id", "queued", "context", "cbid"),
    )
)


def trimmed(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The trace without what is private or not needed: host names, process names, paths, stacks,
    arrows; three steps of what ran and when are left."""
    kept = {key: trace[key] for key in _KEPT_KEYS if key in trace}
    kept["deviceProperties"] = [
        {key: device[key] for key in _KEPT_DEVICE_KEYS if key in device}
        for device in trace.get("deviceProperties", [])
    ]
    kept["traceEvents"] = [
        _without_private(event) for event in trace.get("traceEvents", []) if _is_kept(event)
    ]
    return kept


def _is_kept(event: Mapping[str, Any]) -> bool:
    if event.get("ph") == "X":
        return event.get("cat") in _KEPT_CATEGORIES
    return event.get("name") == "[memory]"


def _without_private(event: Mapping[str, Any]) -> dict[str, Any]:
    arguments = event.get("args", {})
    kept = {key: value for key, value in arguments.items() if key not in _DROPPED_ARGUMENTS}
    return {**event, "args": kept}


def zipped(trace: Mapping[str, Any]) -> bytes:
    """The trace gzipped, with fewer of its steps if it is large."""
    data = _gzipped(trace)
    marks = _marks(trace)
    while len(data) > _MOST_TRACE_BYTES and len(marks) > 1:
        end = marks.pop()
        events = [event for event in trace["traceEvents"] if event.get("ts", end) < end]
        trace = {**trace, "traceEvents": events}
        data = _gzipped(trace)
    return data


def _gzipped(trace: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)


def _marks(trace: Mapping[str, Any]) -> list[float]:
    """Where the steps begin."""
    return sorted(
        event["ts"]
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    )


def figures_of_trace(trace: Mapping[str, Any], *, step_us: float) -> dict[str, Any]:
    """The figures of the median profiled step: kernels, copies and memsets, and how long at least
    one of them ran; bound by the host where the GPU idles for more than a forecast would allow."""
    profile = read_profile_events(trace)
    step = profile.median_step()
    if step is None:
        raise DataError("The profile holds no kernel: may the profiler read the GPU's counters?")
    busy_us = step.busy_ns / 1e3
    idle_us = step_us - busy_us - _queue_gaps_ns(step.events) / 1e3
    return {
        "num_kernels": len(step.events),
        "gpu_busy_us": round(busy_us, 3),
        "host_bound": idle_us > HOST_BOUND_IDLE_SHARE * step_us,
        "kernels": tuple(_kernel_rows(step)),
    }


def _queue_gaps_ns(events: Iterable[DeviceEvent]) -> int:
    total_ns = reached_ns = 0
    for event in sorted(events, key=lambda event: event.start_ns):
        gap_ns = event.start_ns - reached_ns
        if 0 < gap_ns <= _QUEUE_GAP_NS:
            total_ns += gap_ns
        reached_ns = max(reached_ns, event.end_ns)
    return total_ns


def _kernel_rows(step: ProfileStep) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    times_ns: Counter[str] = Counter()
    for event in step.events:
        counts[event.name] += 1
        times_ns[event.name] += event.duration_ns
    for name, time_ns in sorted(times_ns.items(), key=lambda item: (-item[1], item[0])):
        yield {"name": name, "count": counts[name], "time_us": round(time_ns / 1e3, 3)}
