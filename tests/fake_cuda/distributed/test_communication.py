"""Who waits for a collective, and who should have."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import communication, join

import neusight
from neusight.recording.recording import Entry, EventRecord, EventWait


def events_of(forecast: neusight.Forecast) -> list[Entry]:
    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    return [entry for entry in entries if isinstance(entry, (EventRecord, EventWait))]


def test_a_collective_runs_beside_until_it_is_waited_for() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        x, y = torch.randn(2**26, device="cuda"), torch.randn(1024, 1024, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        y @ y
        work.wait()
        x.relu_()

    kernels = {k.kernel.name: k for k in forecast.timeline.kernels}
    reduced, product, after = kernels["all_reduce"], kernels["gemm"], kernels["relu"]
    assert product.end_ns < reduced.end_ns <= after.start_ns
    assert not forecast.recording.warnings
    assert len(events_of(forecast)) == 4


def test_one_that_is_not_asynchronous_runs_on_the_current_stream() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            dist.all_reduce(torch.randn(8, device="cuda"))

    (call,) = communication(forecast.recording.steps[-1])
    assert call.stream == side.stream_id
    assert not events_of(forecast)


def test_a_missing_wait_is_reported_with_both_lines() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        x = torch.randn(1024, device="cuda")
        dist.all_reduce(x, async_op=True)
        x.relu_()

    (warning,) = forecast.recording.warnings
    assert "aten::relu_ at test_communication.py:" in warning
    assert "c10d::allreduce_ at test_communication.py:" in warning
    assert "may still write" in warning


def test_what_a_functional_collective_returns_is_waited_for_where_it_is_used() -> None:
    import torch.distributed._functional_collectives as functional

    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        x = torch.randn(1024, device="cuda")
        everyone: Any = dist.group.WORLD
        y = functional.all_reduce(x, "sum", everyone)
        x.relu_()
        y + 1

    *_, waited = events_of(forecast)
    assert isinstance(waited, EventWait)
    assert waited.stream == 0
    assert not forecast.recording.warnings


def test_a_work_lets_its_tensors_go_when_it_is_waited_for() -> None:
    with neusight.forecast_on("H100", world_size=8):
        join()
        before = torch.cuda.memory_allocated()
        works = []
        for _ in range(4):
            x = torch.empty(2**20, device="cuda")
            works.append(dist.all_reduce(x, async_op=True))
        del x
        gc.collect()
        held = torch.cuda.memory_allocated()
        for work in works:
            work.wait()
        after = torch.cuda.memory_allocated()

    assert held - before >= 4 * 2**22
    assert after == before


def test_groups_run_beside_each_other() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        pair = dist.new_group([0, 1])
        x, y = (torch.randn(1024, device="cuda") for _ in range(2))
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, group=pair, async_op=True)]
        for work in works:
            work.wait()

    first, second = communication(forecast.recording.steps[-1])
    assert first.stream != second.stream
    groups = [call.signature.by_name["process_group"] for call in (first, second)]
    assert [str(group).split(" name")[0] for group in groups] == [
        "size=8 nodes=1 per_node=8",
        "size=2 nodes=1 per_node=8",
    ]
    assert str(groups[1]).endswith("ranks=0,1")


def test_a_callback_runs_behind_the_collective_on_a_stream_of_its_own() -> None:
    with neusight.forecast_on("H100", world_size=8) as forecast:
        join()
        x = torch.randn(1024, device="cuda")
        future = dist.all_reduce(x, async_op=True).get_future()
        halved = future.then(lambda done: done.value()[0].div_(2))
        halved.wait()
        x.relu_()

    reduced, halved_at, after = (
        next(k for k in forecast.timeline.kernels if k.kernel.name == name)
        for name in ("all_reduce", "div", "relu")
    )
    assert reduced.end_ns <= halved_at.start_ns < halved_at.end_ns <= after.start_ns
    assert (reduced.stream, halved_at.stream, after.stream) == (100, 1100, 0)


def test_every_collective_keeps_its_line_and_the_rank_that_it_is_of() -> None:
    with neusight.forecast_on("H100", world_size=16, rank=11) as forecast:
        join()
        x = torch.randn(1024, device="cuda")
        dist.all_reduce(x)
        for _ in range(2):
            dist.all_reduce(x, async_op=True).wait()

    recording = forecast.recording
    assert (recording.rank, recording.world_size, recording.gpus_per_node) == (11, 16, 8)
    first, *others = [call.stack for step in recording.steps for call in communication(step)]
    assert first[0].startswith("test_communication.py:")
    assert len(set(others)) == 1
    assert others[0] != first


@pytest.mark.parametrize(
    ("device", "variables", "expected"),
    [
        (0, {}, {"collective_devices": "cuda:0", "no_device_chosen": "yes"}),
        (1, {}, {"collective_devices": "cuda:1", "no_device_chosen": "yes"}),
        (0, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"collective_devices": "cuda:0"}),
        (0, {"CUDA_VISIBLE_DEVICES": "3"}, {}),
        (0, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {"starts_in_order": "yes"}),
    ],
)
def test_it_is_kept_which_gpus_collectives_ran_on(
    device: int,
    variables: dict[str, str],
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with neusight.forecast_on("H100", world_size=8) as forecast:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(8, device=f"cuda:{device}"))

    options = forecast.recording.options
    assert {name: options.get(name) for name in expected} == expected
    assert ("collective_devices" in options) == (expected != {})
