"""Events as lines of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neusight.output.trace.events import EventLog, WrittenRows, compact_json, joined, members


def events_of(log: EventLog) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(f"[{','.join(log.texts())}]")
    return events


def test_an_event_is_the_json_that_its_parts_say() -> None:
    log = EventLog(rank=1, device=3, base_ns=1_000)

    log.operator(
        "cpu_op", 'odd "name"\n→', "autograd", 2_500, 4_001, 5, members({"Input Dims": []}),
        number=9, forward_thread=1,
    )  # fmt: skip
    log.kernel("kernel", "gemm", 7, 3_000, 3_001, 5, '"stream":7,', 12, ',"grid":[1,1,1]')
    log.instant("cpu_instant_event", "[memory]", 5_000, 4_001, joined("", '"Bytes":512', ""))

    op, kernel, moment = events_of(log)
    assert op == {
        "ph": "X",
        "cat": "cpu_op",
        "name": 'odd "name"\n→',
        "pid": 4001,
        "tid": 4002,
        "ts": 1.5,
        "dur": 1.501,
        "args": {
            "External id": 5,
            "Record function id": 0,
            "Sequence number": 9,
            "Fwd thread id": 1,
            "Input Dims": [],
            "Ev Idx": 0,
        },
    }
    assert (kernel["pid"], kernel["tid"], kernel["dur"]) == (3, 7, 0.001)
    assert list(kernel["args"].items()) == [
        ("External id", 5),
        ("stream", 7),
        ("correlation", 12),
        ("grid", [1, 1, 1]),
    ]
    assert (moment["s"], moment["ts"], moment["args"]) == ("t", 4.0, {"Bytes": 512, "Ev Idx": 1})


def test_an_arrow_has_its_number_at_both_ends() -> None:
    log = EventLog(rank=0, device=0, base_ns=0)

    log.arrow_start("ac2g", 5, 1_000, "main")
    log.arrow_end("ac2g", 5, 2_000, 0, 7)

    start, end = events_of(log)
    assert (start["ph"], start["id"], start["pid"], start["tid"]) == ("s", 5, 4000, 4000)
    assert (end["ph"], end["id"], end["pid"], end["tid"], end["bp"]) == ("f", 5, 0, 7, "e")


def test_lines_are_as_compact_as_json_makes_them() -> None:
    log = EventLog(rank=0, device=0, base_ns=0)

    log.operator("cpu_op", "aten::mm", "main", 10**15 + 1, 10**15 + 2_001, 1, "")

    (line,) = log.texts()
    assert line == compact_json(json.loads(line))


def test_rows_that_are_written_again_have_the_numbers_that_follow() -> None:
    def write(log: EventLog, start_ns: int, launch: int) -> None:
        op, function = log.new_id(), log.new_function()
        log.function("forward", "main", start_ns, start_ns + 900, function, None, '"Module":1')
        log.function("inner", "main", start_ns, start_ns + 9, log.new_function(), function, '"":0')
        number = log.num_sequences + 4
        log.operator("cpu_op", "mm", "main", start_ns, start_ns + 90, op, "", number=number)
        log.call("cuda_runtime", "launch", "main", start_ns, start_ns + 5, op, "", launch)
        log.arrow_start("ac2g", launch, start_ns, "main")
        log.kernel("kernel", "gemm", 7, start_ns, start_ns + 7, op, "", launch, "")
        log.arrow_start("fwdbwd", log.new_flow(), start_ns, "main")
        log.range_on_stream("gpu_user_annotation", "mine", 7, start_ns, start_ns + 9, op)
        log.instant("cpu_instant_event", "[memory]", start_ns, 4000, '"Bytes":512')
        log.num_sequences += 5

    def frame(log: EventLog, start_ns: int) -> None:
        log.operator("user_annotation", "step", "main", start_ns, start_ns + 1, log.new_id(), "")

    fresh, again = (EventLog(rank=0, device=0, base_ns=1) for _ in range(2))

    for log in (fresh, again):
        frame(log, 10)
        first_row, begin = log.num_rows(), log.counters()
        write(log, 1_000, 3)
        rows = WrittenRows(first_row, log.num_rows(), begin, log.counters())
        frame(log, 4_000)
        if log is fresh:
            write(log, 5_000, 11)
        else:
            log.repeat(rows, time_ns=4_000, correlation=8)
        frame(log, 9_000)

    assert ",".join(again.texts()) == ",".join(fresh.texts())


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        members({"waves": float("nan")})
