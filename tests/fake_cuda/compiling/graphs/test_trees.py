"""CUDA graphs of compiled code: warmed up, captured, launched; their copies and their memory."""

from __future__ import annotations

import pytest
import torch
from compiled_net import Net, infer, ops, quiet, train

import neusight
from neusight.recording.recording import Alloc, Free, Mark, Recording, Step, Synchronize
from neusight.timeline.scheduler import GRAPH_LAUNCH


def launches(step: Step) -> int:
    return sum(isinstance(e, Mark) and e.kind == "graph_begin" for e in step.entries)


def pool_allocs(step: Step) -> int:
    return sum(isinstance(e, Alloc) and e.pool > 0 for e in step.entries)


def steps_of(recording: Recording, kind: str) -> list[Step]:
    """One by one, as they were called."""
    return [step for step in recording.steps if step.kind == kind for _ in range(step.count)]


@pytest.fixture(scope="module")
def inferred() -> neusight.Forecast:
    with quiet(), neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), mode="reduce-overhead"))
    return forecast


@pytest.fixture(scope="module")
def trained() -> neusight.Forecast:
    return train(lambda net: torch.compile(net, mode="reduce-overhead"))


def test_it_is_warmed_up_then_captured_then_launched(inferred: neusight.Forecast) -> None:
    steps = steps_of(inferred.recording, "eval")

    assert [launches(step) for step in steps] == [0, 1, 1, 1, 1]
    assert [ops(step)["aten::_foreach_copy_"] for step in steps] == [0, 1, 1, 1, 1]
    assert GRAPH_LAUNCH in {span.name for span in inferred.timeline.host}


def test_a_launched_graph_allocates_nothing(inferred: neusight.Forecast) -> None:
    steps = steps_of(inferred.recording, "eval")

    assert [pool_allocs(step) for step in steps] == [2, 3, 0, 0, 0]  # the input's copy is one


def stated(forecast: neusight.Forecast) -> set[str]:
    """What the launches of graphs say of the tensors that torch looks at before them."""
    return {
        entry.detail
        for step in forecast.recording.steps
        for entry in step.entries
        if isinstance(entry, Mark) and entry.kind == "graph_begin"
    }


def test_a_launch_states_the_parameters_what_earlier_graphs_made_and_the_results(
    inferred: neusight.Forecast, trained: neusight.Forecast
) -> None:
    """The input is copied, and not looked at."""
    assert stated(inferred) == {f"{6 + 1}"}
    assert stated(trained) == {"15", "16"}  # forward, and backward


def test_to_capture_is_to_wait(inferred: neusight.Forecast) -> None:
    waits = [
        sum(isinstance(entry, Synchronize) for entry in step.entries)
        for step in steps_of(inferred.recording, "eval")
    ]

    assert waits[1] == waits[2] + 2


def test_forward_and_backward_share_a_pool_and_their_activations(
    trained: neusight.Forecast,
) -> None:
    steps = steps_of(trained.recording, "train")
    pools = {e.pool for step in steps for e in step.entries if isinstance(e, Alloc) and e.pool}

    assert [launches(step) for step in steps] == [0, 2, 2, 2]
    assert pools == {1}
    # Of the forward the batch is copied, of the backward the gradient of its output: what the
    # forward saved lies where the backward reads it.
    assert [ops(step)["aten::_foreach_copy_"] for step in steps[1:]] == [2, 2, 2]
    assert [pool_allocs(step) for step in steps[2:]] == [0, 0]


def test_gradients_are_taken_over_and_not_copied(
    trained: neusight.Forecast, compiled: neusight.Forecast
) -> None:
    graphed, plain = (
        ops(steps_of(forecast.recording, "train")[-1]) for forecast in (trained, compiled)
    )

    assert graphed - plain == {"aten::_foreach_copy_": 2}
    assert graphed["aten::clone"] == plain["aten::clone"]


def test_the_pool_is_kept_though_the_graph_frees_in_it(trained: neusight.Forecast) -> None:
    memory = trained.memory
    ends = [step.end_allocated for step in memory.steps if step.kind == "train"]

    assert memory.reserved_for_graphs == 2 * 2**20
    assert ends[-1] == ends[-2] < memory.peak_allocated
    assert "are private pools of CUDA graphs" in trained.summary()


def test_what_a_graph_allocated_is_freed_once(trained: neusight.Forecast) -> None:
    entries = [entry for step in trained.recording.steps for entry in step.entries]
    made = sum(isinstance(entry, Alloc) for entry in entries)
    freed = [entry for entry in entries if isinstance(entry, Free)]

    assert len(set(freed)) <= len(freed) <= made


def test_each_size_has_a_graph_of_its_own() -> None:
    sizes = (64, 64, 32, 32, 32, 48, 48, 48)

    with neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), mode="reduce-overhead"), sizes)
    steps = steps_of(forecast.recording, "eval")

    assert [launches(step) for step in steps] == [0, 1, 0, 1, 1, 0, 1, 1]
    assert [pool_allocs(step) for step in steps] == [2, 3, 2, 3, 0, 2, 3, 0]


def test_two_launches_stand_for_all_kernels_of_compiled_code(trained: neusight.Forecast) -> None:
    step = [span for span in trained.timeline.steps if span.replay.step.kind == "train"][-1]
    host = trained.timeline.host[step.first_host : step.last_host]
    launched = [span.name for span in host if span.kind == "launch"]

    assert launched.count(GRAPH_LAUNCH) == 2
    assert "cuLaunchKernel" not in launched


def test_backend_cudagraphs_launches_eager_kernels_as_one() -> None:
    with neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), backend="cudagraphs"))
    steps = steps_of(forecast.recording, "eval")

    assert "aten::native_layer_norm" in ops(steps[-1])
    assert [launches(step) for step in steps] == [0, 1, 1, 1, 1]
    assert not forecast.warnings


def test_a_compiled_region_within_a_captured_graph_is_part_of_it() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        net = torch.compile(Net().cuda().eval(), mode="reduce-overhead")
        x = torch.randn(8, 256, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        graph.replay()
        torch.cuda.synchronize()

    assert sum(map(launches, forecast.recording.steps)) == 1
