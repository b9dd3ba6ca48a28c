"""The host's clock, and what encloses its ops."""

from __future__ import annotations

from dataclasses import replace

from neusight.recording.recording import MathMode, OpCall, OpSignature
from neusight.timeline.host_lane import HostLane


def backward(node: str, sequence_nr: int) -> OpCall:
    signature = OpSignature("aten::mm", "default", (), ())
    return OpCall(signature, MathMode(), phase="backward", node=node, sequence_nr=sequence_nr)


def shown(lane: HostLane) -> list[tuple[str, int, int, int]]:
    return [(span.name, span.start_ns, span.end_ns, span.parent) for span in lane.spans]


def test_a_lane_that_keeps_no_spans_only_knows_what_time_it_is() -> None:
    lane = HostLane(keep=False, node_ns=10)

    assert (lane.runtime("sync", "cudaDeviceSynchronize", 5), lane.reserve()) == (-1, -1)
    assert lane.enter_node(backward("MmBackward0", 1), 5) == 5
    assert (lane.now_ns, lane.spans) == (15, [])


def test_spans_lie_in_what_is_open() -> None:
    lane = HostLane(keep=True, node_ns=10)

    lane.begin("module", "layers.0", "Linear")
    lane.now_ns = 4
    lane.runtime("event", "cudaEventRecord", 3)
    lane.end("module", "layers.0")

    assert shown(lane) == [("layers.0", 0, 7, -1), ("cudaEventRecord", 4, 7, 0)]
    assert [span.correlation for span in lane.spans] == [0, 1]


def test_what_an_exception_left_open_ends_with_what_encloses_it() -> None:
    lane = HostLane(keep=True, node_ns=10)
    lane.begin("module", "outer", "A")
    lane.begin("module", "inner", "B")
    lane.now_ns = 9

    lane.end("module", "never begun")
    assert lane.parent == 1
    lane.end("module", "outer")

    assert lane.parent == -1
    assert [span.end_ns for span in lane.spans] == [9, 9]


def test_ops_of_one_autograd_node_share_its_two_spans() -> None:
    lane = HostLane(keep=True, node_ns=10)

    first = lane.enter_node(backward("MmBackward0", 7), 0)
    lane.now_ns += 20
    second = lane.enter_node(backward("MmBackward0", 7), 30)
    lane.enter_node(backward("AddBackward0", 6), 30)

    assert (first, second) == (10, 30)
    assert shown(lane)[:2] == [
        ("autograd::engine::evaluate_function: MmBackward0", 0, 30, -1),
        ("MmBackward0", 5, 30, 0),
    ]
    assert len(lane.spans) == 4


def test_another_thread_leaves_the_node_open_and_lies_in_nothing() -> None:
    lane = HostLane(keep=True, node_ns=10)
    node = backward("MmBackward0", 7)
    elsewhere = replace(node, phase="forward", node="", sequence_nr=None, thread=1)

    lane.enter_node(node, 0)
    assert lane.enter_node(elsewhere, 10) == 10
    lane.finish(lane.reserve(), elsewhere, 10)
    lane.close_node(thread=1)
    lane.runtime("event", "cudaEventRecord", 3, thread=1)
    assert lane.enter_node(node, 20) == 20
    lane.close_node(thread=0)

    assert [(span.kind, span.thread, span.parent) for span in lane.spans] == [
        ("node", "autograd", -1), ("node", "autograd", 0),
        ("op", "thread 1", -1), ("event", "thread 1", -1),
    ]  # fmt: skip
    assert [span.end_ns for span in lane.spans[:2]] == [13, 13]


def test_allocations_of_the_next_op_move_into_its_node() -> None:
    lane = HostLane(keep=True, node_ns=10)
    lane.memory_ns = [2, 6, 8]

    lane.enter_node(backward("MmBackward0", 1), 5)

    assert lane.memory_ns == [2, 16, 18]


def test_a_step_ends_what_is_open_and_opens_it_again() -> None:
    lane = HostLane(keep=True, node_ns=10)
    lane.begin("annotation", "epoch", "")
    lane.now_ns = 12

    lane.end_step()
    lane.now_ns = 20
    lane.close_all()

    assert shown(lane) == [("epoch", 0, 12, -1), ("epoch", 12, 20, -1)]
