"""A server's run as a trace that Perfetto draws: steps, requests, and counters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from neusight.integrations.serving.service import LoadPoint
from neusight.predictors.files import write_atomically
from neusight.serving.scheduler import BOUNDS, ServedRequest, ServerRun

#: The first row of steps (a pipeline has one for each batch under way) and that of requests;
#: requests that do not overlap share a row.
_STEPS_ROW, _FIRST_ROW = 1, 1000


def write_serving_timeline(path: str, points: Sequence[LoadPoint]) -> None:
    """Writes the trace atomically; compressed if the name ends in .gz."""
    text = json.dumps(serving_trace(points), separators=(",", ":"), sort_keys=True).encode()
    if path.endswith(".gz"):
        text = gzip.compress(text, mtime=0)
    write_atomically(Path(path), text)


def serving_trace(points: Sequence[LoadPoint]) -> dict[str, Any]:
    """Chrome's trace format, a process for each replica of each load; times in microseconds."""
    events: list[dict[str, Any]] = []
    process = 0
    for point in points:
        for run in point.runs:
            process += 1
            name = f"{point.server.deployment.label}, {point.label}"
            events += _named(process, name)
            events += _steps(run, process)
            events += _requests(run.served, process)
    return {"traceEvents": events, "displayTimeUnit": "ms", "neusight": {"forecast": True}}


def _named(process: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": process, "tid": _STEPS_ROW,
           "args": {"name": "steps"}}  # fmt: skip


def _steps(run: ServerRun, process: int) -> Iterator[dict[str, Any]]:
    for step in run.steps:
        start = _us(step.start_s)
        kind = "decode" if not step.prompt_tokens else (
            "prefill + decode" if step.new_tokens > 1 else "prefill")  # fmt: skip
        yield {
            "ph": "X", "name": kind, "pid": process, "tid": _STEPS_ROW + step.lane,
            "ts": start,
            "dur": _us(step.latency_s),
            "args": {"running": step.running, "prompt_tokens": step.prompt_tokens,
                     "new_tokens": step.new_tokens, "bound": BOUNDS[step.bound]},
        }  # fmt: skip
        counters = {"running": step.running, "waiting": step.waiting,
                    "kv_blocks": step.used_blocks}  # fmt: skip
        for name, value in counters.items():
            yield {"ph": "C", "name": name, "pid": process, "ts": start, "args": {name: value}}


def _requests(served: Sequence[ServedRequest], process: int) -> Iterator[dict[str, Any]]:
    ends: list[float] = []
    for one in sorted(served, key=lambda item: (item.arrival_s, item.request.index)):
        row = next((at for at, end in enumerate(ends) if end <= one.arrival_s), len(ends))
        if row == len(ends):
            ends.append(0.0)
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": _FIRST_ROW + row,
                   "args": {"name": f"requests {row + 1}"}}  # fmt: skip
        ends[row] = one.last_token_s
        parts = (("waiting", one.arrival_s, one.scheduled_s),
                 ("prefill", one.scheduled_s, one.first_token_s),
                 ("decode", one.first_token_s, one.last_token_s))  # fmt: skip
        for name, start, end in parts:
            yield {
                "ph": "X", "name": name, "pid": process, "tid": _FIRST_ROW + row,
                "ts": _us(start), "dur": _us(end - start),
                "args": {"request": one.request.index, "input_tokens": one.request.input_tokens,
                         "output_tokens": one.request.output_tokens},
            }  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
