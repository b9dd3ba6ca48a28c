"""What holds for the trace of any program: random ones, and the schema of real profiles."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from compiled_net import train
from hypothesis import given, settings
from hypothesis import strategies as st

import neusight
from neusight.memory.placement import memory_of
from neusight.output.trace.file import trace_events, write_trace
from neusight.output.trace.ranks import rank_of
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Phase,
    Recording,
    Step,
    StorageRef,
    Synchronize,
    TensorSpec,
)
from neusight.timeline.host import PLAIN, PROFILED
from neusight.timeline.scheduler import GRAPH_LAUNCH
from neusight.timeline.steps import schedule
from places import GOLDEN_FILES, SHARED

SCHEMA = GOLDEN_FILES / "trace_schema.json"
Event = dict[str, Any]

# -- random programs

MATH = MathMode()
X = TensorSpec((32, 32), (32, 1), "float32")
#: What an op launches: nothing, one kernel, several, a copy, a collective.
LAUNCHES = {
    "view": (),
    "relu": (Kernel.elementwise("relu", 1024, dtype="float32"),),
    "addmm": (Kernel.gemm(32, 32, 32, dtype="float32"),),
    "layer_norm": (Kernel.elementwise("mean", 1024, dtype="float32"),) * 3,
    "copy_": (Kernel.elementwise("memcpy_h2d", 2**20, dtype="float32"),),
    "zero_": (Kernel.elementwise("memset", 1024, dtype="float32"),),
    "all_reduce": (Kernel.collective("all_reduce", 4096, 2),),
}
SIGNATURES = {
    (name, variant): OpSignature(
        f"c10d::{name}" if name == "all_reduce" else f"aten::{name}",
        "default",
        (("self", X), ("async_op", variant % 2 == 0), ("variant", variant)),
        (X,),
    )
    for name in LAUNCHES
    for variant in range(4)
}
#: Durations of a variant's kernels in microseconds: far shorter, and longer, than a launch.
DURATIONS = (0.001, 1.7, 12.345, 200.0)
STREAMS = st.sampled_from((0, 0, 0, 33, 34))
Token = tuple[Any, ...]


def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    latency = DURATIONS[int(str(call.signature.by_name["variant"]))]
    estimate = Estimate(latency, latency, latency, "memory", "physics", "test")
    return tuple((kernel, estimate) for kernel in LAUNCHES[call.signature.op.split("::")[1]])


OPS = st.tuples(st.just("op"), st.sampled_from(sorted(LAUNCHES)), st.integers(0, 3), STREAMS)
TOKENS = st.recursive(
    st.one_of(
        OPS,
        st.tuples(st.just("alloc"), st.integers(1, 2**25)),
        st.tuples(st.sampled_from(("free", "sync", "item", "work"))),
        st.tuples(st.sampled_from(("record", "wait")), STREAMS),
        st.tuples(st.just("graph"), st.lists(OPS, max_size=4)),
    ),
    lambda inner: st.tuples(st.sampled_from(("module", "annotation")), st.lists(inner, max_size=5)),
    max_leaves=25,
)


class Program:
    """Entries of one step, made from tokens; keeps numbers valid and adds a backward."""

    def __init__(self, tokens: list[Token]) -> None:
        self.entries: list[Entry] = []
        self._alive: list[int] = []
        self._num_storages = self._num_events = self._num_ops = 0
        self._differentiable: list[tuple[str, int, int]] = []
        for token in tokens:
            self._add(token)
        for name, variant, number in reversed(self._differentiable):
            node = f"{name.title()}Backward0"
            self.entries.append(self._call(name, variant, 0, "backward", number, node))
        while self._alive:
            self._add(("free",))

    def _call(
        self, name: str, variant: int, stream: int, phase: Phase, number: int, node: str = ""
    ) -> OpCall:
        return OpCall(SIGNATURES[name, variant], MATH, "net", phase, stream, number, node)

    def _add(self, token: Token) -> None:
        kind, *rest = token
        add = self.entries.append
        if kind == "op":
            name, variant, stream = rest
            add(self._call(name, variant, stream, "forward", self._num_ops))
            if stream == 0 and name != "all_reduce":
                self._differentiable.append((name, variant, self._num_ops))
            self._num_ops += 1
        elif kind == "alloc":
            add(Alloc(self._num_storages, rest[0], "net", "aten::relu"))
            self._alive.append(self._num_storages)
            self._num_storages += 1
        elif kind == "free" and self._alive:
            add(Free(StorageRef(0, self._alive.pop())))
        elif kind == "sync":
            add(Synchronize("synchronize"))
        elif kind == "item":
            add(Synchronize("item", stream=0))
        elif kind == "work":
            add(HostWork("cpu ops", 3.25))
        elif kind == "record":
            self._num_events += 1
            add(EventRecord(self._num_events, rest[0]))
        elif kind == "wait":
            add(EventWait(self._num_events, rest[0]))
        elif kind == "graph":
            add(Mark("graph_begin", GRAPH_LAUNCH))
            for _, name, variant, stream in rest[0]:
                add(self._call(name, variant, stream, "forward", 0))
            add(Mark("graph_end", GRAPH_LAUNCH))
        elif kind == "module":
            add(Mark("module_begin", "net", "Net"))
            for inner in rest[0]:
                self._add(inner)
            add(Mark("module_end", "net", "Net"))
        elif kind == "annotation":
            add(Mark("annotation_begin", "part"))
            for inner in rest[0]:
                self._add(inner)
            add(Mark("annotation_end", "part"))


def trace_of(tokens: list[Token], count: int, profiled: bool) -> dict[str, Any]:
    entries = tuple(Program(tokens).entries)
    recording = Recording((Step("train", entries, count),), gpu="H100", torch_version="2")
    timeline = schedule(recording, price, PROFILED if profiled else PLAIN)
    trace = trace_events(timeline, memory_of(recording), find_gpu("H100"), world_size=2)
    loaded: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return loaded


# -- the rules


def lanes(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Intervals of each lane, in order of start, the longer ones first."""
    found: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    for lane in found.values():
        yield sorted(lane, key=lambda event: (event["ts"], -event["dur"]))


def broken_rules(trace: dict[str, Any]) -> list[str]:
    """Every rule of a trace that is broken, in words."""
    events: list[Event] = trace["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    of = {
        category: [event for event in complete if event["cat"] == category]
        for category in {event["cat"] for event in complete}
    }
    device = [e for name in ("kernel", "gpu_memcpy", "gpu_memset") for e in of.get(name, [])]
    calls = [e for name in ("cuda_runtime", "cuda_driver") for e in of.get(name, [])]
    broken = [f"no duration: {event['name']}" for event in complete if event["dur"] < 0]
    if any(event["name"].startswith("ProfilerStep") for event in of.get("gpu_user_annotation", [])):
        broken.append("a step on the GPU, which readers take for one more")
    for lane in lanes(events):
        stack: list[float] = []
        for event in lane:
            start, end = event["ts"], event["ts"] + event["dur"]
            while stack and stack[-1] <= start:
                stack.pop()
            if stack and end >= stack[-1]:
                broken.append(f"sticks out of its parent: {event['name']} at {start}")
            stack.append(end)
    for lane in lanes(device):
        for before, after in pairwise(lane):
            if after["ts"] <= before["ts"] + before["dur"]:
                broken.append(f"overlap on a stream at {after['ts']}")
    named = of.get("cpu_op", []) + of.get("user_annotation", [])
    for what, numbers in (
        ("External id", [event["args"]["External id"] for event in named]),
        ("correlation", [event["args"]["correlation"] for event in calls]),
        ("Python id", [event["args"]["Python id"] for event in of.get("python_function", [])]),
        ("Ev Idx", [e["args"]["Ev Idx"] for e in events if "Ev Idx" in (e.get("args") or {})]),
    ):
        if len(set(numbers)) != len(numbers):
            broken.append(f"{what} is not unique")
    known = {event["args"]["External id"] for event in named}
    launches = {event["args"]["correlation"]: event for event in calls}
    for event in device:
        launch = launches.get(event["args"]["correlation"])
        if launch is None:
            broken.append(f"no launch: {event['name']}")
        elif launch["args"]["External id"] != event["args"]["External id"]:
            broken.append(f"another External id than its launch: {event['name']}")
        elif event["ts"] <= (
            launch["ts"] if "Pageable ->" in event["name"] else launch["ts"] + launch["dur"]
        ):
            broken.append(f"runs before it is launched: {event['name']}")
        if event["pid"] != event["args"]["device"] or event["tid"] != event["args"]["stream"]:
            broken.append(f"on the wrong lane: {event['name']}")
    if not {event["args"]["External id"] for event in launches.values()} <= known:
        broken.append("a runtime call belongs to nothing")
    places = {(event["pid"], event["tid"], event["ts"]) for event in complete}
    arrows: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["cat"], event["id"]].append(event)
            if (event["pid"], event["tid"], event["ts"]) not in places:
                broken.append(f"an arrow of {event['cat']} hangs in the air at {event['ts']}")
    for (kind, number), ends in arrows.items():
        phases = Counter(event["ph"] for event in ends)
        if phases["s"] != 1 or phases["f"] < 1:
            broken.append(f"arrow {kind} {number} has {dict(phases)}")
    if {number for kind, number in arrows if kind == "ac2g"} != {
        event["args"]["correlation"] for event in device
    }:
        broken.append("a kernel without an arrow")
    first, last = events_range(trace)
    broken += [
        f"outside the profiler's span: {event['name']}"
        for event in events
        if "ts" in event and not first <= event["ts"] <= last
    ]
    return broken


def events_range(trace: dict[str, Any]) -> tuple[float, float]:
    (span,) = (event for event in trace["traceEvents"] if event.get("cat") == "Trace")
    return span["ts"], span["ts"] + span["dur"]


@settings(max_examples=60)
@given(st.lists(TOKENS, min_size=1, max_size=8), st.sampled_from((1, 2, 40)), st.booleans())
def test_the_trace_of_any_program_keeps_the_rules(
    tokens: list[Token], count: int, profiled: bool
) -> None:
    trace = trace_of(tokens, count, profiled)

    assert broken_rules(trace) == []
    assert trace["displayTimeUnit"] == "ms"


@settings(max_examples=60)
@given(st.lists(TOKENS, min_size=1, max_size=8))
def test_memory_of_any_program_is_reported_in_order_and_adds_up(tokens: list[Token]) -> None:
    trace = trace_of(tokens, 2, False)
    instants = [event for event in trace["traceEvents"] if event["name"] == "[memory]"]

    held = 0
    for event in sorted(instants, key=lambda event: (event["ts"], event["args"]["Ev Idx"])):
        rounded = event["args"]["Total Allocated"] - held
        assert rounded == event["args"]["Bytes"] or abs(rounded) >= abs(event["args"]["Bytes"])
        held = event["args"]["Total Allocated"]
        assert held <= event["args"]["Total Reserved"]


def test_a_broken_rule_is_noticed() -> None:
    trace = trace_of([("op", "addmm", 2, 0), ("op", "relu", 2, 0)], 1, False)
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernels[1]["ts"] = kernels[0]["ts"]
    kernels[0]["args"]["External id"] = 10**6

    broken = broken_rules(trace)

    assert any(text.startswith("overlap on a stream") for text in broken)
    assert any(text.startswith("another External id") for text in broken)
    assert any(text.startswith("an arrow of ac2g hangs") for text in broken)


def test_a_step_of_a_large_model_stays_small(tmp_path: Path) -> None:
    """A training step of Llama 3 8B has 7,100 ops, which launch 4,300 kernels, and 32 layers."""
    layer: list[Entry] = []
    for number in range(220):
        name = ("addmm", "relu", "view")[number % 3]
        call = OpCall(SIGNATURES[name, 2], MATH, f"layers.{number}", "forward", 0, number)
        layer += [call, Alloc(number, 2**20, "", f"aten::{name}"), Free(StorageRef(0, number))]
    entries: list[Entry] = []
    for index in range(32):
        entries += [
            Mark("module_begin", f"layers.{index}", "Layer"),
            *(
                replace(entry, ordinal=entry.ordinal + 220 * index)
                if isinstance(entry, Alloc)
                else Free(StorageRef(0, entry.storage.ordinal + 220 * index))
                if isinstance(entry, Free)
                else entry
                for entry in layer
            ),
            Mark("module_end", f"layers.{index}", "Layer"),
        ]
    recording = Recording((Step("train", tuple(entries)),), gpu="H100", torch_version="2")
    path = tmp_path / "large.json.gz"

    write_trace(path, schedule(recording, price, PLAIN), memory_of(recording), find_gpu("H100"))

    assert 2**16 < path.stat().st_size < 3 * 2**20


# -- a program that uses everything


def program() -> None:
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    still = torch.ones(16, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        still @ still + 1
    for _ in range(4):
        images = torch.randn(4, 3, 8, 8).pin_memory()
        with torch.cuda.stream(side):
            images = images.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        with torch.profiler.record_function("forward pass"):
            loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        torch.cuda.synchronize()


@pytest.fixture(scope="module")
def real_program() -> dict[str, Any]:
    with neusight.forecast_on("H100") as forecast:
        program()
    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    loaded: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return loaded


def test_the_trace_of_a_real_program_keeps_the_rules(real_program: dict[str, Any]) -> None:
    categories = Counter(event.get("cat") for event in real_program["traceEvents"])
    names = {event["name"] for event in real_program["traceEvents"]}

    assert broken_rules(real_program) == []
    assert {
        "user_annotation", "cpu_op", "python_function", "cuda_runtime", "kernel", "gpu_memcpy",
        "cpu_instant_event", "ac2g", "fwdbwd", "gpu_user_annotation",
    } <= set(categories)  # fmt: skip
    assert {GRAPH_LAUNCH, "cudaStreamWaitEvent", "cudaEventRecord"} <= names


@pytest.fixture(scope="module")
def compiled_program() -> dict[str, Any]:
    forecast = train(lambda net: torch.compile(net))
    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    loaded: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return loaded


def test_the_trace_of_a_compiled_program_keeps_the_rules(compiled_program: dict[str, Any]) -> None:
    assert broken_rules(compiled_program) == []


def exchanging_rank() -> dict[str, Any]:
    """One rank of four that calls most of what NCCL has, some of it in batches."""
    with neusight.forecast_on("H100", world_size=4, gpus_per_node=2, rank=2) as forecast:
        dist.init_process_group("nccl")
        pair = dist.new_group([2, 3])
        x = torch.ones(4, 1024, device="cuda")
        for _ in range(3):
            pending = dist.all_reduce(x, group=pair, async_op=True)
            y = torch.relu(torch.ones_like(x))
            assert pending is not None
            pending.wait()
            dist.all_gather([torch.empty_like(x) for _ in range(4)], x)
            dist.all_to_all_single(y, x)
            dist.send(x, 0)
            transfers = [dist.P2POp(dist.isend, x, 3), dist.P2POp(dist.irecv, y, 1)]
            for work in dist.batch_isend_irecv(transfers):
                work.wait()
            dist.barrier()
            forecast.step()
    trace = trace_events(
        forecast.timeline,
        forecast.memory,
        forecast.gpu,
        **rank_of(forecast.recording),
    )
    loaded: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return loaded


def test_the_trace_of_a_rank_that_exchanges_keeps_the_rules_and_the_schema(schema: Schema) -> None:
    trace = exchanging_rank()

    assert broken_rules(trace) == []
    # Profiles of today leave lines out; those of collectives are always known, and shown.
    assert set(violations(trace, schema)) == {"X cpu_op: no profile has args.Call stack"}
    names = {event["name"].partition("(")[0] for event in trace["traceEvents"]}
    assert {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "ncclDevKernel_AllGather_RING_LL",
        "ncclDevKernel_SendRecv",
        "nccl:all_reduce",
        "nccl:all_gather",
        "nccl:all_to_all",
        "nccl:send 2->0",
        "nccl:coalesced",
        "nccl:all_reduce_barrier",
    } <= names


def lane_names(trace: dict[str, Any], kind: str) -> dict[Any, str]:
    """What a viewer calls the lanes of the GPU, by process or by stream."""
    return {
        event["pid" if kind == "process_name" else "tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == kind and event["pid"] < 8
    }


def test_lanes_are_named_after_the_gpu_and_what_streams_run(real_program: dict[str, Any]) -> None:
    assert lane_names(real_program, "process_name") == {0: "H100-SXM5-80GB (forecast)"}
    streams = lane_names(real_program, "thread_name")
    assert streams.pop(7) == "stream 7 (default)"
    (copying,) = streams
    assert streams == {copying: f"stream {copying} (copies)"}


def test_lanes_of_a_rank_name_it_and_the_groups_that_communicate() -> None:
    trace = exchanging_rank()

    assert lane_names(trace, "process_name") == {0: "H100-SXM5-80GB (forecast), rank 2 of 4"}
    named = set(lane_names(trace, "thread_name").values())
    assert "stream 7 (default)" in named
    assert {name.partition(" (")[2] for name in named} >= {"NCCL, group 0)", "NCCL, group 1)"}


def inside(trace: dict[str, Any], outer: Event) -> list[str]:
    """The names of what runs in an event, from the outermost on."""
    first, last = outer["ts"], outer["ts"] + outer["dur"]
    return [
        event["name"]
        for lane in lanes(trace["traceEvents"])
        for event in lane
        if event["tid"] == outer["tid"] and first < event["ts"] and event["ts"] < last
    ]


def test_compiled_code_is_shown_as_torchs_profiler_shows_it(
    compiled_program: dict[str, Any],
) -> None:
    """As of two linear layers on a CPU, with the ops of a GPU inside."""
    regions = [
        event
        for event in compiled_program["traceEvents"]
        if event["name"] == "Torch-Compiled Region: 0/0"
    ]
    fused = "triton_per_fused_gelu_native_dropout_native_layer_norm_0"

    assert regions
    for region in regions:
        assert (region["cat"], region["ph"]) == ("cpu_op", "X")
        assert inside(compiled_program, region) == [
            "AOTDispatcher Runtime Wrapper Prologue", "CompiledFunction",
            "aten::addmm", "cudaLaunchKernelExC",
            "aten::randint", "aten::empty", "aten::random_", "cudaLaunchKernel",
            fused, "cuLaunchKernel", "aten::addmm", "cudaLaunchKernelExC",
        ]  # fmt: skip


def test_a_kernel_that_was_fused_is_tied_to_its_launch_and_its_op(
    compiled_program: dict[str, Any],
) -> None:
    events = compiled_program["traceEvents"]
    launched = {
        event["args"]["correlation"]: event["args"]["External id"]
        for event in events
        if event["name"] == "cuLaunchKernel"
    }
    ops = {
        event["args"]["External id"]: event
        for event in events
        if event.get("args", {}).get("kernel_backend") == "triton"
    }
    kernels = [event for event in events if event.get("cat") == "kernel"]
    fused = [event for event in kernels if event["name"].startswith("triton_")]

    assert len(fused) == len(launched) == len(ops)
    for kernel in fused:
        op = ops[launched[kernel["args"]["correlation"]]]
        assert op["name"] == kernel["name"]
        assert op["args"]["Input type"][-1] == "Scalar"


def test_a_compiled_function_is_tied_to_its_backward(compiled_program: dict[str, Any]) -> None:
    events = compiled_program["traceEvents"]
    functions = [event for event in events if event["name"] == "CompiledFunction"]
    backwards = [event for event in events if event["name"] == "CompiledFunctionBackward"]
    arrows = {(event["tid"], event["ts"]) for event in events if event.get("cat") == "fwdbwd"}

    assert [event["args"]["Sequence number"] for event in functions] == [
        event["args"]["Sequence number"] for event in backwards
    ]
    assert {(event["tid"], event["ts"]) for event in [*functions, *backwards]} <= arrows


# -- the schema of real profiles: names and types of keys, nothing else

#: What only a forecast can show of a kernel or copy; no profile has it.
OURS = {
    f"args.{key}"
    for key in (
        "forecast by", "forecast origin", "forecast low us", "forecast high us", "in trained range",
        "bound by", "kernel class", "waves", "FLOPs", "bytes moved", "tile", "split k",
        "waited for ranks us",
    )
}  # fmt: skip
#: What torch's profiler notes of Triton's launches, as far as a forecast knows it (in torch,
#: _inductor/runtime/triton_heuristics.py, get_profiler_kwargs); the profiles here are eager.
OF_TRITON = {"args.kernel_backend"}
#: What newer profilers note of collectives (torch/csrc/profiler/util.h) than made those here.
OF_NCCL = {"args.Seq", "args.Src Rank", "args.Dst Rank"}
#: Keys of the file that a forecast does not write: it has no CUDA, no profiler run and no host.
NOT_OURS = {
    "cuda_runtime_version", "cuda_driver_version", "cupti_version", "trace_id", "with_stack",
    "with_flops", "metadata", "INFO", "distributedInfo",
}  # fmt: skip
REAL = ("h100__gaunernst", "h100__Falconsai", "b200__eager", "nccl_parser_config")
Schema = dict[str, dict[str, Any]]


def kind_of(event: Event) -> str:
    """Phase and category; metadata and markers go by name, collectives are kernels of their own."""
    name = event["name"] if event["ph"] in "Mi" and ":" not in event["name"] else ""
    nccl = "nccl" if event.get("cat") == "kernel" and "nccl" in event["name"].lower() else ""
    return " ".join(filter(None, (event["ph"], event.get("cat"), name, nccl)))


def type_of(value: object) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "number" if number else type(value).__name__


def keys_of(event: Event) -> dict[str, str]:
    own = {key: type_of(value) for key, value in event.items() if key != "args"}
    return own | {f"args.{key}": type_of(v) for key, v in (event.get("args") or {}).items()}


def schema_of(traces: Iterable[dict[str, Any]]) -> Schema:
    """For each kind of event the keys it always has, and all it may have with their types."""
    required: dict[str, set[str]] = {}
    allowed: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for trace in traces:
        file = {key: type_of(value) for key, value in trace.items()}
        everything = [("file", file)]
        everything += [(kind_of(event), keys_of(event)) for event in trace["traceEvents"]]
        for kind, keys in everything:
            required[kind] = required.get(kind, set(keys)) & set(keys)
            for key, name in keys.items():
                allowed[kind][key].add(name)
    return {
        kind: {
            "required": sorted(required[kind]),
            "allowed": {key: sorted(types) for key, types in sorted(allowed[kind].items())},
        }
        for kind in sorted(required)
    }


def violations(trace: dict[str, Any], schema: Schema) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        kind = kind_of(event)
        if kind not in schema:
            found[f"no profile has a {kind}"] += 1
            continue
        keys, known = keys_of(event), schema[kind]
        for key in set(known["required"]) - set(keys):
            found[f"{kind}: {key} is missing"] += 1
        for key, name in keys.items():
            if key in OURS | OF_TRITON | OF_NCCL and kind.startswith("X "):
                continue
            if key not in known["allowed"]:
                found[f"{kind}: no profile has {key}"] += 1
            elif name not in known["allowed"][key]:
                found[f"{kind}: {key} is a {name}"] += 1
    return found


def profile_on_the_cpu(folder: Path) -> dict[str, Any]:
    """What this torch's profiler writes of a training step on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Linear(4, 4)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True,
        with_modules=True,
    ) as prof:  # fmt: skip
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            prof.step()
    path = folder / "cpu.json"
    prof.export_chrome_trace(str(path))
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def real_traces() -> list[dict[str, Any]]:
    paths = [path for name in REAL for path in sorted((SHARED / "traces").glob(f"{name}*"))]
    return [json.loads(gzip.decompress(path.read_bytes()), strict=False) for path in paths]


@pytest.fixture(scope="module")
def schema() -> Schema:
    loaded: Schema = json.loads(SCHEMA.read_text())
    return loaded


def test_no_event_departs_from_the_schema_of_real_profiles(
    real_program: dict[str, Any], compiled_program: dict[str, Any], schema: Schema
) -> None:
    every_kind = trace_of(
        [("op", name, 2, 0) for name in LAUNCHES] + [("record", 33), ("wait", 0), ("sync",)],
        2,
        True,
    )

    assert violations(real_program, schema) == Counter()
    assert violations(compiled_program, schema) == Counter()
    assert violations(every_kind, schema) == Counter()
    assert set(schema["file"]["required"]) - NOT_OURS <= set(every_kind) | {"traceName"}
    assert set(every_kind) - set(schema["file"]["allowed"]) == {"neusight"}


def test_the_schema_notices_what_a_profile_would_not_have(schema: Schema) -> None:
    trace = trace_of([("op", "addmm", 2, 0)], 1, False)
    kernel = next(event for event in trace["traceEvents"] if event.get("cat") == "kernel")
    del kernel["args"]["grid"]
    kernel["args"]["colour"] = "red"
    kernel["args"]["stream"] = "7"

    assert violations(trace, schema) == {
        "X kernel: args.grid is missing": 1,
        "X kernel: no profile has args.colour": 1,
        "X kernel: args.stream is a str": 1,
    }


@pytest.mark.skipif(not SHARED.exists(), reason="real profiles are not at hand")
def test_the_schema_is_that_of_the_real_profiles(schema: Schema, tmp_path: Path) -> None:
    """To renew it: write what `schema_of` gives to the golden file."""
    found = schema_of([*real_traces(), profile_on_the_cpu(tmp_path)])

    assert found == schema


def test_what_torch_writes_today_departs_little_from_the_schema(
    schema: Schema, tmp_path: Path
) -> None:
    assert violations(profile_on_the_cpu(tmp_path), schema) == Counter()


def test_torchs_own_rules_for_traces_hold(tmp_path: Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator", reason="torch before 2.13")
    with neusight.forecast_on("H100") as forecast:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        side = torch.cuda.Stream()
        for _ in range(3):
            model(torch.ones(4, 8).cuda()).sum().backward()
            optimizer.step()
            with torch.cuda.stream(side):
                torch.ones(8, device="cuda").relu()
            torch.cuda.current_stream().wait_stream(side)
            side.synchronize()
    path = tmp_path / "trace.json.gz"
    forecast.export_chrome_trace(path)

    assert validator.validate_trace(str(path)) == (True, [])
