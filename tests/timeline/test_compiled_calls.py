"""A call of compiled code on the host: what torch's profiler shows, and how long it takes."""

from __future__ import annotations

import pytest

from neusight.recording.recording import COMPILED_CODE, Mark
from neusight.timeline.compiled_calls import begin_compiled, compiled_call_ns, end_compiled
from neusight.timeline.host import PLAIN
from neusight.timeline.host_lane import HostLane


@pytest.mark.parametrize("name", COMPILED_CODE)
def test_a_call_takes_as_long_whether_it_is_shown_or_not(name: str) -> None:
    begin, end = Mark("compiled_begin", name, "7 0/0"), Mark("compiled_end", name, "7 0/0")
    ends = []
    for keep in (True, False):
        lane = HostLane(keep=keep, node_ns=0)
        begin_compiled(lane, begin, PLAIN)
        end_compiled(lane, end, PLAIN)
        ends.append(lane.now_ns)

    assert ends == [compiled_call_ns(begin, PLAIN)] * 2


def test_what_is_known_of_no_frame_has_no_number() -> None:
    lane = HostLane(keep=True, node_ns=0)

    begin_compiled(lane, Mark("compiled_begin", COMPILED_CODE[0], "7"), PLAIN)

    assert [span.name for span in lane.spans] == [
        "TorchDynamo Cache Lookup",
        "Torch-Compiled Region",
        "AOTDispatcher Runtime Wrapper Prologue",
    ]


def test_regions_within_regions_end_by_themselves() -> None:
    lane = HostLane(keep=True, node_ns=0)
    marks = [Mark("compiled_begin", COMPILED_CODE[1], f"7 {frame}") for frame in ("0/0", "1/0")]

    for mark in marks:
        begin_compiled(lane, mark, PLAIN)
    for mark in reversed(marks):
        end_compiled(lane, mark, PLAIN)

    assert lane.parent == -1
    by_name = {span.name: span for span in lane.spans}
    outer = by_name["Torch-Compiled Region: 0/0"]
    assert by_name["Torch-Compiled Region: 1/0"].end_ns <= outer.end_ns
