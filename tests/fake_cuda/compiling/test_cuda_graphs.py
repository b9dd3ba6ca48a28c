"""mode="reduce-overhead": CUDA graphs of compiled code."""

from __future__ import annotations

import torch
from compiled_net import Net, infer, ops

import neusight
from neusight.recording.recording import Mark
from neusight.timeline.scheduler import GRAPH_LAUNCH


def test_from_the_third_call_on_it_is_one_launch_behind_a_copy_of_the_input() -> None:
    with neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), mode="reduce-overhead"))
    steps = [step for step in forecast.recording.steps if step.kind == "eval"]
    launches = [
        sum(isinstance(e, Mark) and e.kind == "graph_begin" for e in step.entries) for step in steps
    ]

    assert launches[:2] == [0, 0]
    assert set(launches[2:]) == {1}
    assert ops(steps[-1])["aten::_foreach_copy_"] == 1
    assert GRAPH_LAUNCH in {span.name for span in forecast.timeline.host}
