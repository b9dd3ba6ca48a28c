"""Metadata of a trace: names of lanes, the profiler's window, the machine."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.output.trace.arguments import REGISTERS_PER_BLOCK
from neusight.output.trace.events import Event, EventLog
from neusight.predictors.gpu import GPU
from neusight.predictors.physics.launch_geometry import MOST_THREADS_PER_CTA
from neusight.timeline.spans import AUTOGRAD

#: Sort position of GPU processes and of the profiler's own, as Kineto writes them.
GPU_SORT_INDEX, SPANS_SORT_INDEX = 5_000_000, 536_870_912
_SHARED_MEMORY_PER_BLOCK = 49152


def names_of_lanes(
    log: EventLog, gpu_name: str, streams: Mapping[int, str], first_ns: int
) -> list[Event]:
    """Names and order of processes, threads and streams, as viewers show them."""
    process, gpu, threads = log.process, log.device, log.threads
    named: list[tuple[str, object, object, str, object]] = [
        ("process_name", process, 0, "name", "python"),
        ("process_labels", process, 0, "labels", "CPU"),
        ("process_sort_index", process, 0, "sort_index", process),
        ("process_name", gpu, 0, "name", gpu_name),
        ("process_labels", gpu, 0, "labels", f"GPU {gpu}"),
        ("process_sort_index", gpu, 0, "sort_index", GPU_SORT_INDEX + gpu),
    ]
    for stream, name in streams.items():
        named.append(("thread_name", gpu, stream, "name", name))
        named.append(("thread_sort_index", gpu, stream, "sort_index", stream))
    for name, thread in sorted(threads.items(), key=lambda known: known[1]):
        label = "pt_autograd_0" if name == AUTOGRAD else "python"
        named.append(("thread_name", process, thread, "name", f"thread {thread} ({label})"))
        named.append(("thread_sort_index", process, thread, "sort_index", thread))
    return [
        {
            "name": name,
            "ph": "M",
            "ts": log.us(first_ns),
            "pid": pid,
            "tid": tid,
            "args": {key: value},
        }
        for name, pid, tid, key, value in named
    ]


def frame_of(log: EventLog, first_ns: int, last_ns: int) -> list[Event]:
    """The events around all others: the profiler's own span, and the ends of its window."""
    first, last = log.us(first_ns), log.us(last_ns)
    return [
        {
            "ph": "X",
            "cat": "Trace",
            "ts": first,
            "dur": (last_ns - first_ns) / 1000,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        },
        {
            "name": "process_sort_index",
            "ph": "M",
            "ts": first,
            "pid": "Spans",
            "tid": 0,
            "args": {"sort_index": SPANS_SORT_INDEX},
        },
        {
            "name": "Iteration Start: PyTorch Profiler",
            "ph": "i",
            "s": "g",
            "pid": "Traces",
            "tid": "Trace PyTorch Profiler",
            "ts": first,
        },
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": last},
    ]


def device_properties(gpu: GPU, device: int) -> dict[str, object]:
    """One GPU, as the profiler describes it."""
    return {
        "id": device,
        "name": gpu.driver_name,
        "totalGlobalMem": gpu.memory_bytes,
        "computeMajor": gpu.compute_capability[0],
        "computeMinor": gpu.compute_capability[1],
        "maxThreadsPerBlock": MOST_THREADS_PER_CTA,
        "maxThreadsPerMultiprocessor": gpu.max_threads_per_sm,
        "regsPerBlock": REGISTERS_PER_BLOCK,
        "warpSize": gpu.warp_size,
        "sharedMemPerBlock": gpu.shared_memory_per_sm_bytes
        if gpu.vendor == "amd"
        else _SHARED_MEMORY_PER_BLOCK,
        "numSms": gpu.num_sms,
        "regsPerMultiprocessor": gpu.registers_per_sm,
        "sharedMemPerBlockOptin": gpu.shared_memory_per_block_optin_bytes,
        "sharedMemPerMultiprocessor": gpu.shared_memory_per_sm_bytes,
    }
