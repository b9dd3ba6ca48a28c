"""Reading real traces: what is in them, and what is said about what is not."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile, read_profile_events
from neusight.predictors.errors import TraceError
from places import TRACES, needs_traces
from profile_events import device_event as device
from profile_events import host_event as host
from profile_events import trace_of_events


def two_steps() -> dict[str, Any]:
    """Two steps of a product each; in the second the GPU also copies."""
    events = [
        host("user_annotation", "ProfilerStep#3", 0, 100),
        host("cpu_op", "aten::addmm", 10, 20, **{"External id": 5, "Input Dims": [[8, 4], [4, 2]]}),
        host("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=1, **{"External id": 5}),
        device("volta_sgemm_64x64_nn", 30, 40, 1),
        host("user_annotation", "ProfilerStep#4", 110, 100),
        host("cpu_op", "aten::mm", 120, 20, **{"External id": 6, "Input Dims": [[8, 4], [4, 2]]}),
        host("cuda_runtime", "cudaLaunchKernel", 125, 5, correlation=2, **{"External id": 6}),
        device("volta_sgemm_64x64_nn", 140, 44, 2),
        host("cpu_op", "aten::copy_", 148, 9, **{"External id": 7, "Input Dims": [[8, 2], [8, 2]]}),
        host("cuda_runtime", "cudaMemcpyAsync", 150, 5, correlation=3),
        device("Memcpy DtoH (Device -> Pinned)", 186, 64, 3, cat="gpu_memcpy"),
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 16, "s": "t",
         "args": {"Device Type": 1, "Total Allocated": 4096, "Total Reserved": 2 << 20}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ]  # fmt: skip
    return {"schemaVersion": 1, **trace_of_events(events)}


def written(folder: Path, content: Any, name: str = "a.pt.trace.json") -> Path:
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_a_trace_becomes_steps_kernels_ops_and_calls(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path, two_steps()))

    first, second = profile.steps
    kernel = first.events[0]
    op, call = profile.op_of(kernel), profile.launch_of(kernel)
    assert profile.device_name == "Tesla V100-SXM2-32GB"
    assert (profile.is_forecast, profile.is_complete, profile.notes) == (False, True, ())
    assert (first.name, first.latency_ns, first.kernel_ns) == ("ProfilerStep#3", 100_000, 40_000)
    assert (second.latency_ns, second.kernel_ns, second.busy_ns) == (140_000, 108_000, 108_000)
    assert op is not None and (op.name, op.shapes) == ("aten::addmm", ((8, 4), (4, 2)))
    assert call is not None and call.name == "cudaLaunchKernel"
    assert (profile.peak_allocated_bytes, profile.peak_reserved_bytes) == (4096, 2 << 20)


def test_gzip_and_plain_are_the_same(tmp_path: Path) -> None:
    plain = read_profile(written(tmp_path, two_steps()))
    packed = read_profile(written(tmp_path, two_steps(), "a.pt.trace.json.gz"))

    assert packed.events == plain.events


def test_kernels_launched_before_the_trace_are_left_out_of_its_steps(tmp_path: Path) -> None:
    plain = read_profile(written(tmp_path, two_steps()))
    trace = two_steps()
    first = min(event["ts"] for event in trace["traceEvents"] if event.get("cat") == "kernel")
    backlog = [device("late", first - 3.0, 1.0, 991), device("late", first - 1.5, 1.0, 992)]
    inside = device("of nobody", first + 0.1, 0.1, 993)
    trace["traceEvents"] += [*backlog, inside]

    profile = read_profile(written(tmp_path, trace))

    counts = [[len(step.events) for step in each.steps] for each in (plain, profile)]
    assert counts[1] == [counts[0][0] + 1, *counts[0][1:]]
    assert any("2 of" in note and "launched before the trace" in note for note in profile.notes)
    assert any(note.startswith("1 of") and "no launch call" in note for note in profile.notes)


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path, two_steps()["traceEvents"]))

    assert len(profile.events) == 3
    assert "no deviceProperties: which GPU it was is not known" in profile.notes


def test_the_categories_of_old_profilers_are_understood(tmp_path: Path) -> None:
    trace = two_steps()
    older = {
        "cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime",
        "kernel": "Kernel", "gpu_memcpy": "Memcpy",
    }  # fmt: skip
    for event in trace["traceEvents"]:
        if "cat" in event:
            event["cat"] = older[event["cat"]]
        if "External id" in event.get("args", {}):
            event["args"]["external id"] = event["args"].pop("External id")
        if event.get("cat") == "Kernel":
            event["tid"] = "stream 7"
            del event["args"]["stream"]

    profile = read_profile(written(tmp_path, trace))

    assert [step.name for step in profile.steps] == ["ProfilerStep#3", "ProfilerStep#4"]
    assert {event.stream for event in profile.events} == {7}
    op = profile.op_of(profile.events[0])
    assert op is not None and op.name == "aten::addmm"


def test_a_kernel_whose_ids_say_nothing_belongs_to_the_op_around_its_launch(tmp_path: Path) -> None:
    trace = two_steps()
    for event in trace["traceEvents"]:
        if event.get("cat") == "cuda_runtime":
            event["args"].pop("External id", None)

    profile = read_profile(written(tmp_path, trace))

    op = profile.op_of(profile.events[0])
    assert op is not None and op.name == "aten::addmm"


def test_without_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    trace = two_steps()
    events = trace["traceEvents"]
    trace["traceEvents"] = [e for e in events if not e["name"].startswith("ProfilerStep")]

    profile = read_profile(written(tmp_path, trace))

    assert [step.name for step in profile.steps] == ["whole trace"]
    assert len(profile.steps[0].events) == 3
    assert any("no ProfilerStep#N annotations" in note for note in profile.notes)


def test_a_trace_that_was_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    data = json.dumps(two_steps()).encode()
    cut = data[: data.index(b"ProfilerStep#4")]

    profile = read_profile(written(tmp_path, cut))

    assert [step.name for step in profile.steps] == ["ProfilerStep#3"]
    assert not profile.is_complete
    assert any("cut off within an event" in note for note in profile.notes)


def test_a_gzip_file_that_was_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    trace = two_steps()
    filler = [host("python_function", f"f_{i * 7919 % 10007}", i, 1) for i in range(4000)]
    trace["traceEvents"] += filler
    path = written(tmp_path, trace, "a.pt.trace.json.gz")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    profile = read_profile(path)

    assert len(profile.events) == 3
    assert "the gzip file is cut off; what could be unpacked was read" in profile.notes


def test_damaged_gzip_data_is_reported(tmp_path: Path) -> None:
    trace = two_steps()
    trace["traceEvents"] += [
        host("python_function", f"f_{i * 7919 % 10007}", i, 1) for i in range(4000)
    ]
    path = written(tmp_path, trace, "a.pt.trace.json.gz")
    data = bytearray(path.read_bytes())
    data[-400:-300] = bytes(100)
    path.write_bytes(bytes(data))

    profile = read_profile(path)

    assert not profile.is_complete


def test_a_damaged_event_is_left_out_and_counted(tmp_path: Path) -> None:
    text = json.dumps(two_steps())
    damaged = text.replace('"name": "cudaMemcpyAsync"', '"name": cudaMemcpyAsync')

    profile = read_profile(written(tmp_path, damaged.encode()))

    assert len(profile.calls) == 2
    assert len(profile.events) == 3
    assert "1 damaged events were left out" in profile.notes


def test_more_than_the_stated_size_is_not_read(tmp_path: Path) -> None:
    trace = two_steps()
    trace["traceEvents"] += [host("cpu_op", "aten::view", 300 + i, 1) for i in range(20000)]
    path = written(tmp_path, trace, "a.pt.trace.json.gz")

    profile = read_profile(path, max_bytes=100_000)

    assert len(profile.ops) < 1200
    assert any("unpacks to more than" in note for note in profile.notes)


@pytest.mark.parametrize(("begin_us", "is_absolute"), [(10**14, False), (10**14 + 100, True)])
def test_absolute_times_are_taken_from_the_first_event(
    tmp_path: Path, begin_us: int, is_absolute: bool
) -> None:
    trace = two_steps()
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += begin_us

    profile = read_profile(written(tmp_path, trace))

    note = (
        "times are microseconds since 1970: whole, or in steps of 0.25 µs where they have decimals"
    )
    assert [step.start_ns for step in profile.steps] == [0, 110_000]
    assert (note in profile.notes) is is_absolute


def test_double_ids_are_reported_and_resolved_by_time(tmp_path: Path) -> None:
    trace = two_steps()
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        if arguments.get("External id") == 6:
            arguments["External id"] = 5
        if arguments.get("correlation") == 2:
            arguments["correlation"] = 1

    profile = read_profile(written(tmp_path, trace))

    owners = [profile.op_of(event) for event in profile.events[:2]]
    assert [op.start_ns for op in owners if op is not None] == [10_000, 120_000]
    assert any("1 correlation ids name several calls (1)" in note for note in profile.notes)
    assert any("1 external ids name several operators (5)" in note for note in profile.notes)


def test_a_step_counts_its_data_loader(tmp_path: Path) -> None:
    trace = two_steps()
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace["traceEvents"].append(host("user_annotation", loader, 111, 7))

    profile = read_profile(written(tmp_path, trace))

    assert [step.loader_ns for step in profile.steps] == [0, 7_000]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a trace"),
        (b"hello", "is not a trace"),
        (b'{"a": 1}', "is not a trace"),
        (b"\x00\x01\x02", "is not a trace"),
        (b"\x1f\x8bnot gzip at all", "is not a trace"),
        (b'{"traceEvents": 5}', "is not a trace"),
        (b'{"traceEvents": []}', "holds no operator, runtime call or kernel"),
        (b'{"traceEvents": [1, "x", null]}', "holds no operator, runtime call or kernel"),
        (b'[{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1}]', "holds no operator"),
        (b'[{"ph": "X", "cat": "kernel", "ts": "a", "dur": []}]', "holds no operator"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=words):
        read_profile(path)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"Cannot read .*: No such file"):
        read_profile(tmp_path / "nothing.json")


def test_a_trace_in_memory_must_hold_events() -> None:
    with pytest.raises(TraceError, match="holds no list of traceEvents"):
        read_profile_events({"schemaVersion": 1})


@settings(max_examples=40)
@given(cut=st.integers(0, 2600), junk=st.binary(max_size=6))
def test_no_damage_gives_anything_but_a_profile_or_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    data = json.dumps(two_steps()).encode()
    path = tmp_path_factory.mktemp("damaged") / "a.json"
    path.write_bytes(data[:cut] + junk + data[cut + 3 :])

    try:
        profile = read_profile(path)
    except TraceError:
        return

    assert isinstance(profile, Profile)
    assert all(event.duration_ns >= 0 for event in profile.events)


@needs_traces
@pytest.mark.parametrize(
    ("pattern", "gpu", "steps", "kernels"),
    [
        ("v100__resnet50*", "Tesla V100-DGXS-32GB", 6, 9096),
        ("h100__gaunernst*", "NVIDIA H100 80GB HBM3", 1, 61),
        ("b200__*", "NVIDIA B200", 1, 929),
        ("amd_*", "AMD Radeon Graphics", 2, 16),
        ("nccl_*", "NVIDIA A100-PG509-200", 3, 3774),
        ("worker1*", "Tesla V100-SXM2-32GB", 1, 326),
    ],
)
def test_public_profiles_are_read(pattern: str, gpu: str, steps: int, kernels: int) -> None:
    profile = read_profile(next(TRACES.glob(pattern)))

    assert (profile.device_name, len(profile.steps)) == (gpu, steps)
    assert len(profile.events) == kernels
    assert sum(event.op >= 0 for event in profile.events) >= 0.79 * kernels


# -- damage that once took minutes, or crashed


def with_event(text: str) -> bytes:
    """Two good steps with something else among their events."""
    whole = json.dumps(two_steps())
    at = whole.index('"traceEvents": [') + len('"traceEvents": [')
    return (whole[:at] + text + "," + whole[at:]).encode()


@pytest.mark.parametrize(
    "event",
    [
        '{"ph": "X", "args": ' + "[" * 50_000 + "]" * 50_000 + "}",
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        '{"ph": "X", "cat": "kernel", "ts": ' + "9" * 5000 + ', "dur": 1}',
        '{"ph": "X", "cat": "kernel", "ts": ' + "9" * 4000 + ', "dur": 1}',
        '{"ph": "X", "cat": "kernel", "ts": -Infinity, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "ts": 1e300, "dur": 1}',
        '{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1, "args": {"Input Dims": '
        + "[" * 500 + "]" * 500 + "}}",
    ],
    ids=range(7),
)  # fmt: skip
def test_an_event_that_cannot_be_is_left_out(event: str, tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path, with_event(event)))

    assert [step.kernel_ns for step in profile.steps] == [40_000, 108_000]
    assert len(profile.events) == 3


@pytest.mark.parametrize("start", ["", "[", '{"traceEvents": [', '{"traceEvents": [{"a": 1}, '])
def test_half_a_megabyte_of_opened_objects_is_no_profile(start: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"is not a trace|holds no operator"):
        read_profile(written(tmp_path, (start + '{"' * 2**18).encode()))


def test_the_calls_of_one_id_are_looked_through_once(tmp_path: Path) -> None:
    number = 10_000
    trace = two_steps()
    for at in range(number):
        trace["traceEvents"] += [
            host("cuda_runtime", "cudaLaunchKernel", 300 + at, 1, correlation=9,
                 **{"External id": 8}),
            host("cpu_op", "aten::mm", 300 + at, 1, **{"External id": 8}),
            device("gemm", 300.5 + at, 0.25, 9),
        ]  # fmt: skip
    started = time.process_time()

    profile = read_profile(written(tmp_path, trace))

    assert [event.launch for event in profile.events[-3:]] == [number, number + 1, number + 2]
    assert time.process_time() - started < 20  # minutes where each is compared with each


def test_operators_nested_in_thousands_are_looked_through_once(tmp_path: Path) -> None:
    number = 10_000
    trace = two_steps()
    for at in range(number):
        trace["traceEvents"] += [
            host("cpu_op", f"aten::op{at}", 1000 + at, number + 10 - at),
            host("cuda_runtime", "cudaLaunchKernel", 1000 + 3 * number + at, 1, correlation=at + 9),
            device("gemm", 1000 + 4 * number + at, 0.25, at + 9),
        ]
    trace["traceEvents"].append(host("cpu_op", "aten::all", 999, 9 * number))
    started = time.process_time()

    profile = read_profile(written(tmp_path, trace))

    owners = {profile.ops[event.op].name for event in profile.events[-number:]}
    assert owners == {"aten::all"}
    assert time.process_time() - started < 20  # minutes where each walks through all around it
