"""The trace file: its own rules, torch-tb-profiler's parser, and the schema of real profiles."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.profiles.reading.reading import read_profile
from neusight.memory.placement import memory_of
from neusight.output.names.kernel import kernel_display_name
from neusight.output.trace.file import TraceOptions, trace_events, write_trace
from neusight.predictors.errors import TraceError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
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
from neusight.timeline.host import PLAIN
from neusight.timeline.scheduler import GRAPH_LAUNCH
from neusight.timeline.steps import schedule
from timelines import on_communicator, save_trace

H100 = GPU(
    name="h100_sxm",
    driver_name="NVIDIA H100 80GB HBM3",
    vendor="nvidia",
    architecture="hopper",
    compute_capability=(9, 0),
    num_sms=132,
    boost_clock_mhz=1980,
    memory_bytes=85018279936,
    bandwidth_gbps=3350,
    l2_bytes=50 * 2**20,
    shared_memory_per_sm_bytes=233472,
    shared_memory_per_block_optin_bytes=232448,
    registers_per_sm=65536,
    max_threads_per_sm=2048,
    warp_size=32,
    tdp_w=700,
    peak_tflops={"fp32": 67, "bf16": 989},
)
MATH = MathMode()
X = TensorSpec((64, 1024), (1024, 1), "bfloat16")
W = TensorSpec((1024, 1024), (1, 1024), "bfloat16")


def signature(name: str, *arguments: tuple[str, Any]) -> OpSignature:
    return OpSignature(f"aten::{name}", "default", arguments, (X,))


OPS = {
    name: signature(
        name, ("self", X), ("other", W), ("beta", 1.0), ("dims", (1, 2)), ("none", None)
    )
    for name in ("t", "addmm", "relu", "threshold_backward", "mm", "_foreach_add_", "copy_")
} | {
    "allreduce_": OpSignature("c10d::allreduce_", "default", (("tensors", (X, X)),), (X,)),
}


def call(
    name: str, phase: Phase = "forward", number: int | None = None, node: str = "", module: str = ""
) -> OpCall:
    return OpCall(OPS[name], MATH, module, phase, 0, number, node)


KERNELS = {
    "addmm": (Kernel.gemm(64, 1024, 1024, bias=True), 20.0),
    "mm": (Kernel.gemm(64, 1024, 1024, layout="nn"), 19.0),
    "relu": (Kernel.elementwise("relu", 65536, dtype="bfloat16"), 3.5),
    "threshold_backward": (Kernel.elementwise("threshold_backward", 65536, dtype="float32"), 4.5),
    "_foreach_add_": (
        Kernel.rows(
            KernelClass.OPTIMIZER, "adam", 1, 4096, dtype="float32", bytes_read=9, bytes_written=9
        ),
        11.0,
    ),
    "copy_": (
        Kernel.rows(
            KernelClass.COPY, "memcpy_h2d", 1, 1024, dtype="float32", bytes_read=4096,
            bytes_written=4096,
        ),
        6.0,
    ),
    "allreduce_": (Kernel.collective("all_reduce", 2**20, 2), 90.0),
}  # fmt: skip


def price(op: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    known = KERNELS.get(op.signature.op.partition("::")[2])
    if known is None:
        return ()
    kernel, latency = known
    tile = (128, 64) if kernel.kernel_class is KernelClass.GEMM else None
    return (
        (kernel, Estimate(latency, latency, latency, "memory", "physics", "test", tile=tile)),
    )  # fmt: skip


def training_step(*, with_collective: bool = False) -> tuple[Entry, ...]:
    entries: list[Entry] = [
        HostWork("cpu ops", 12.0),
        call("copy_"),
        Synchronize("copy", stream=0),
        Mark("annotation_begin", "forward pass"),
        Mark("module_begin", "net", "Net"),
    ]
    for layer, number in (("net.a", 0), ("net.b", 4)):
        entries += [
            Mark("module_begin", layer, "Linear"),
            call("t", number=number, module=layer),
            call("addmm", number=number + 1, module=layer),
            Alloc(number, 2**20, layer, "aten::addmm"),
            Mark("module_end", layer, "Linear"),
            Mark("module_begin", layer + "_relu", "ReLU"),
            Alloc(number + 1, 2**20, layer, "aten::relu"),
            call("relu", number=number + 2, module=layer),
            Mark("module_end", layer + "_relu", "ReLU"),
        ]
    entries += [
        Mark("module_end", "net", "Net"),
        Mark("annotation_end", "forward pass"),
        EventRecord(1, 0),
    ]
    for number in (4, 0):
        entries += [
            call("threshold_backward", "backward", number + 2, "ReluBackward0"),
            Free(StorageRef(0, number + 1)),
            call("mm", "backward", number + 1, "AddmmBackward0"),
            call("mm", "backward", number + 1, "AddmmBackward0"),
            Alloc(number + 2, 4096, "", "aten::mm", "backward", "gradient"),
            call("t", "backward", number, "TBackward0"),
        ]
    if with_collective:
        entries += on_communicator(call("allreduce_", "backward"), 1)
    entries += [
        Mark("annotation_begin", "Optimizer.step#Adam.step"),
        call("_foreach_add_", "optimizer"),
        Mark("annotation_end", "Optimizer.step#Adam.step"),
        *(Free(StorageRef(0, ordinal)) for ordinal in (0, 2, 4, 6)),
        Synchronize("synchronize"),
    ]
    return tuple(entries)


def forecast_trace(*, with_collective: bool = False, **options: Any) -> dict[str, Any]:
    recording = Recording(
        (
            Step("setup", (Alloc(0, 2**22, "net", "aten::empty", "forward", "parameter"),)),
            Step("train", training_step(with_collective=with_collective), 100),
        ),
        gpu="H100",
        torch_version="2",
    )
    timeline = schedule(recording, price, PLAIN)
    trace = trace_events(timeline, memory_of(recording), H100, **options)
    loaded: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return loaded


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return forecast_trace()


@pytest.fixture(scope="module")
def distributed() -> dict[str, Any]:
    return forecast_trace(with_collective=True, world_size=2)


def of(trace: dict[str, Any], category: str, prefix: str = "") -> list[dict[str, Any]]:
    return [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == category and event["ph"] == "X" and event["name"].startswith(prefix)
    ]


def test_steps_are_those_replayed_without_the_setup(trace: dict[str, Any]) -> None:
    steps = of(trace, "user_annotation", "ProfilerStep#")

    assert [step["name"] for step in steps] == [
        "ProfilerStep#1",
        "ProfilerStep#2",
        "ProfilerStep#100",
    ]
    assert trace["neusight"]["forecast"] is True
    assert [step["represents"] for step in trace["neusight"]["steps"]] == [1, 1, 98]


def test_nothing_lies_after_the_list_of_events_but_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a]b.pt.trace.json"

    save_trace(path, forecast_trace())

    text = path.read_text()
    assert text.rindex("]") < text.index('"traceName"')


def test_every_arrow_starts_at_an_event_and_ends_at_one(trace: dict[str, Any]) -> None:
    arrows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    places = Counter()  # type: Counter[tuple[Any, Any, float]]
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            arrows[(event["cat"], event["id"])].append(event)
        elif event["ph"] == "X":
            places[(event["pid"], event["tid"], event["ts"])] += 1

    assert {kind for kind, _ in arrows} == {"ac2g", "fwdbwd"}
    for ends in arrows.values():
        assert [event["ph"] for event in ends] == ["s", "f"]
        assert all(places[(event["pid"], event["tid"], event["ts"])] for event in ends)
    forward = [key for key in arrows if key[0] == "fwdbwd"]
    assert len(forward) == 3 * 6  # t, addmm, relu of two layers in three steps


def test_ops_show_their_inputs(trace: dict[str, Any]) -> None:
    addmm = of(trace, "cpu_op", "aten::addmm")[0]["args"]

    assert addmm["Input Dims"] == [[64, 1024], [1024, 1024], [], [], []]
    assert addmm["Input type"] == ["c10::BFloat16", "c10::BFloat16", "Scalar", "ScalarList", ""]
    assert addmm["Input Strides"] == [[1024, 1], [1, 1024], [], [], []]
    assert addmm["Concrete Inputs"] == ["", "", "1.", "[1, 2]", ""]


def test_backward_nodes_bear_the_sequence_number_of_their_forward_op(
    trace: dict[str, Any],
) -> None:
    forward = {e["args"]["Sequence number"] for e in of(trace, "cpu_op", "aten::addmm")}
    backward = {e["args"]["Sequence number"] for e in of(trace, "cpu_op", "AddmmBackward0")}

    assert forward == backward
    assert len(forward) == 6


def test_modules_are_numbered_within_their_class_and_keep_their_id(trace: dict[str, Any]) -> None:
    modules = of(trace, "python_function")

    names = Counter(event["name"] for event in modules)
    assert names == {
        f"nn.Module: {name}": 3 for name in ("Net_0", "Linear_0", "Linear_1", "ReLU_0", "ReLU_1")
    }
    ids = {(event["name"], event["args"]["Python module id"]) for event in modules}
    assert len(ids) == 5
    root = next(event for event in modules if event["name"].endswith("Net_0"))
    child = next(event for event in modules if event["name"].endswith("Linear_0"))
    assert root["args"]["Python parent id"] is None
    assert child["args"]["Python parent id"] == root["args"]["Python id"]


def test_memory_instants_lie_in_their_op_and_pair_by_address(trace: dict[str, Any]) -> None:
    instants = [event for event in trace["traceEvents"] if event["name"] == "[memory]"]
    ops = of(trace, "cpu_op", "aten::")

    assert len(instants) == 3 * 12
    held: dict[int, int] = {}
    for event in instants:
        args = event["args"]
        if args["Bytes"] > 0:
            held[args["Addr"]] = args["Bytes"]
            assert any(
                op["tid"] == event["tid"] and op["ts"] < event["ts"] < op["ts"] + op["dur"]
                for op in ops
            )
        else:
            assert held.pop(args["Addr"]) == -args["Bytes"]
        assert args["Total Reserved"] >= args["Total Allocated"] > 0
    assert held == {}


def test_occupancy_follows_from_grid_and_block(trace: dict[str, Any]) -> None:
    args = of(trace, "kernel", "void at::native::vectorized_elementwise_kernel")[0]["args"]

    assert (args["grid"], args["block"]) == ([64, 1, 1], [256, 1, 1])
    assert args["blocks per SM"] == pytest.approx(64 / 132, abs=1e-6)
    assert args["warps per SM"] == pytest.approx(64 * 8 / 132, abs=1e-6)
    assert args["est. achieved occupancy %"] == round(100 * 64 * 8 / 132 / 64)


@pytest.mark.parametrize(("pinned", "source"), [(True, "Pinned"), (False, "Pageable")])
def test_a_copy_says_what_memory_it_comes_from(pinned: bool, source: str) -> None:
    host = TensorSpec((1024,), (1,), "float32", "cpu", pinned)
    copy = OpSignature("aten::copy_", "default", (("self", X), ("src", host)), ())
    recording = Recording((Step("train", (OpCall(copy, MATH),)),), gpu="H100", torch_version="2")

    trace = trace_events(schedule(recording, price, PLAIN), None, H100)

    (event,) = of(trace, "gpu_memcpy")
    assert event["name"] == f"Memcpy HtoD ({source} -> Device)"
    assert event["args"]["memory bandwidth (GB/s)"] == pytest.approx(4096 / 6000)


def test_the_kernels_of_a_graph_hang_on_one_launch() -> None:
    captured = (call("addmm"), call("relu"), call("addmm"))
    entries = (Mark("graph_begin", GRAPH_LAUNCH), *captured, Mark("graph_end", GRAPH_LAUNCH))
    recording = Recording((Step("eval", entries, 3),), gpu="H100", torch_version="2")

    trace: dict[str, Any] = trace_events(schedule(recording, price, PLAIN), None, H100)

    launches = of(trace, "cuda_runtime", GRAPH_LAUNCH)
    kernels = of(trace, "kernel")
    arrows = Counter((event["id"], event["ph"]) for event in trace["traceEvents"] if "id" in event)
    assert (len(launches), len(kernels)) == (3, 9)
    assert launches[0]["args"]["cbid"] == 311
    for launch in launches:
        number = launch["args"]["correlation"]
        assert (arrows[number, "s"], arrows[number, "f"]) == (1, 3)
        own = [event for event in kernels if event["args"]["correlation"] == number]
        assert {event["args"]["External id"] for event in own} == {launch["args"]["External id"]}
    assert of(trace, "cpu_op") == []


def _as_the_parser_knows_them(trace: dict[str, Any]) -> dict[str, Any]:
    """torch-tb-profiler 0.4.3 predates these categories; renamed as neusight's plugin does."""
    events = []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category == "cuda_runtime":
            event = {**event, "cat": "runtime"}
        elif category == "fwdbwd":
            event = {**event, "cat": "forward_backward"}
        events.append(event)
    return {**trace, "traceEvents": events}


#: The plugin, no longer developed, calls pandas as it was before 3.0.
OLD_PANDAS = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")


@pytest.fixture
def parser() -> Any:
    data = pytest.importorskip("torch_tb_profiler.profiler.data")
    return data.RunProfileData


@OLD_PANDAS
def test_the_parser_of_torch_tb_profiler_reads_it(
    trace: dict[str, Any], tmp_path: Path, parser: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "host_4000.1704067200000000000.pt.trace.json.gz"
    save_trace(path, _as_the_parser_knows_them(trace))

    profile = parser.parse("host_4000", "1", str(path), str(tmp_path))

    assert profile.steps_names == ["1", "2", "100"]
    assert profile.has_runtime
    assert profile.has_kernel
    assert profile.has_memcpy_or_memset
    assert [record for record in caplog.records if record.levelname != "INFO"] == []

    by_name = {op.name: op for op in profile.op_list_groupby_name}
    assert by_name["aten::addmm"].calls == 6
    assert by_name["aten::addmm"].device_duration == pytest.approx(6 * 20.0)
    assert by_name["aten::mm"].device_duration == pytest.approx(12 * 19.0)
    shapes = [op.input_shape for op in profile.op_list_groupby_name_input]
    assert any("[64, 1024]" in str(shape) for shape in shapes)

    kernels = {row.op_name for row in profile.kernel_list_groupby_name_op}
    assert {"aten::addmm", "aten::mm", "aten::clamp_min", "aten::threshold_backward"} <= kernels

    snapshot = profile.memory_snapshot
    assert snapshot is not None
    assert any(record.op_name == "aten::addmm" for record in snapshot.memory_records)


@OLD_PANDAS
def test_the_parser_of_torch_tb_profiler_sees_communication(
    distributed: dict[str, Any], parser: Any
) -> None:
    profile = parser.from_json("host_4000", "1", _as_the_parser_knows_them(distributed))

    assert profile.has_communication
    assert profile.use_ddp is False
    assert sum(node.total_time for node in profile.comm_node_list) >= 3 * 90.0


def test_equal_forecasts_are_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_trace(tmp_path / name / "w.1.pt.trace.json.gz", forecast_trace())

    one, two = ((tmp_path / name / "w.1.pt.trace.json.gz").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_trace_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    missing = tmp_path / "file" / "w.json"

    with pytest.raises(
        TraceError, match=r"Cannot write the trace to .*w\.json: .* Choose a folder"
    ):
        save_trace(missing, {"traceEvents": []})
    with pytest.raises(TraceError, match="not plain JSON"):
        save_trace(tmp_path / "w.json", {"rank": float("nan"), "traceEvents": []})

    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_timeline_is_written_with_the_options_of_its_events(tmp_path: Path) -> None:
    recording = Recording((Step("train", training_step(), 3),), gpu="H100", torch_version="2")
    timeline = schedule(recording, price, PLAIN)
    path = tmp_path / "w.1.pt.trace.json"

    options: TraceOptions = {"record_shapes": False, "profile_memory": False, "with_modules": False}
    write_trace(path, timeline, memory_of(recording), H100, **options)

    written = json.loads(path.read_text())
    assert (written["record_shapes"], written["profile_memory"], written["with_modules"]) == (
        0,
    ) * 3
    assert not any(event["name"] == "[memory]" for event in written["traceEvents"])
    assert of(written, "python_function") == []
    assert "Input Dims" not in of(written, "cpu_op", "aten::addmm")[0]["args"]


def test_an_empty_timeline_is_a_trace_too() -> None:
    recording = Recording((), gpu="H100", torch_version="2")

    trace = trace_events(schedule(recording, price, PLAIN), None, H100)

    assert json.dumps(trace, allow_nan=False)


def test_only_the_last_steps_are_shown_where_there_are_many() -> None:
    trace = forecast_trace(max_steps=2)

    names = [event["name"] for event in of(trace, "user_annotation", "ProfilerStep#")]
    assert names == ["ProfilerStep#2", "ProfilerStep#100"]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (KERNELS["addmm"][0], "nvjet_sm90_tst_128x64_64x4"),
        (
            Kernel.gemm(8, 8, 8, dtype="float32"),
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64",
        ),
        (KERNELS["relu"][0], "void at::native::vectorized_elementwise_kernel<8, at::native::"),
        (KERNELS["allreduce_"][0], "ncclDevKernel_AllReduce_Sum_bf16_RING_LL("),
        (KERNELS["copy_"][0], "Memcpy HtoD"),
        (
            Kernel.attention(1, 8, 8, 128, 128, 64, causal=True, dtype="bfloat16"),
            "void pytorch_flash::flash_fwd_kernel<",
        ),
    ],
)
def test_kernels_are_named_as_their_libraries_would(kernel: Kernel, expected: str) -> None:
    estimate = Estimate(1, 1, 1, "memory", "physics", "test", tile=(128, 64))

    assert kernel_display_name(kernel, estimate, H100).startswith(expected)


@pytest.mark.slow
def test_a_trace_of_100_000_kernels_opens(tmp_path: Path) -> None:
    layer = (
        Mark("module_begin", "net", "Net"),
        call("addmm", number=1, module="net"),
        call("relu", number=2, module="net"),
        Mark("module_end", "net", "Net"),
    )
    recording = Recording((Step("train", layer * 50_000, 1),), gpu="H100", torch_version="2")
    path = tmp_path / "long.pt.trace.json.gz"

    write_trace(path, schedule(recording, price, PLAIN), None, H100)

    profile = read_profile(path)
    assert profile.is_complete
    assert (len(profile.events), len(profile.steps)) == (100_000, 1)
