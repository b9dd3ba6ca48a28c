"""Events as lines of JSON."""

from __future__ import annotations

import json

import pytest

from neusight.output.trace.events import EventLog, compact_json, joined, members


def test_an_event_is_the_json_that_its_parts_say() -> None:
    log = EventLog(rank=1, device=3, base_ns=1_000)

    log.complete("cpu_op", 'odd "name"\n→', "autograd", 2_500, 4_001, members({"Ev Idx": 7}))
    log.on_stream("kernel", "gemm", 7, 3_000, 3_001, "")
    log.instant("cpu_instant_event", "[memory]", 5_000, 4_001, joined("", '"Bytes":512', ""))

    op, kernel, moment = (json.loads(line) for line in log.lines)
    assert op == {
        "ph": "X",
        "cat": "cpu_op",
        "name": 'odd "name"\n→',
        "pid": 4001,
        "tid": 4002,
        "ts": 1.5,
        "dur": 1.501,
        "args": {"Ev Idx": 7},
    }
    assert (kernel["pid"], kernel["tid"], kernel["dur"], kernel["args"]) == (3, 7, 0.001, {})
    assert (moment["s"], moment["ts"], moment["args"]) == ("t", 4.0, {"Bytes": 512, "Ev Idx": 0})


def test_an_arrow_has_its_number_at_both_ends() -> None:
    log = EventLog(rank=0, device=0, base_ns=0)

    log.arrow_start("ac2g", 5, 1_000, "main")
    log.arrow_end("ac2g", 5, 2_000, 0, 7)

    start, end = (json.loads(line) for line in log.lines)
    assert (start["ph"], start["id"], start["pid"], start["tid"]) == ("s", 5, 4000, 4000)
    assert (end["ph"], end["id"], end["pid"], end["tid"], end["bp"]) == ("f", 5, 0, 7, "e")


def test_lines_are_as_compact_as_json_makes_them() -> None:
    log = EventLog(rank=0, device=0, base_ns=0)

    log.complete("cpu_op", "aten::mm", "main", 10**15 + 1, 10**15 + 2_001, '"External id":1')

    (line,) = log.lines
    assert line == compact_json(json.loads(line))


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        members({"waves": float("nan")})
