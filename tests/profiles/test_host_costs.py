"""The costs of a host, read back from a timeline that was made with known ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.profiles.host_costs import costs_of, merged_costs, scaled_costs
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    HostOp,
    Profile,
    RuntimeCall,
)
from neusight.integrations.profiles.reading.reading import read_profile, read_profile_events
from neusight.output.trace.file import trace_events
from neusight.predictors.gpu import find_gpu
from neusight.timeline.host import HOST_COSTS, PROFILED, HostProfile, profiled_host_of
from places import TRACES, needs_traces
from profile_events import device_event, trace_of_events


def profile_on(host: HostProfile) -> Profile:
    """A host-bound model as a profiler would show it on that host."""
    with neusight.forecast_on("H100", host=host) as forecast:
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8))
        ).cuda()
        for _ in range(3):
            with torch.no_grad():
                out = model(torch.randn(4, 64, device="cuda"))
                for _ in range(4):
                    out = out.transpose(0, 1) * 2
            torch.cuda.synchronize()
            forecast.step()
    return read_profile_events(
        trace_events(forecast.timeline, forecast.memory, forecast.gpu, with_operators=False)
    )


READ = ("op_us", "gemm_us", "launch_us", "launch_latency_us")


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_known_costs_come_back(factor: float) -> None:
    host = PROFILED.scaled(factor, name="this host")

    costs = costs_of(profile_on(host), find_gpu("H100"))

    assert costs is not None
    for name in READ:
        expected = getattr(host, name)
        assert costs[name] == pytest.approx(expected, rel=0.1), name


def test_what_a_profile_does_not_show_follows_the_speed_of_the_host() -> None:
    costs = costs_of(profile_on(PROFILED.scaled(2.0, name="slow")), find_gpu("H100"))

    assert costs is not None
    assert costs["convolution_us"] == pytest.approx(2.0 * PROFILED.convolution_us, rel=0.25)
    assert costs["backward_share"] == PROFILED.backward_share
    assert costs["kernel_gap_us"] == PROFILED.kernel_gap_us


def test_the_costs_make_a_host_profile() -> None:
    costs = costs_of(profile_on(PROFILED), find_gpu("H100"))

    assert costs is not None
    assert set(costs) == set(HOST_COSTS)
    arguments: dict[str, Any] = {"name": "measured", **costs}
    assert HostProfile(**arguments).launch_us == costs["launch_us"]


def test_an_autograd_node_costs_what_its_ops_do_not() -> None:
    node, op = "autograd::engine::evaluate_function: MulBackward0", "aten::mul"
    starts = range(0, 500_000, 100_000)
    ops = [
        HostOp(name, start + after, duration, "1")
        for start in starts
        for name, after, duration in (
            (node, 0, 50_000), (op, 1_000, 20_000), (op, 2_000, 5_000), (op, 30_000, 9_000),
            (op, 60_000, 9_000),
        )
    ]  # fmt: skip
    calls = [RuntimeCall("cudaLaunchKernel", start, 4_000, "1") for start in starts]
    events = [DeviceEvent("kernel", "k", n, 1, 0, 7, launch=i) for i, n in enumerate(starts)]
    profile = Profile("", "H100", False, True, (), tuple(ops), tuple(events), tuple(calls))

    costs = costs_of(profile, find_gpu("H100"))

    assert costs is not None
    assert costs["node_us"] == 50.0 - 20.0 - 9.0


def test_a_profile_without_launches_says_nothing() -> None:
    trace = trace_of_events([device_event("gemm", 1.0, 2.0, 1)])

    assert costs_of(read_profile_events(trace), find_gpu("H100")) is None


def test_costs_of_several_profiles_are_merged_by_their_median() -> None:
    found = [{"op_us": value} for value in (5.0, 6.0, 90.0)]

    assert merged_costs([*found, None]) == {"op_us": 6.0}
    assert merged_costs([None]) is None


def test_a_scaled_host_keeps_what_belongs_to_the_device() -> None:
    costs = {"op_us": 6.0, "kernel_gap_us": 1.1, "backward_share": 0.8}

    assert scaled_costs(costs, 0.5) == {"op_us": 3.0, "kernel_gap_us": 1.1, "backward_share": 0.8}
    assert scaled_costs({"op_us": 1.0}, 1 / 3) == {"op_us": 0.333}


@needs_traces
def test_public_profiles_of_one_machine_state_one_host() -> None:
    both = []
    for name in ("bert-small", "nsfw_image"):
        [path] = TRACES.glob(f"h100__*{name}*")
        both.append(costs_of(read_profile(path), find_gpu("H100")))

    first, second = both
    assert first is not None and second is not None
    for field in READ:
        # One of the two was cold in places.
        assert first[field] == pytest.approx(second[field], rel=0.6)
        assert second[field] == pytest.approx(getattr(PROFILED, field), rel=0.15)


SHIPPED = profiled_host_of(find_gpu("H100"))
US = 1000


def launches(count: int, us: float, *ops: HostOp, calls: tuple[RuntimeCall, ...] = ()) -> Profile:
    """So many launches of that length, a second apart, each of a kernel of no operator."""
    starts = [second * 10**9 for second in range(count)]
    launched = [RuntimeCall("cudaLaunchKernel", start, round(us * US), "1") for start in starts]
    events = [DeviceEvent("kernel", "k", start, 1, 0, at, launch=at)
              for at, start in enumerate(starts)]  # fmt: skip
    return Profile("", "H100", False, True, (), ops, tuple(events), (*launched, *calls))


def test_a_cost_is_read_where_it_is_seen_five_times() -> None:
    assert costs_of(launches(4, 3.0), find_gpu("H100")) is None
    costs = costs_of(launches(5, 3.0), find_gpu("H100"))

    assert costs is not None and costs["launch_us"] == 3.0
    # Its kernels start while the calls run.
    assert costs["launch_latency_us"] == 0


@pytest.mark.parametrize(
    ("factor", "speed"), [(1.14, 1.0), (1.16, 1.16), (0.88, 1.0), (0.86, 0.86), (2.4, 2.4)]
)
def test_a_host_nearly_like_the_shipped_one_is_taken_for_it(factor: float, speed: float) -> None:
    costs = costs_of(launches(5, factor * SHIPPED.launch_us), find_gpu("H100"))

    assert costs is not None
    assert costs["op_us"] == pytest.approx(speed * SHIPPED.op_us, rel=2e-3)
    assert costs["backward_share"] == SHIPPED.backward_share


def test_the_slowest_twentieth_counts_as_the_slowest_of_the_rest() -> None:
    ops = [HostOp("aten::empty", 10**12 + at, at * US, "1") for at in range(1, 21)]

    costs = costs_of(launches(5, SHIPPED.launch_us, *ops), find_gpu("H100"))

    assert costs is not None
    assert costs["allocate_us"] == (sum(range(1, 20)) + 19) / 20


@pytest.mark.parametrize(("count", "expected"), [(30, 3.0), (60, 3.5), (90, 5.0)])
def test_of_waits_the_shortest_tenth_counts(count: int, expected: float) -> None:
    waits = tuple(
        RuntimeCall("cudaStreamSynchronize", 0, at * US, "1") for at in range(1, count + 1)
    )

    costs = costs_of(launches(5, SHIPPED.launch_us, calls=waits), find_gpu("H100"))

    assert costs is not None
    assert costs["synchronize_us"] == expected


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("cudaEventRecord", "event_us"), ("cudaStreamWaitEvent", "event_us"),
        ("hipDeviceSynchronize", "synchronize_us"), ("cudaEventSynchronize", "synchronize_us"),
        ("cudaMemcpyAsync", "memcpy_us"), ("cudaMemsetAsync", "memcpy_us"),
        ("hipLaunchKernel", "launch_us"), ("cudaLaunchCooperativeKernel", "launch_us"),
    ],
)  # fmt: skip
def test_a_call_is_an_example_of_one_cost(name: str, field: str) -> None:
    """Of launches and copies only what gave the device work."""
    calls = tuple(RuntimeCall(name, 0, 7777, "1") for _ in range(9))

    costs = costs_of(launches(5, SHIPPED.launch_us, calls=calls), find_gpu("H100"))

    assert costs is not None
    needs_work = field in ("launch_us", "memcpy_us")
    assert (costs[field] == 7.777) is not needs_work


@pytest.mark.parametrize(
    ("name", "num_launches", "expected"),
    [
        ("aten::mul", 1, 20.0 - 2.0 - SHIPPED.allocate_us * 2.0 / SHIPPED.launch_us),
        ("aten::mul_", 1, 20.0 - 2.0),
        ("aten::mul_", 2, 20.0 - 4.0 - SHIPPED.extra_kernel_us),
    ],
)
def test_a_dispatch_is_an_op_without_its_launches_and_its_allocation(
    name: str, num_launches: int, expected: float
) -> None:
    starts = [second * 10**9 for second in range(5)]
    ops = [HostOp(name, start, 20 * US, "1") for start in starts]
    calls = [RuntimeCall("cudaLaunchKernel", start + 5 * at * US, 2 * US, "1")
             for start in starts for at in range(num_launches)]  # fmt: skip
    events = [
        DeviceEvent("kernel", "k", call.end_ns, 1, 0, 7, op=at // num_launches, launch=at)
        for at, call in enumerate(calls)
    ]
    made = Profile("", "H100", False, True, (), tuple(ops), tuple(events), tuple(calls))

    costs = costs_of(made, find_gpu("H100"))

    assert costs is not None
    assert costs["op_us"] == pytest.approx(expected, abs=1e-3)
