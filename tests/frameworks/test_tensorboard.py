"""TensorBoard's own profiler plugin shows a forecast: every view, with the timeline's values."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import compiled_net
import pytest
import torch
from meeting_ranks import batch, program, receive, send, work
from meeting_ranks import price as transfer_price
from torch import nn
from unequal_ranks import COLLECTIVE_US, NUM_BYTES, NUM_COLLECTIVES, unequal_ranks

import neusight
from neusight.integrations.frameworks.tensorboard_repair import mapped_events, repair
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.output.trace.collectives import is_collective
from neusight.output.trace.file import write_trace
from neusight.output.trace.ranks import RankForecast, write_rank_traces
from neusight.predictors.errors import TraceError
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    EventWait,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    Synchronize,
    TensorSpec,
)
from neusight.timeline.host import PLAIN
from neusight.timeline.ranks.together import schedule_together
from neusight.timeline.spans import Timeline
from neusight.timeline.steps import schedule
from places import SHARED
from timelines import COMMUNICATION, on_communicator

RUN, OTHER_RUN, DISTRIBUTED_RUN = "forecast", "on-a100", "distributed"
COMPILED_RUN, RANKS_RUN, ALONE_RUN = "compiled", "unequal-ranks", "one-rank-of-two"
STAGES_RUN = "stages"
Event = dict[str, Any]


def train() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> neusight.Forecast:
    folder = tmp_path_factory.mktemp("logs")
    handler = neusight.trace_handler(folder / RUN, worker_name="host_0")
    with neusight.forecast_on("H100", on_trace_ready=handler, with_stack=True) as forecast:
        train()
    return forecast


def gradients_reduced_while_computing() -> Timeline:
    """Products of a backward, each but the last with a collective that runs beside the next."""
    spec = TensorSpec((64,), (1,), "float32")

    def op(name: str, number: int) -> OpCall:
        signature = OpSignature(name, "default", (("x", spec),), (spec,))
        return OpCall(signature, MathMode(), "", "backward", 0, number, "MmBackward0")

    def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
        if call.signature.op == "aten::mm":
            estimate = Estimate(80, 80, 80, "compute", "physics", "test")
            return ((Kernel.gemm(512, 512, 512), estimate),)
        estimate = Estimate(50, 50, 50, "communication", "physics", "test")
        return ((Kernel.collective("all_reduce", 2**22, 2), estimate),)

    products = [op("aten::mm", number) for number in range(6)]
    entries: list[Entry] = [products[0]]
    for number, product in enumerate(products[1:]):
        entries += [*on_communicator(op("c10d::allreduce_", number), number), product]
    entries += [EventWait(10, 0), op("aten::mm", 6), Synchronize("synchronize")]
    recording = Recording((Step("train", tuple(entries), 4),), gpu="H100", torch_version="2")
    # At another pace the steps of the host, by which the plugin cuts, end inside kernels.
    return schedule(recording, price, replace(PLAIN, gemm_us=9.6))


@pytest.fixture(scope="module")
def distributed() -> Timeline:
    return gradients_reduced_while_computing()


@pytest.fixture(scope="module")
def compiled() -> neusight.Forecast:
    return compiled_net.train(lambda net: torch.compile(net))


@pytest.fixture(scope="module")
def ranks() -> list[RankForecast]:
    return unequal_ranks()


def three_stages() -> list[RankForecast]:
    """A pipeline whose stages make one, two and one transfer, and compute for 100, 300 and 50 us;
    a last transfer goes back, in a batch."""
    end = Synchronize("synchronize")
    programs = [
        program(0, [work(100.0), send(1, 0), batch(0, ("irecv", 2)), end], count=4),
        program(1, [receive(0, 1), work(300.0), send(2, 1), end], count=4),
        program(2, [receive(1, 2), work(50.0), batch(2, ("isend", 0)), end], count=4),
    ]
    timelines = schedule_together(programs, transfer_price, PLAIN)
    return [
        RankForecast(recording, timeline, None)
        for recording, timeline in zip(programs, timelines, strict=True)
    ]


@pytest.fixture(scope="module")
def logdir(
    forecast: neusight.Forecast,
    compiled: neusight.Forecast,
    distributed: Timeline,
    ranks: list[RankForecast],
) -> Path:
    """A forecast, the same on another GPU, those of two equal ranks, of two unequal ones and of one
    of these alone, and one of a compiled program, as runs beside each other."""
    assert forecast.trace_path is not None
    folder = Path(forecast.trace_path).parents[1]
    neusight.trace_handler(folder / COMPILED_RUN, worker_name="host_0")(compiled)
    neusight.trace_handler(folder / OTHER_RUN, worker_name="host_0")(forecast.on("A100"))
    (folder / DISTRIBUTED_RUN).mkdir()
    for rank in range(2):
        write_trace(
            folder / DISTRIBUTED_RUN / f"host_{rank}.1.pt.trace.json.gz",
            distributed,
            None,
            forecast.gpu,
            rank=rank,
            world_size=2,
        )
    for run, shown in ((RANKS_RUN, ranks), (ALONE_RUN, ranks[:1]), (STAGES_RUN, three_stages())):
        (folder / run).mkdir()
        write_rank_traces(folder / run, shown, forecast.gpu)
    return folder


def union_ns(ranges: list[tuple[int, int]]) -> int:
    total = reached = 0
    for start, end in sorted(ranges):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def kernel_us(timeline: Timeline) -> float:
    """What the kernels of the steps take, copies aside."""
    total_ns = 0
    for step in timeline.steps:
        if step.replay.step.kind != "setup":
            for kernel in timeline.kernels[step.first_kernel : step.last_kernel]:
                total_ns += 0 if kernel.kernel.name.startswith("mem") else kernel.duration_ns
    return total_ns / 1000


#: No plugin takes that long to load, however loaded the machine: it hangs.
HANGS_AFTER_S = 900.0


class Client:
    """The plugin's HTTP endpoints, loaded as TensorBoard loads them."""

    def __init__(self, logdir: Path) -> None:
        from tensorboard.plugins import base_plugin
        from torch_tb_profiler.plugin import TorchProfilerPlugin

        from neusight.integrations.frameworks import tensorboard_repair

        tensorboard_repair.repair()
        plugin = TorchProfilerPlugin(base_plugin.TBContext(logdir=str(logdir)))
        # A run stays out of the plugin's list for a moment after the thread that loaded it ended.
        runs = {str(file.parent.relative_to(logdir)) for file in logdir.rglob("*.pt.trace.json*")}
        deadline = time.monotonic() + HANGS_AFTER_S
        while not runs <= set(plugin._runs):
            assert time.monotonic() < deadline, f"the plugin loaded {list(plugin._runs)} of {runs}"
            time.sleep(0.05)
        self.routes = plugin.get_plugin_apps()
        self.answered: set[str] = set()

    def get(self, route: str, **arguments: str) -> bytes:
        from werkzeug.test import Client

        response = Client(self.routes[route]).get(route, query_string=arguments)
        assert response.status_code == 200, (route, response.status_code)
        self.answered.add(route)
        data = response.data
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data

    def __call__(self, route: str, **arguments: str) -> Any:
        return json.loads(self.get(route, **arguments))


@pytest.fixture(scope="module")
def client(logdir: Path) -> Iterator[Client]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plugin and its libraries are old
        yield Client(logdir)


def of_run(view: str, run: str = RUN) -> dict[str, str]:
    return {"run": run, "worker": "host_0", "span": "1", "view": view}


@pytest.mark.filterwarnings("ignore")
def test_the_views_are_there(client: Client) -> None:
    runs = {RUN, OTHER_RUN, DISTRIBUTED_RUN, COMPILED_RUN, RANKS_RUN, ALONE_RUN, STAGES_RUN}
    assert set(client("/runs")["runs"]) == runs
    assert client("/views", run=RUN) == [
        "Overview", "Operator", "Kernel", "Trace", "Memory", "Module",
    ]  # fmt: skip
    assert client("/views", run=DISTRIBUTED_RUN) == [
        "Overview", "Operator", "Kernel", "Trace", "Distributed"
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_the_overview_has_the_steps_and_the_gpu(
    client: Client, forecast: neusight.Forecast
) -> None:
    overview = client("/overview", **of_run("Overview"))

    steps = [row[0] for row in overview["steps"]["rows"]]
    assert len(steps) == len(set(steps)) == 5
    assert "H100" in json.dumps(overview["gpu_metrics"])
    shown = [step for step in forecast.timeline.steps if step.replay.step.kind != "setup"]
    mean_us = sum(step.latency_ns for step in shown) / len(shown) / 1000
    busy_us = sum(step.gpu_busy_ns for step in shown) / len(shown) / 1000
    (average,) = overview["performance"]
    parts = {part["name"]: part["value"] for part in average["children"]}
    assert average["value"] == pytest.approx(mean_us, rel=0.01)
    assert parts["Kernel"] + parts["Memcpy"] + parts["Memset"] == pytest.approx(busy_us, abs=2)


@pytest.mark.filterwarnings("ignore")
def test_operators_have_the_device_time_of_their_kernels(
    client: Client, forecast: neusight.Forecast
) -> None:
    rows = client("/operation/table", group_by="Operation", **of_run("Operator"))["data"]

    by_name = {row["name"]: row for row in rows}
    kernels_ns: Counter[str] = Counter()
    for span in forecast.timeline.kernels:
        kernels_ns[span.call.signature.op] += span.duration_ns
    for name in ("aten::addmm", "aten::mm", "aten::gelu", "aten::gelu_backward", "aten::sum"):
        assert by_name[name]["device_self_duration"] == pytest.approx(
            kernels_ns[name] / 1000, abs=1
        )


@pytest.mark.filterwarnings("ignore")
def test_kernels_belong_to_their_operators(client: Client, forecast: neusight.Forecast) -> None:
    table = client("/kernel/table", group_by="KernelNameAndOpName", **of_run("GPU Kernel"))

    owners = {row[1] for row in table["data"]["rows"]}
    assert {"aten::addmm", "aten::mm", "aten::gelu"} <= owners
    assert "CallTreeRoot" not in owners
    columns = [column["name"] for column in table["data"]["columns"]]
    duration = columns.index("Total Duration (us)")
    total_us = sum(row[duration] for row in table["data"]["rows"])
    assert total_us == pytest.approx(kernel_us(forecast.timeline), rel=0.001)


@pytest.mark.filterwarnings("ignore")
def test_modules_have_forward_and_backward(client: Client) -> None:
    modules = client("/module", **of_run("Module"))

    (outermost,) = modules["data"]
    assert outermost["name"] == "Sequential_0"
    assert outermost["occurences"] == 5
    inner = {row["name"]: row for row in outermost["children"]}
    assert set(inner) == {"Linear_0", "GELU_0", "Linear_1"}
    assert all(row["device_duration"] > 0 for row in inner.values())


@pytest.mark.filterwarnings("ignore")
def test_kernels_of_a_compiled_program_belong_to_ops_of_their_names(
    client: Client, compiled: neusight.Forecast
) -> None:
    table = client(
        "/kernel/table", group_by="KernelNameAndOpName", **of_run("GPU Kernel", COMPILED_RUN)
    )

    rows = table["data"]["rows"]
    fused = {row[0]: row[1] for row in rows if row[0].startswith("triton_")}
    columns = [column["name"] for column in table["data"]["columns"]]
    total_us = sum(row[columns.index("Total Duration (us)")] for row in rows)
    assert fused == {name: name for name in fused}
    assert len(fused) == 5
    assert total_us == pytest.approx(kernel_us(compiled.timeline), rel=0.001)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_program_has_its_steps_and_its_module(
    client: Client, compiled: neusight.Forecast
) -> None:
    overview = client("/overview", **of_run("Overview", COMPILED_RUN))
    (outermost,) = client("/module", **of_run("Module", COMPILED_RUN))["data"]

    shown = [step for step in compiled.timeline.steps if step.replay.step.kind != "setup"]
    mean_us = sum(step.latency_ns for step in shown) / len(shown) / 1000
    (average,) = overview["performance"]
    assert len(overview["steps"]["rows"]) == 4
    assert average["value"] == pytest.approx(mean_us, rel=0.01)
    (inner,) = outermost["children"]
    assert (outermost["name"], outermost["occurences"]) == ("OptimizedModule_0", 4)
    assert (inner["name"], inner["occurences"]) == ("Net_0", 4)
    assert outermost["device_duration"] > 0


@pytest.mark.filterwarnings("ignore")
def test_memory_is_followed_on_the_gpu(client: Client, forecast: neusight.Forecast) -> None:
    curve = client("/memory_curve", **of_run("Memory"))

    assert curve["metadata"]["default_device"] == "GPU0"
    assert curve["metadata"]["memory_metric"] == "MB"
    peak_mb = max(allocated for _, allocated, _ in curve["rows"]["GPU0"])
    assert peak_mb == pytest.approx(forecast.peak_memory_bytes / 2**20, rel=0.01)
    table = client("/memory_events", **of_run("Memory"))["rows"]["GPU0"]
    owners = {name for name, _, allocated, *_ in table if allocated is not None}
    assert {"aten::addmm", "aten::mm", "aten::gelu_backward"} <= owners  # forward and backward
    assert "<unknown>" not in owners


@pytest.mark.filterwarnings("ignore")
def test_ranks_are_laid_beside_each_other(client: Client, distributed: Timeline) -> None:
    arguments = {"run": DISTRIBUTED_RUN, "worker": "All", "span": "1", "view": "Distributed"}

    cards = client("/distributed/gpuinfo", **arguments)["data"]
    overlap = client("/distributed/overlap", **arguments)["data"]
    waits = client("/distributed/waittime", **arguments)["data"]
    ops = client("/distributed/commops", **arguments)["data"]

    assert "NVIDIA H100" in json.dumps(cards)
    step = distributed.steps[1]
    computing, both, exposed, _ = overlap["1"]["host_0"]
    # It takes the host's calls of collectives for communication, too.
    calls = [(s.start_ns, s.end_ns) for s in distributed.host if s.name == "c10d::allreduce_"]
    kernels = [(k.start_ns, k.end_ns) for k in distributed.kernels if k.stream == COMMUNICATION]
    within = [r for r in (*calls, *kernels) if step.start_ns <= r[0] and r[1] <= step.end_ns]
    assert both + exposed == pytest.approx(union_ns(within) / 1000, abs=2)
    assert computing + both == pytest.approx(7 * 80, abs=2)
    transfer, waiting = waits["all"]["host_0"]
    assert (transfer >= 5 * 50, waiting) == (True, 0)  # equal ranks never wait for each other
    rows = ops["host_1"]["rows"]
    assert [row[0] for row in rows] == ["nccl:all_reduce"]
    assert rows[0][1] == sum(k.stream == COMMUNICATION for k in distributed.kernels)


def of_everyone(run: str) -> dict[str, str]:
    return {"run": run, "worker": "All", "span": "1", "view": "Distributed"}


@pytest.mark.filterwarnings("ignore")
def test_the_faster_rank_is_seen_to_wait_for_the_slower(
    client: Client, ranks: list[RankForecast]
) -> None:
    cards = client("/distributed/gpuinfo", **of_everyone(RANKS_RUN))["data"]
    waits = client("/distributed/waittime", **of_everyone(RANKS_RUN))["data"]["1"]
    ops = client("/distributed/commops", **of_everyone(RANKS_RUN))["data"]

    assert {host: list(processes) for host, processes in cards.items()} == {
        "node0": ["Process 0"],
        "node1": ["Process 1"],
    }
    collectives = [kernel for kernel in ranks[0].timeline.kernels if is_collective(kernel.kernel)]
    step = collectives[NUM_COLLECTIVES : 2 * NUM_COLLECTIVES]
    # What lies under the host's call of a collective it takes for communication of that one.
    waited_us = sum(kernel.waited_ns for kernel in step) / 1000
    assert waits["node0_0"][1] == pytest.approx(waited_us, abs=40)
    assert waits["node1_1"][1] == 0
    assert waits["node0_0"][0] == waits["node1_1"][0] >= NUM_COLLECTIVES * COLLECTIVE_US
    shown = 3  # of five equal steps the first two and the last
    for worker in ("node0_0", "node1_1"):
        (row,) = ops[worker]["rows"]
        num_calls = shown * NUM_COLLECTIVES
        assert row[:3] == ["nccl:all_reduce", num_calls, num_calls * NUM_BYTES]


@pytest.mark.filterwarnings("ignore")
def test_stages_of_unequal_calls_wait_for_those_they_exchange_with(client: Client) -> None:
    waits = client("/distributed/waittime", **of_everyone(STAGES_RUN))["data"]["1"]
    ops = client("/distributed/commops", **of_everyone(STAGES_RUN))["data"]

    waiting = [round(waits[f"node{rank}_{rank}"][1]) for rank in range(3)]
    # For all that comes before in the pipeline: of the first stage, of the others' way back.
    assert waiting == [pytest.approx(us, abs=40) for us in (350, 100, 400)]
    calls = {worker: {row[0]: row[1] for row in table["rows"]} for worker, table in ops.items()}
    assert calls == {
        "node0_0": {"nccl:send": 3, "nccl:recv": 3},
        "node1_1": {"nccl:send": 3, "nccl:recv": 3},
        "node2_2": {"nccl:send": 3, "nccl:recv": 3},
    }


@pytest.mark.filterwarnings("ignore")
def test_a_rank_alone_has_the_view_of_ranks_and_waits_for_nobody(client: Client) -> None:
    waits = client("/distributed/waittime", **of_everyone(ALONE_RUN))["data"]["all"]
    everyone = client("/distributed/waittime", **of_everyone(RANKS_RUN))["data"]["all"]

    assert list(waits) == ["node0_0"]
    assert waits["node0_0"] == [pytest.approx(sum(everyone["node0_0"]), abs=1), 0]


@pytest.mark.filterwarnings("ignore")
def test_two_forecasts_are_laid_beside_each_other(client: Client) -> None:
    arguments = {
        "run": RUN, "worker": "host_0", "span": "1",
        "exp_run": OTHER_RUN, "exp_worker": "host_0", "exp_span": "1",
    }  # fmt: skip

    tree = client("/diff", **arguments)
    node = client("/diffnode", path="0", **arguments)

    sides = []
    for side in ("left", "right"):
        rows = {row["name"]: row for row in tree[side]["aggs"]}
        sides.append(rows["aten::addmm"]["device_duration"])
        assert rows["aten::addmm"]["calls"] == 2 * 5
        assert node[side]["device_duration"] == tree[side]["device_duration"] > 0
    assert sides[1] > sides[0]  # the A100 takes longer


@pytest.mark.filterwarnings("ignore")
def test_every_endpoint_answers(client: Client) -> None:
    pages = ("index.js", "index.html", "trace_viewer_full.html", "trace_embedding.html")
    for page in (*pages, "webcomponents.min.js", "tensorboard_charts.js"):
        client.get(f"/{page}")
    client("/workers", run=RUN, view="Overview")
    client("/spans", run=RUN, worker="host_0")
    for group in ("Operation", "OperationAndInputShape"):
        client("/operation", group_by=group, **of_run("Operator"))
        client("/operation/table", group_by=group, **of_run("Operator"))
    stacks = client("/operation/stack", op_name="aten::addmm", **of_run("Operator"))
    assert all("test_tensorboard.py" in row["call_stack"] for row in stacks["data"])
    for group in ("Kernel", "KernelNameAndOpName"):
        client("/kernel/table", group_by=group, **of_run("GPU Kernel"))
    client("/kernel", **of_run("GPU Kernel"))
    client("/kernel/tc_pie", **of_run("GPU Kernel"))
    trace = client("/trace", **of_run("Trace"))
    client("/memory", **of_run("Memory"))
    client("/memory_curve", **of_run("Memory"))
    client("/memory_events", **of_run("Memory"))
    client("/overview", **of_run("Overview"))
    client("/tree", **of_run("Module"))

    assert any(event["name"] == "GPU 0 Utilization" for event in trace["traceEvents"])
    rest = {"/runs", "/views", "/module", "/diff", "/diffnode"}
    assert (
        set(client.routes) - client.answered - rest
        == {route for route in client.routes if route.startswith("/distributed")} - client.answered
    )


# -- the plugin as it is, without the repair

_STOCK = """
import json, logging, sys, tempfile
from torch_tb_profiler.profiler import data, run_generator
profile = data.RunProfileData.parse("host_0", "1", sys.argv[1], tempfile.mkdtemp())
run = run_generator.RunGenerator("host_0", "1", profile).generate_run_profile()
print(json.dumps({
    "steps": profile.steps_names,
    "calls": {op.name: op.calls for op in profile.op_list_groupby_name},
    "device_us": sum(op.device_duration for op in profile.op_list_groupby_name),
    "kernel_us": sum(row.total_duration for row in profile.kernel_list_groupby_name_op),
    "kernel_owners": sorted({row.op_name for row in profile.kernel_list_groupby_name_op}),
    "views": [view.display_name for view in run.views],
    "modules": [[m.name, m.occurences] for m in run.module_stats],
    "peak": max(r.total_allocated for r in profile.memory_snapshot.memory_records),
}))
"""


def test_the_plugin_as_it_is_reads_all_but_what_it_never_knew(forecast: neusight.Forecast) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _STOCK, str(forecast.trace_path)],
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
    assert "should not intersect" not in run.stderr + run.stdout
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found["steps"]) == len(set(found["steps"])) == 5
    assert found["calls"]["aten::addmm"] == 2 * 5
    assert found["kernel_us"] == pytest.approx(kernel_us(forecast.timeline), rel=0.001)
    assert found["views"] == ["Overview", "Operator", "Kernel", "Trace", "Memory", "Module"]
    assert found["modules"] == [["Sequential_0", 5]]
    assert found["peak"] == forecast.peak_memory_bytes
    # What only the repair brings: its own categories for launches are those of 2021.
    assert found["device_us"] == 0
    assert found["kernel_owners"] == ["CallTreeRoot"]


# -- the repair


def test_the_repair_maps_categories_and_leaves_the_rest() -> None:
    at = {"pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    events: list[Event] = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **at},
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", **at},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", **at},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", **at},
        {"ph": "M", "name": "process_name"},
    ]
    before = json.dumps(events)

    mapped = mapped_events(events)

    assert [event.get("cat") for event in mapped] == [
        "runtime", "forward_backward", "cpu_op", "user_annotation", None,
    ]  # fmt: skip
    assert json.dumps(events) == before


def host_event(name: str, ts: float, dur: float, number: int, category: str = "cpu_op") -> Event:
    args = {"External id": number}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def launch_event(ts: float, correlation: int, **args: int) -> Event:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
            "ts": ts, "dur": 1.0, "args": {"correlation": correlation, **args}}  # fmt: skip


def kernel_event(correlation: int, **args: int) -> Event:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 99.0, "dur": 1.0,
            "args": {"correlation": correlation, **args}}  # fmt: skip


@pytest.mark.parametrize(
    ("of_launch", "of_kernel"),
    [
        ({"External id": 2}, {"External id": 2}),
        ({"External id": 50}, {"External id": 50}),  # an id of its own: torch 2.0
        ({}, {"External id": 2}),
        ({"External id": 2}, {}),
        ({}, {}),
    ],
)
def test_a_launch_and_its_kernel_bear_the_id_of_the_operator_around(
    of_launch: dict[str, int], of_kernel: dict[str, int]
) -> None:
    events = [
        host_event("ProfilerStep#1", 0.0, 90.0, 1, "user_annotation"),
        host_event("aten::mm", 10.0, 20.0, 2),
        launch_event(15.0, 50, **of_launch),
        kernel_event(50, **of_kernel),
    ]

    *_, launch, kernel = mapped_events(events)

    assert launch["args"]["External id"] == kernel["args"]["External id"] == 2


def test_a_call_outside_of_everything_hangs_on_the_root() -> None:
    (call,) = mapped_events([launch_event(15.0, 50)])

    assert call["args"]["External id"] == 0


def test_a_collective_is_tied_to_its_annotation() -> None:
    events = [
        host_event("record_param_comms", 10.0, 20.0, 2),
        host_event("nccl:all_reduce", 12.0, 10.0, 3, "user_annotation"),
        launch_event(15.0, 50, **{"External id": 2}),
        kernel_event(50, **{"External id": 2}),
    ]

    *_, kernel = mapped_events(events)

    assert kernel["args"]["External id"] == 3


def test_intervals_that_rounding_moved_nest_again() -> None:
    start = 1.6e15  # microseconds since 1970: a double has steps of a quarter
    events = [
        host_event("parent", start, 10.0, 1),
        host_event("first", start + 1, 2.3, 2),
        host_event("second", start + 3.25, 7.2, 3),  # begins in the first, ends after the parent
        host_event("late", start + 10.25, 1.0, 4),
    ]

    mapped = {event["name"]: event for event in mapped_events(events)}

    ends = {name: event["ts"] + event["dur"] for name, event in mapped.items()}
    assert ends["first"] <= mapped["second"]["ts"]
    assert ends["second"] <= ends["parent"]
    assert ends["late"] == start + 11.25


def test_a_child_that_ends_long_after_its_parent_is_cut() -> None:
    events = [host_event("parent", 0.0, 10.0, 1), host_event("child", 5.0, 50.0, 2)]

    parent, child = mapped_events(events)

    assert (parent["dur"], child["dur"]) == (10.0, 5.0)


@pytest.mark.filterwarnings("ignore")
def test_a_module_without_a_backward_does_not_spoil_the_trace(tmp_path: Path) -> None:
    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return x.detach().cos()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rotary, self.last = nn.Linear(8, 8), Rotary(), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.first(x)
            return self.last(y * self.rotary(x))

    handler = neusight.trace_handler(tmp_path / RUN, worker_name="host_0")
    with neusight.forecast_on("H100", on_trace_ready=handler):
        model = nn.Sequential(Block(), Block()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = Client(tmp_path)("/module", **of_run("Module"))

    (outermost,) = modules["data"]
    blocks = outermost["children"]
    assert [block["name"] for block in blocks] == ["Block_0", "Block_1"]
    assert {child["name"][:-2] for child in blocks[0]["children"]} == {"Linear", "Rotary"}


@pytest.mark.filterwarnings("ignore")
def test_tensor_cores_are_known_by_the_names_of_today(tmp_path: Path) -> None:
    from torch_tb_profiler.profiler.data import RunProfileData

    repair()
    with neusight.forecast_on("A100") as forecast:
        model = nn.Conv2d(64, 64, 3, bias=False).cuda()
        for _ in range(3):
            model(torch.randn(8, 64, 32, 32, device="cuda")).sum().backward()
            forecast.step()
    forecast.export_chrome_trace(tmp_path / "a100.json")
    profile = RunProfileData.parse("host_0", "1", str(tmp_path / "a100.json"), str(tmp_path))

    by_name = {op.name: op for op in profile.op_list_groupby_name}
    for name in ("aten::cudnn_convolution", "aten::convolution_backward"):
        assert by_name[name].tc_eligible
        assert by_name[name].tc_self_ratio > 0.5  # TF32 is the default of convolutions


#: Prefix of a real profile, its steps, and its kernels' microseconds, as counted in the file.
REAL = (
    ("h100__gaunernst", ["6"], 307.2),
    ("h100__Falconsai", ["6"], 1221.0),
    ("v100__resnet50", ["5", "6", "7", "8", "9", "10"], 591_532),
    ("nccl_parser", ["4", "5", "6"], 162_532),
    ("worker0", ["10"], 6832.0),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not SHARED.exists(), reason="real profiles are not at hand")
@pytest.mark.parametrize(("prefix", "steps", "kernels_us"), REAL)
def test_real_profiles_show_right_too(
    prefix: str, steps: list[str], kernels_us: float, tmp_path: Path
) -> None:
    from torch_tb_profiler.profiler.data import RunProfileData

    repair()
    (path,) = (SHARED / "traces").glob(f"{prefix}*")
    profile = RunProfileData.parse("host_0", "1", str(path), str(tmp_path))
    read = read_profile(path)
    products_ns = sum(
        event.duration_ns
        for event in read.events
        if event.kind == "kernel" and (op := read.op_of(event)) and op.name == "aten::addmm"
    )

    rows = profile.kernel_list_groupby_name_op
    device_us = {item.name: item.device_duration for item in profile.op_list_groupby_name}
    assert profile.steps_names == steps
    assert sum(row.total_duration for row in rows) == pytest.approx(kernels_us, rel=0.001)
    assert "CallTreeRoot" not in {row.op_name for row in rows}
    assert device_us["aten::addmm"] == pytest.approx(products_ns / 1000, rel=0.001)
    (total, *_) = [sum(costs.costs[:-1]) for costs in profile.steps_costs]
    assert total == pytest.approx(profile.steps_costs[0].costs[-1], rel=0.01)


def test_operators_of_two_runs_are_paired_by_name() -> None:
    from torch_tb_profiler.profiler.diffrun import contract

    repair()

    def side(*names: str) -> Any:
        rows = [contract.OpAgg(name, 3, 40, 30, 20, 10) for name in names]
        return contract.OpStats("step", 100, 50, 100, rows)

    found = contract.DiffStats(side("aten::mm", "aten::relu"), side("aten::to", "aten::mm"))

    rows = found.to_dict()
    assert [
        (left["name"], left["calls"], right["name"], right["calls"])
        for left, right in zip(rows["left"]["aggs"], rows["right"]["aggs"], strict=True)
    ] == [
        ("aten::mm", 3, "aten::mm", 3),
        ("aten::relu", 3, "aten::relu", 0),
        ("aten::to", 0, "aten::to", 3),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not SHARED.exists(), reason="real profiles are not at hand")
def test_a_real_profile_of_two_ranks_is_distributed_and_one_lies_beside_a_forecast(
    forecast: neusight.Forecast, tmp_path: Path
) -> None:
    (ranks := tmp_path / "ranks").mkdir()
    for rank in range(2):
        (path,) = (SHARED / "traces").glob(f"worker{rank}_step*")
        (ranks / f"worker{rank}.1.pt.trace.json.gz").symlink_to(path)
    (real := tmp_path / "real").mkdir()
    (path,) = (SHARED / "traces").glob("h100__Falconsai*")
    (real / "host_0.1.pt.trace.json.gz").symlink_to(path)
    neusight.trace_handler(tmp_path / RUN, worker_name="host_0")(forecast)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = Client(tmp_path)
    beside = {
        "run": "real", "worker": "host_0", "span": "1",
        "exp_run": RUN, "exp_worker": "host_0", "exp_span": "1",
    }  # fmt: skip
    everyone = {"run": "ranks", "worker": "All", "span": "1", "view": "Distributed"}

    ops = client("/distributed/commops", **everyone)["data"]["worker0"]["rows"]
    waits = client("/distributed/waittime", **everyone)["data"]["all"]
    sides = client("/diff", **beside)
    assert {"nccl:all_to_all", "nccl:all_reduce"} <= {row[0] for row in ops}
    assert waits["worker1"][1] > 1000 > waits["worker0"][1]  # the second rank waits for the first
    for side in ("left", "right"):
        rows = {row["name"]: row["device_duration"] for row in sides[side]["aggs"]}
        assert rows["aten::addmm"] > 0


# -- scalars and text


@pytest.mark.filterwarnings("ignore")
def test_scalars_and_the_summary_lie_beside_the_trace(forecast: neusight.Forecast) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert forecast.trace_path is not None
    folder = Path(forecast.trace_path).parent
    neusight.trace_handler(folder, worker_name="host_0")(forecast)  # replaces what was there

    events = EventAccumulator(str(folder))
    events.Reload()
    points = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    steps = [step for step in forecast.timeline.steps if step.replay.step.kind != "setup"]
    assert [step for step, _ in points["forecast/step time (ms)"]] == [
        step.replay.index for step in steps
    ]
    last = points["forecast/step time (ms)"][-1][1]
    assert last == pytest.approx(forecast.step_latency_us.median / 1000)
    peak = max(value for _, value in points["forecast/peak allocated (GiB)"])
    assert peak == pytest.approx(forecast.peak_memory_bytes / 2**30)
    assert points["forecast/MFU"] == [(steps[-1].replay.index, pytest.approx(forecast.mfu))]
    (text,) = events.Tensors("forecast/text_summary")
    reported = text.tensor_proto.string_val[0].decode()
    assert reported.startswith(f"### {forecast.summary().splitlines()[0]}\n")
    assert "#### What to change" in reported


def test_a_folder_that_cannot_be_written_is_a_trace_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with neusight.forecast_on("H100") as forecast:
        train()

    with pytest.raises(TraceError, match="cannot be written"):
        neusight.trace_handler(tmp_path / "file")(forecast)
