"""Events of a profile, as torch.profiler writes them: times and durations in microseconds."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def host_event(cat: str, name: str, ts: float, dur: float = 1.0, **args: Any) -> Event:
    """An event of thread 1 of process 1."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args
    }  # fmt: skip


def device_event(
    name: str, ts: float, dur: float, correlation: int, cat: str = "kernel", **args: Any
) -> Event:
    """An event of stream 7 of GPU 0."""
    ids = {"device": 0, "stream": 7, "correlation": correlation}
    return {**host_event(cat, name, ts, dur, **ids, **args), "pid": 0, "tid": 7}


def trace_of_events(events: list[Event], gpu: str = "Tesla V100-SXM2-32GB") -> dict[str, Any]:
    """A trace of a GPU of that name."""
    return {"deviceProperties": [{"id": 0, "name": gpu}], "traceEvents": events}
