"""Snapshots are read by torch's own reader of them."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

import neusight
from neusight.memory.placement import ALLOCATOR_OPTION
from neusight.memory.snapshot import History, frames_of, memory_snapshot
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Alloc, Entry, Free, Recording, Step, StorageRef

MIB = 2**20

#: What torch documents of a snapshot (torch.cuda.memory._snapshot).
SEGMENT_KEYS = {
    "address", "total_size", "stream", "segment_type", "segment_pool_id", "allocated_size",
    "active_size", "blocks",
}  # fmt: skip
BLOCK_KEYS = {"size", "requested_size", "address", "state", "frames"}
#: What its own unpickler reads (unpickle in torch/utils/viz/MemoryViz.js).
OPCODES_OF_THE_PAGE = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT",
    "BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1",
    "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO",
    "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip
TRACE_KEYS = {"action", "addr", "frames", "size", "stream"}


def train(steps: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 8)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    with neusight.forecast_on("H100", with_stack=True) as found:
        held = train()
    assert held is not None
    return found


def read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        found: dict[str, Any] = pickle.load(file)
    return found


def test_torch_reads_what_is_exported(forecast: neusight.Forecast, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"

    forecast.export_memory_snapshot(path)

    snapshot = read(path)
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {_memory_viz.Bytes(total)}" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    assert "MemoryViz.js" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)
    text = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "optimizer optimizer_state" in text
    assert "(cuBLAS)" in text
    assert Path(__file__).name in text


def test_the_page_knows_every_opcode(forecast: neusight.Forecast, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"

    forecast.export_memory_snapshot(path)

    used = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert used <= OPCODES_OF_THE_PAGE


def test_segments_and_entries_have_what_torch_documents(forecast: neusight.Forecast) -> None:
    snapshot = memory_snapshot(forecast.recording, forecast.gpu)

    segments, trace = snapshot["segments"], snapshot["device_traces"][0]
    assert all(set(segment) >= SEGMENT_KEYS for segment in segments)
    assert all(set(block) >= BLOCK_KEYS for segment in segments for block in segment["blocks"])
    assert all(set(entry) >= TRACE_KEYS for entry in trace)
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


def test_categories_are_those_of_the_profiler_and_the_one_that_the_page_needs(
    forecast: neusight.Forecast,
) -> None:
    trace = memory_snapshot(forecast.recording, forecast.gpu)["device_traces"][0]

    categories = {entry["category"] for entry in trace if "category" in entry}

    assert categories == {
        "unknown", "parameter", "gradient", "optimizer_state", "activation", "temporary",
        "workspace",
    }  # fmt: skip


def test_history_ends_in_the_state_that_is_shown(forecast: neusight.Forecast) -> None:
    snapshot = memory_snapshot(forecast.recording, forecast.gpu)

    live: dict[int, int] = {}
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    shown = {
        block["address"]: block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert live == shown


def test_peak_of_the_history_is_the_forecasts(forecast: neusight.Forecast) -> None:
    reached = most = 0
    for entry in memory_snapshot(forecast.recording, forecast.gpu)["device_traces"][0]:
        rounded = -(-entry["size"] // 512) * 512
        reached += {"alloc": rounded, "free_completed": -rounded}.get(entry["action"], 0)
        most = max(most, reached)

    assert most == forecast.peak_memory_bytes


def test_times_are_those_of_the_timeline(forecast: neusight.Forecast, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"

    forecast.export_memory_snapshot(path)

    times = [entry["time_us"] for entry in read(path)["device_traces"][0]]
    assert times == sorted(times)
    assert 0 < times[-1] <= forecast.latency_us


def test_the_script_can_take_its_own(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    with neusight.forecast_on("H100"):
        torch.cuda.memory._record_memory_history(max_entries=100_000)
        held = train()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._dump_snapshot(str(path))
        dumped = read(path)
        allocated = torch.cuda.memory_allocated()
        segments = torch.cuda.memory_snapshot()

    assert held is not None
    assert dumped == snapshot
    assert sum(segment["allocated_size"] for segment in segments) == allocated
    assert {entry["action"] for entry in snapshot["device_traces"][0]} == {
        "alloc", "free_requested", "free_completed", "segment_alloc",
    }  # fmt: skip


def test_without_history_there_is_only_the_state() -> None:
    with neusight.forecast_on("H100"):
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory._record_memory_history(enabled=None)
        held = train(1)
        snapshot = torch.cuda.memory._snapshot()

    assert held is not None
    assert snapshot["device_traces"] == [[]]
    assert snapshot["segments"]


def test_history_keeps_the_newest() -> None:
    history = History(max_entries=2)

    for size in (1, 2, 3):
        history.ran_out(size, 0)

    assert [entry["size"] for entry in history.entries] == [2, 3]


def test_frames_are_op_module_use_and_lines() -> None:
    alloc = Alloc(0, 4, "net.fc", "aten::mm", "backward", stack=("net.py:7", "train.py:12"))

    assert [(frame["name"], frame["filename"], frame["line"]) for frame in frames_of(alloc)] == [
        ("aten::mm", "??", 0),
        ("net.fc", "??", 0),
        ("backward activation", "??", 0),
        ("net.py", "net.py", 7),
        ("train.py", "train.py", 12),
    ]


def test_equal_recordings_give_equal_bytes(tmp_path: Path) -> None:
    entries: tuple[Entry, ...] = (Alloc(0, 3 * MIB), Alloc(1, 9), Free(StorageRef(0, 0)))
    program = Recording((Step("eval", entries),), gpu="H100", torch_version="2.13.0")

    first, second = (pickle.dumps(memory_snapshot(program, find_gpu("H100"))) for _ in range(2))

    assert first == second


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {"max_split_size": -1, "garbage_collection_threshold": 0.0,
              "expandable_segments": False}),
        ("max_split_size_mb:64,garbage_collection_threshold:0.5,expandable_segments:True",
         {"max_split_size": 64 * MIB, "garbage_collection_threshold": 0.5,
          "expandable_segments": True}),
    ],
)  # fmt: skip
def test_settings_of_the_allocator_are_those_of_the_program(
    text: str, settings: dict[str, object]
) -> None:
    step = Step("train", (Alloc(0, MIB),))
    recording = Recording((step,), "H100", "2.13", options={ALLOCATOR_OPTION: text})

    found = memory_snapshot(recording, find_gpu("H100"))["allocator_settings"]

    assert found == {"PYTORCH_CUDA_ALLOC_CONF": text, **settings}


def test_a_snapshot_of_two_tensors_is_this() -> None:
    """One of 1000 bytes that is freed, and one of 3 MiB of the backward pass."""
    entries: tuple[Entry, ...] = (
        Alloc(0, 1000, "net", "aten::mm", stack=("train.py:12",)),
        Alloc(1, 3 * MIB, "", "aten::mm", "backward"),
        Free(StorageRef(0, 0)),
    )
    program = Recording((Step("train", entries),), gpu="H100", torch_version="2.13.0")
    small, large = 0x7F0000000000, 0x7F0000000000 + 2 * MIB
    segment = {"device": 0, "stream": 0, "segment_pool_id": (0, 0), "is_expandable": False}
    entry = {"stream": 0, "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0)}
    op = {"filename": "??", "line": 0, "name": "aten::mm"}
    first = [
        op,
        {"filename": "??", "line": 0, "name": "net"},
        {"filename": "??", "line": 0, "name": "forward activation"},
        {"filename": "train.py", "line": 12, "name": "train.py"},
    ]
    second = [op, {"filename": "??", "line": 0, "name": "backward activation"}]

    found = memory_snapshot(program, find_gpu("H100"), times_ns=(5000, 6000, 7999))

    def row(action: str, addr: int, size: int, time_us: int, **more: Any) -> dict[str, Any]:
        return {
            **entry, "action": action, "addr": addr, "size": size, "time_us": time_us,
            "frames": [], **more,
        }  # fmt: skip

    def block(address: int, size: int, requested: int, frames: list[Any]) -> dict[str, Any]:
        state = "active_allocated" if requested else "inactive"
        sizes = {"address": address, "size": size, "requested_size": requested}
        return {**sizes, "state": state, "frames": frames}

    assert found["segments"] == [
        {
            **segment, "address": small, "total_size": 2 * MIB, "allocated_size": 0,
            "active_size": 0, "requested_size": 0, "segment_type": "small", "frames": [],
            "blocks": [block(small, 2 * MIB, 0, [])],
        },
        {
            **segment, "address": large, "total_size": 20 * MIB, "allocated_size": 3 * MIB,
            "active_size": 3 * MIB, "requested_size": 3 * MIB, "segment_type": "large",
            "frames": [],
            "blocks": [
                block(large, 3 * MIB, 3 * MIB, second),
                block(large + 3 * MIB, 17 * MIB, 0, []),
            ],
        },
    ]  # fmt: skip
    assert found["device_traces"] == [
        [
            row("segment_alloc", small, 2 * MIB, 5, category="unknown"),
            row("alloc", small, 1000, 5, frames=first, category="activation"),
            row("segment_alloc", large, 20 * MIB, 6, category="unknown"),
            row("alloc", large, 3 * MIB, 6, frames=second, category="temporary"),
            row("free_requested", small, 1000, 7, frames=first),
            row("free_completed", small, 1000, 7, frames=first),
        ]
    ]
    assert memory_snapshot(program, find_gpu("H100"))["device_traces"][0][-1]["time_us"] == 0


@pytest.mark.parametrize(("free_bytes", "shown"), [(-1, 0), (0, 0), (7, 7)])
def test_what_could_not_be_served_is_in_the_history(free_bytes: int, shown: int) -> None:
    history = History()

    history.ran_out(9, free_bytes)

    assert list(history.entries) == [
        {"action": "oom", "size": 9, "device_free": shown, "stream": 0, "time_us": 0, "frames": []}
    ]
