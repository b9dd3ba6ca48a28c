"""Events of a trace are sorted by kind and tied to their launches and operators."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.integrations.profiles.reading.builder import Builder, used_events
from neusight.integrations.profiles.reading.notes import Notes
from neusight.predictors.published.wave_scaling import LaunchSize
from profile_events import host_event as event


def built(*events: dict[str, Any]) -> tuple[Builder, list[str]]:
    builder, notes = Builder(100.0, False), Notes()
    for item in events:
        builder.add(item)
    builder.finish(notes)
    return builder, list(notes.texts)


def test_a_kernel_has_its_place_launch_and_size() -> None:
    size = {"grid": [4, 3, 2], "block": [32, 2, 1], "registers per thread": 40, "shared memory": 7}
    builder, _ = built(
        event("kernel", "k", 101.5, 2.25, device=3, stream=9, correlation=5, bytes=6, **size),
        event("gpu_memcpy", "c", 101.0, grid=[0, 1, 1], block=[1, 1, 1]),
        event("gpu_memset", "s", 102.0, -1.0, device=0, stream=0, grid=[1], block=[8]),
    )

    assert [(e.kind, e.start_ns, e.duration_ns, e.device, e.stream) for e in builder.events] == [
        ("memcpy", 1000, 1000, 1, 1), ("kernel", 1500, 2250, 3, 9), ("memset", 2000, 0, 0, 0),
    ]  # fmt: skip
    assert [(e.correlation, e.num_bytes, e.size) for e in builder.events] == [
        (None, 0, None), (5, 6, LaunchSize(24, 64, 40, 7)), (None, 0, LaunchSize(1, 8, 0, 0)),
    ]  # fmt: skip


def test_kernels_are_tied_to_the_last_call_of_their_id_and_the_op_around_it() -> None:
    builder, notes = built(
        event("cpu_op", "outer", 100, 50, **{"External id": 1}),
        event("cpu_op", "inner", 105, 10, **{"External id": 2}),
        event("cpu_op", "later", 130, 10),
        event("cuda_runtime", "launch", 106, correlation=7, **{"External id": 2}),
        event("cuda_runtime", "launch", 120, correlation=8),
        event("cuda_runtime", "launch", 131, correlation=8),
        event("kernel", "a", 140, correlation=7),
        event("kernel", "b", 125, correlation=8),
        event("kernel", "c", 150, correlation=8),
        event("kernel", "d", 151, correlation=9),
        event("kernel", "e", 152, **{"External id": 1}),
    )

    ops, calls = [op.name for op in builder.ops], [call.start_ns for call in builder.calls]
    assert [
        (e.name, calls[e.launch] if e.launch >= 0 else None, ops[e.op] if e.op >= 0 else None)
        for e in builder.events
    ] == [
        ("b", 20_000, "outer"), ("a", 6_000, "inner"), ("c", 31_000, "later"), ("d", None, None),
        ("e", None, "outer"),
    ]  # fmt: skip
    assert [note.partition(":")[0] for note in notes] == [
        "1 correlation ids name several calls (8)",
        "2 of 5 kernels and copies have no launch call",
        "1 of 5 kernels and copies have no operator",
        "operators have no shapes (record_shapes=True records them)",
    ]


def test_what_was_launched_before_the_trace_lies_before_the_first_launch_of_its_stream() -> None:
    builder, notes = built(
        event("cuda_runtime", "launch", 110, correlation=7),
        event("kernel", "early", 105, 2000.0, stream=1),
        event("kernel", "other stream", 108, 500.0, stream=2),
        event("kernel", "later there", 111, stream=2),
        event("kernel", "first", 120, stream=1, correlation=7),
        event("kernel", "lost", 130, stream=1),
    )

    assert {builder.events[at].name for at in builder.early} == {"early", "other stream"}
    assert notes[0] == (
        "2 of 5 kernels and copies (2.50 ms) were launched before the trace begins: they are left "
        "out of its steps"
    )
    assert notes[1].startswith("2 of 5 kernels and copies have no launch call")


@pytest.mark.parametrize(
    ("number", "shown"), [(2, "1, 2"), (3, "1, 2, 3"), (4, "1, 2, 3, …"), (9, "1, 2, 3, …")]
)
def test_three_ids_are_named(number: int, shown: str) -> None:
    _, notes = built(
        *(event("cuda_runtime", "launch", 110, correlation=at + 1) for at in range(number)),
        *(event("cuda_runtime", "launch", 111, correlation=at + 1) for at in range(number)),
        *(event("cpu_op", "op", 110, **{"External id": at + 1}) for at in range(number)),
        *(event("cpu_op", "op", 111, **{"External id": at + 1}) for at in range(number)),
    )

    assert notes[0].startswith(f"{number} correlation ids name several calls ({shown}): kernels")
    assert notes[1].startswith(f"{number} external ids name several operators ({shown}): kernels")


def test_only_what_a_profile_is_made_of_is_used() -> None:
    wanted = [event("Kernel", "k", 1), event("Operator", "o", 1), {"name": "[memory]"}]
    unused = [event("python_function", "f", 1), {"ph": "s", "cat": "kernel"}, "text", 3]

    assert used_events([*wanted, *unused]) == wanted
