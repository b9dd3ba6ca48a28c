"""A timeline with operators: their nesting, their share of the time, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import neusight
from neusight.recording.dispatch.record_functions import RecordFunctions
from neusight.timeline.operators.tree import shown_positions, with_operators
from neusight.timeline.spans import HostSpan, Timeline


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = functional.silu(self.norm(self.first(x)))
        low = functional.relu(self.down(high))
        joined: torch.Tensor = self.last(torch.cat([high, self.up(low)], 1))
        return joined


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(100, 64), nn.LayerNorm(64)
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 100, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (part.contiguous() for part in self.project(self.norm(x)).split(64, -1))
        weights = (q @ k.transpose(-1, -2) / 8.0).softmax(-1)
        logits: torch.Tensor = self.out(functional.gelu(x + (weights @ v).contiguous()))
        return logits


PROGRAMS = {
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 16, 16)),
    "tokens": (Tokens, lambda: torch.randint(0, 100, (2, 16))),
}


def train(name: str, device: str) -> Iterator[None]:
    """Steps of a program, one each time that another is asked for."""
    make, data = PROGRAMS[name]
    model, batch = make().to(device), data().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    while True:
        model(batch).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def shown(timeline: Timeline) -> tuple[Timeline, Timeline]:
    """The last step of a timeline, without operators and with them."""
    steps = [step for step in timeline.steps if step.replay.step.kind != "setup"][-1:]
    return timeline, with_operators(timeline, steps)


def forecast_of(name: str) -> neusight.Forecast:
    with neusight.forecast_on("H100") as forecast:
        steps = train(name, "cuda")
        for _ in range(3):
            next(steps)
            forecast.step()
    return forecast


def pairs_on_gpu(name: str) -> tuple[Counter[tuple[str, str]], set[str]]:
    """(around, name) of each operator down to the ops, and the names of ops."""
    _, timeline = shown(forecast_of(name).timeline)
    found: Counter[tuple[str, str]] = Counter()
    for span in timeline.host:
        if span.kind in ("op", "operator", "node"):
            around = [s for s in ancestors(timeline, span) if s.kind in ("op", "operator", "node")]
            if all(one.kind != "op" for one in around):
                found[around[0].name if around else "", span.name] += 1
    return found, {span.name for span in timeline.host if span.kind == "op"}


def ancestors(timeline: Timeline, span: HostSpan) -> list[HostSpan]:
    found = []
    while span.parent >= 0:
        span = timeline.host[span.parent]
        found.append(span)
    return found


def pairs_on_cpu(name: str, ops: set[str]) -> Counter[tuple[str, str]]:
    """The same as torch's record functions report it of a step on the CPU."""
    open_: list[tuple[int, str]] = []
    found: Counter[tuple[str, str]] = Counter()

    def begins(record: int, number: int, is_node: bool) -> bool:
        while open_ and functions.has_ended(open_[-1][0]):
            open_.pop()
        name = functions.name_of(record).decode()
        around = [other for _, other in open_]
        if not name.startswith(("profiler::", "TorchDynamo")) and not ops.intersection(around):
            found[around[-1] if around else "", name] += 1
        open_.append((number, name))
        return True

    functions = RecordFunctions(begins)
    steps = train(name, "cpu")
    next(steps)
    functions.switch(True)
    try:
        next(steps)
    finally:
        functions.switch(False)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_are_those_that_torch_calls_on_the_cpu(name: str) -> None:
    on_gpu, ops = pairs_on_gpu(name)

    on_cpu = pairs_on_cpu(name, ops)

    assert (on_gpu - on_cpu, on_cpu - on_gpu) == (Counter(), Counter())


@pytest.mark.parametrize("name", PROGRAMS)
def test_spans_lie_in_what_encloses_them_one_after_the_other(name: str) -> None:
    _, timeline = shown(forecast_of(name).timeline)

    ends: dict[int, int] = {}
    for span in timeline.host:
        if span.kind == "work":
            continue
        if span.parent >= 0:
            around = timeline.host[span.parent]
            assert around.start_ns <= span.start_ns <= span.end_ns <= around.end_ns, span.name
        assert ends.get(span.parent, 0) <= span.start_ns, span.name
        ends[span.parent] = span.end_ns


def test_only_the_share_of_ops_changes() -> None:
    whole, timeline = shown(forecast_of("tokens").timeline)
    step, same = timeline.steps[0], whole.steps[-1]

    assert (step.latency_ns, step.host_ns, step.gpu_busy_ns) == (
        same.latency_ns,
        same.host_ns,
        same.gpu_busy_ns,
    )
    assert [(k.start_ns, k.duration_ns, k.correlation) for k in timeline.kernels] == [
        (k.start_ns, k.duration_ns, k.correlation)
        for k in whole.kernels[same.first_kernel : same.last_kernel]
    ]
    calls = [s for s in timeline.host if s.kind in ("launch", "sync")]
    assert [(c.name, c.start_ns, c.duration_ns) for c in calls] == [
        (c.name, c.start_ns, c.duration_ns)
        for c in whole.host[same.first_host : same.last_host]
        if c.kind in ("launch", "sync")
    ]


def test_a_launch_hangs_under_the_innermost_operator() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(4, device="cuda").to(torch.float16)
    timeline = with_operators(forecast.timeline, forecast.timeline.steps)

    launch = [span for span in timeline.host if span.kind == "launch"][-1]

    assert [span.name for span in ancestors(timeline, launch)] == [
        "aten::copy_",
        "aten::_to_copy",
        "aten::to",
    ]
    assert timeline.kernels[-1].op == launch.parent


def test_an_op_in_place_launches_itself_where_autograd_keeps_a_copy() -> None:
    with neusight.forecast_on("H100") as forecast:
        layer = nn.Linear(8, 8).cuda()
        functional.silu(layer(torch.ones(8, 8, device="cuda")), inplace=True).sum().backward()

    _, timeline = shown(forecast.timeline)
    names = [span.name for span in timeline.host]

    first = names.index("aten::silu_")
    assert names[first:].count("aten::silu_") == 1
    assert [span.name for span in timeline.host if span.parent == first] == [
        "aten::clone",
        "cudaLaunchKernel",
    ]


def test_ops_of_the_cpu_lie_in_the_time_that_they_take_together() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(4).add_(1.0).mul_(2.0)
        torch.ones(4, device="cuda")
    whole = forecast.timeline
    work = next(span for span in whole.host if span.kind == "work")

    timeline = with_operators(whole, whole.steps)

    inside = [s for s in timeline.host if work.start_ns <= s.start_ns < work.end_ns]
    assert [s.name for s in inside if s.parent == -1] == ["aten::ones", "aten::add_", "aten::mul_"]
    assert all(span.kind != "work" for span in timeline.host)
    assert inside[0].start_ns == work.start_ns
    assert max(span.end_ns for span in inside) == work.end_ns


def test_averages_go_by_ops_or_by_operators() -> None:
    forecast = forecast_of("tokens")

    ops = {row.key: row for row in forecast.key_averages()}
    operators = {row.key: row for row in forecast.key_averages(operators=True)}

    assert "aten::linear" not in ops
    assert operators["aten::linear"].device_time_total > ops["aten::addmm"].device_time_total
    assert sum(row.self_device_time_total for row in ops.values()) == pytest.approx(
        sum(row.self_device_time_total for row in operators.values())
    )


def test_ops_are_found_again_among_the_operators_around_them() -> None:
    with neusight.forecast_on("H100") as forecast:
        layer = nn.Linear(64, 64).cuda()
        for _ in range(2):
            layer(torch.ones(8, 64, device="cuda")).relu()
            forecast.step()
    timeline = forecast.timeline
    steps = timeline.steps[-2:]
    shown = with_operators(timeline, steps)

    positions = shown_positions(timeline, steps, shown)

    names = {timeline.host[at].name for at in positions}
    assert names >= {"aten::addmm", "aten::relu"}
    for at, position in positions.items():
        assert (shown.host[position].kind, shown.host[position].name) == (
            "op",
            timeline.host[at].name,
        )
