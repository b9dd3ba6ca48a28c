"""Memory events of a trace: on which thread they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import neusight
from neusight.output.trace.file import trace_events


def test_what_backward_frees_between_its_ops_is_freed_on_its_thread() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).cuda()
        for _ in range(2):
            model(torch.ones(8, 8, device="cuda")).sum().backward()
            forecast.step()

    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    events: list[dict[str, Any]] = trace["traceEvents"]  # type: ignore[assignment]
    nodes = [event for event in events if str(event["name"]).endswith("AddmmBackward0")]
    begin, thread = min((event["ts"], event["tid"]) for event in nodes[: len(nodes) // 2])
    end = max(event["ts"] for event in nodes[: len(nodes) // 2])
    freed = [
        event["tid"]
        for event in events
        if event["name"] == "[memory]" and begin < event["ts"] < end
    ]
    assert freed and set(freed) == {thread}
