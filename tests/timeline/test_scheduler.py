"""Time passes as on a real host and GPU: cases worked by hand, and properties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.physical_time import Bound
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
from neusight.timeline.host import COMPILED_OP_SHARE, PLAIN, HostProfile
from neusight.timeline.scheduler import GRAPH_LAUNCH, Scheduler
from neusight.timeline.spans import KernelSpan, Timeline
from neusight.timeline.steady import bound_of
from neusight.timeline.steps import schedule
from neusight.timeline.streams import LAUNCH_QUEUE_DEPTH
from timelines import COMMUNICATION, on_communicator

#: Round numbers: an op 8 us before, 2 us after its launch of 3 us.
ROUND = replace(
    PLAIN,
    name="round",
    op_us=10.0,
    view_us=1.0,
    collective_us=10.0,
    extra_kernel_us=1.0,
    backward_share=1.0,
    node_us=4.0,
    module_us=2.0,
    annotation_us=2.0,
    allocate_us=1.0,
    free_us=0.0,
    launch_us=3.0,
    memcpy_us=3.0,
    event_us=0.0,
    synchronize_us=5.0,
    launch_latency_us=2.0,
    kernel_gap_us=1.0,
)
MATH = MathMode()
SPEC = TensorSpec((1,), (1,), "float32")
SIGNATURES: dict[str, OpSignature] = {}


def op(
    name: str, *, stream: int = 0, phase: Phase = "forward", node: str = "", nr: int | None = None
) -> OpCall:
    """An op named "<what>_<us>": `kernel_5` launches 5 us, `reduce_5` a collective, `view` none."""
    signature = SIGNATURES.setdefault(name, OpSignature(f"test::{name}", "default", (), (SPEC,)))
    return OpCall(signature, MATH, "", phase, stream, nr, node)


def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    what, _, microseconds = call.signature.op.removeprefix("test::").partition("_")
    if what == "view":
        return ()
    latency = float(microseconds)
    bound: Bound = "compute" if what == "math" else "memory"
    estimate = Estimate(latency, latency, latency, bound, "physics", "test")
    if what == "reduce":
        return ((Kernel.collective("all_reduce", 1024, 8), estimate),)
    if what == "gemm":
        return ((Kernel.gemm(64, 64, 64, dtype="float32"), estimate),)
    return ((Kernel.elementwise("relu", 1024, dtype="float32"), estimate),)


def timeline_of(*entries: Entry, count: int = 1, host: HostProfile = ROUND) -> Timeline:
    recording = Recording((Step("train", entries, count),), gpu="H100", torch_version="2")
    return schedule(recording, price, host)


def times(timeline: Timeline) -> list[tuple[int, int, int]]:
    return [(k.stream, k.start_ns, k.end_ns) for k in timeline.kernels]


def test_kernel_starts_a_latency_after_its_launch_on_an_idle_stream() -> None:
    timeline = timeline_of(op("kernel_100"))

    launch = next(span for span in timeline.host if span.kind == "launch")

    assert (launch.start_ns, launch.end_ns) == (8_500, 11_500)
    assert times(timeline) == [(0, 13_500, 113_500)]
    assert timeline.end_ns == 113_500


def test_queued_kernels_follow_each_other_after_a_gap() -> None:
    timeline = timeline_of(op("kernel_100"), op("kernel_50"))

    assert times(timeline) == [(0, 13_500, 113_500), (0, 114_500, 164_500)]
    assert timeline.steps[0].stream_gaps_ns == 1_000


def test_streams_run_side_by_side_until_an_event_orders_them() -> None:
    entries = (
        op("kernel_100"),
        EventRecord(event=1, stream=0),
        op("kernel_10", stream=5),
        EventWait(event=1, stream=5),
        op("kernel_10", stream=5),
    )

    timeline = timeline_of(*entries)

    first, second, third = times(timeline)
    assert second[1] < first[2]
    assert third[1] == first[2]


def test_synchronize_makes_the_host_wait() -> None:
    timeline = timeline_of(op("kernel_100"), Synchronize("synchronize"))

    sync = timeline.host[-1]

    assert (sync.kind, sync.name) == ("sync", "cudaDeviceSynchronize")
    assert (sync.start_ns, sync.end_ns) == (13_000, 113_500 + 5_000)
    assert timeline.steps[0].host_ns == 13_000 + 5_000


def test_a_wait_inside_an_op_belongs_to_the_op() -> None:
    timeline = timeline_of(op("kernel_100"), Synchronize("item", stream=0))

    item, _, sync = timeline.host

    assert (sync.name, timeline.host[sync.parent]) == ("cudaStreamSynchronize", item)
    assert item.end_ns == sync.end_ns


def test_the_clock_of_an_event_is_when_its_stream_gets_there() -> None:
    scheduler = Scheduler(price, ROUND)

    scheduler.feed([op("kernel_100"), EventRecord(7, 0)])

    assert scheduler.streams.event_ns(7) == 113_500
    assert scheduler.host_ns == 13_000
    assert scheduler.device_ns == 113_500


def test_the_live_clock_and_the_timeline_agree() -> None:
    entries: list[Entry] = [
        Mark("module_begin", "net", "Net"),
        Alloc(0, 512, op="test::kernel_7"),
        op("kernel_7"),
        op("kernel_9"),
        Alloc(1, 512, op="test::kernel_9"),
        op("view"),
        Mark("module_end", "net", "Net"),
        op("kernel_9", phase="backward", node="ReluBackward0", nr=1),
        Free(StorageRef(0, 0)),
        Synchronize("item", stream=0),
        HostWork("load", 3.0),
        Synchronize("synchronize"),
    ]

    live = Scheduler(price, PLAIN)
    live.feed(entries)
    kept = Scheduler(price, PLAIN, keep_spans=True)
    kept.feed(entries)

    assert (live.host_ns, live.device_ns) == (kept.host_ns, kept.device_ns)


def test_a_full_launch_queue_blocks_the_host() -> None:
    """The host may be 1024 launches ahead; the next waits until the first kernel has run."""
    timeline = timeline_of(*[op("kernel_100")] * (LAUNCH_QUEUE_DEPTH + 1))

    first, last = timeline.kernels[0], timeline.host[-1]

    assert last.kind == "launch"
    assert last.start_ns > first.end_ns  # 1024 launches of 13 us take longer than the first kernel
    behind = timeline_of(*[op("kernel_100000")] * (LAUNCH_QUEUE_DEPTH + 1))
    assert behind.host[-1].end_ns == behind.kernels[0].end_ns + 3_000


def test_a_collective_waits_for_its_stream_and_the_stream_for_it() -> None:
    timeline = timeline_of(
        op("kernel_100"), *on_communicator(op("reduce_50"), 0), EventWait(2, 0), op("kernel_10")
    )

    before, collective, after = times(timeline)

    assert collective == (COMMUNICATION, before[2], before[2] + 50_000)
    assert after[1] == collective[2]
    assert timeline.steps[0].exposed_communication_ns == 50_000


def test_a_collective_overlaps_until_it_is_waited_for() -> None:
    timeline = timeline_of(
        *on_communicator(op("reduce_500"), 0), op("kernel_100"), EventWait(2, 0), op("kernel_10")
    )

    collective, overlapping, after = times(timeline)

    assert overlapping[1] < collective[2]
    assert after[1] == collective[2]
    step = timeline.steps[0]
    assert step.communication_ns == 500_000
    assert step.exposed_communication_ns == 400_000
    assert bound_of(step, timeline) == "communication"


def test_backward_ops_of_one_node_share_its_spans() -> None:
    timeline = timeline_of(
        op("kernel_1", phase="backward", node="MmBackward0", nr=3),
        op("kernel_2", phase="backward", node="MmBackward0", nr=3),
        op("kernel_3", phase="backward", node="torch::autograd::AccumulateGrad"),
        op("kernel_4"),
    )

    tops = [span for span in timeline.host if span.kind in ("node", "op")]

    assert [(span.name, span.thread) for span in tops] == [
        ("autograd::engine::evaluate_function: MmBackward0", "autograd"),
        ("MmBackward0", "autograd"),
        ("test::kernel_1", "autograd"),
        ("test::kernel_2", "autograd"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "autograd"),
        ("torch::autograd::AccumulateGrad", "autograd"),
        ("test::kernel_3", "autograd"),
        ("test::kernel_4", "main"),
    ]


def test_modules_and_annotations_enclose_their_ops() -> None:
    timeline = timeline_of(
        Mark("annotation_begin", "part"),
        Mark("module_begin", "net.relu", "ReLU"),
        op("kernel_1"),
        Mark("module_end", "net.relu", "ReLU"),
        Mark("annotation_end", "part"),
        op("kernel_1"),
    )

    part, module, inside, _, outside, _ = timeline.host

    assert (part.parent, module.parent, inside.parent, outside.parent) == (-1, 0, 1, -1)
    assert module.duration_ns == 2_000 + 13_000
    assert part.duration_ns == 2_000 + module.duration_ns


def test_an_annotation_across_steps_is_shown_in_each() -> None:
    recording = Recording(
        (
            Step("train", (Mark("annotation_begin", "epoch"), op("kernel_1"))),
            Step("train", (op("kernel_2"), Mark("annotation_end", "epoch"))),
        ),
        gpu="H100",
        torch_version="2",
    )

    timeline = schedule(recording, price, ROUND)

    epochs = [position for position, span in enumerate(timeline.host) if span.name == "epoch"]
    assert len(epochs) == 2
    assert timeline.steps[0].first_host <= epochs[0] < timeline.steps[0].last_host
    assert timeline.steps[1].first_host <= epochs[1] < timeline.steps[1].last_host


def test_allocations_lie_inside_the_op_that_makes_them() -> None:
    timeline = timeline_of(
        Alloc(0, 512, op="test::kernel_1"),
        op("kernel_1"),
        op("kernel_2"),
        Alloc(1, 512, op="test::kernel_2"),
    )

    first, second = [span for span in timeline.host if span.kind == "op"]

    assert first.start_ns < timeline.memory_ns[0] < first.end_ns
    assert second.start_ns < timeline.memory_ns[1] < second.end_ns


def test_a_batch_of_one_is_bound_by_the_host() -> None:
    timeline = timeline_of(*[op("kernel_3")] * 20, count=10)

    step = timeline.steps[-1]

    assert bound_of(step, timeline) == "host"
    assert step.latency_ns == 20 * 13_000
    assert step.represents == 8


@pytest.mark.parametrize(("name", "bound"), [("math_100", "compute"), ("kernel_100", "memory")])
def test_long_kernels_are_bound_by_what_binds_them(name: str, bound: str) -> None:
    timeline = timeline_of(*[op(name)] * 20, count=10)

    step = timeline.steps[-1]

    assert bound_of(step, timeline) == bound
    assert step.latency_ns == 20 * 101_000


def test_short_queued_kernels_are_not_the_hosts_fault() -> None:
    """Kernels shorter than a gap, launched three an op: the stream is never without work."""
    quick = replace(ROUND, op_us=0.2, launch_us=0.2)

    timeline = timeline_of(*[op("kernel_2")] * 50, count=5, host=quick)

    assert bound_of(timeline.steps[-1], timeline) == "memory"


def test_a_step_without_kernels_is_the_hosts() -> None:
    timeline = timeline_of(HostWork("load", 10.0))

    assert bound_of(timeline.steps[0], timeline) == "host"
    assert timeline.steps[0].latency_ns == 10_000


NAMES = ["kernel_1", "kernel_40", "math_300", "reduce_30", "reduce_90", "view"]


def _entry(kind: int, name: str, number: int) -> Entry:
    choices: list[Entry] = [
        op(name, stream=number % 3),
        op(name, phase="backward", node=f"Node{number}", nr=number),
        EventRecord(number, number % 3),
        EventWait(number, (number + 1) % 3),
        Synchronize("synchronize", stream=number % 3 if number else None),
        Synchronize("item", stream=0),
        Mark("module_begin", f"net.{number}", "Net"),
        Mark("module_end", f"net.{number}", "Net"),
        Mark("annotation_begin", "part"),
        Mark("annotation_end", "part"),
        HostWork("work", float(number)),
        Alloc(0, 512, op=f"test::{name}"),
    ]
    return choices[kind % len(choices)]


ENTRIES = st.lists(
    st.builds(_entry, st.integers(0, 30), st.sampled_from(NAMES), st.integers(0, 3)), max_size=50
)


@settings(max_examples=120)
@given(ENTRIES, st.sampled_from([ROUND, PLAIN]), st.integers(1, 4))
def test_what_holds_for_every_timeline(entries: list[Entry], host: HostProfile, count: int) -> None:
    timeline = timeline_of(*entries, count=count, host=host)

    streams: dict[int, list[KernelSpan]] = {}
    launches = {span.correlation: span for span in timeline.host if span.kind == "launch"}
    for kernel in timeline.kernels:
        streams.setdefault(kernel.stream, []).append(kernel)
        launch = launches[kernel.correlation]
        assert kernel.start_ns >= launch.end_ns > launch.start_ns
        assert timeline.host[launch.parent] is timeline.host[kernel.op]
    for kernels in streams.values():
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(kernels))

    for position, span in enumerate(timeline.host):
        assert span.duration_ns >= 0
        if span.parent >= 0:
            parent = timeline.host[span.parent]
            assert span.parent < position
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
    starts = [span.start_ns for span in timeline.host]
    assert starts == sorted(starts)
    for thread in ("main", "autograd"):
        lane = [span for span in timeline.host if span.thread == thread]
        _assert_nested([(span.start_ns, span.end_ns) for span in lane])

    _assert_latencies_add_up(timeline)
    assert sum(step.represents for step in timeline.steps) == count
    assert len(timeline.memory_ns) == sum(
        isinstance(entry, Alloc) for step in timeline.steps for entry in step.replay.step.entries
    )
    for step in timeline.steps:
        assert 0 <= step.host_ns <= step.end_ns - step.start_ns
        assert 0 <= step.exposed_communication_ns <= step.communication_ns <= step.gpu_busy_ns
        own = timeline.kernels[step.first_kernel : step.last_kernel]
        assert step.gpu_busy_ns <= sum(kernel.duration_ns for kernel in own)


def _assert_latencies_add_up(timeline: Timeline) -> None:
    done_ns = 0
    for step in timeline.steps:
        passed_ns = step.done_ns - done_ns
        assert step.latency_ns in (passed_ns, max(passed_ns, step.host_ns))  # as in a loop
        done_ns = step.done_ns
    assert done_ns == timeline.end_ns


def _assert_nested(intervals: list[tuple[int, int]]) -> None:
    stack: list[int] = []
    for start, end in intervals:
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1]
        stack.append(end)


@settings(max_examples=80)
@given(ENTRIES, st.integers(0, 50), st.sampled_from(["kernel_40", "math_300"]))
def test_more_work_is_never_faster(entries: list[Entry], where: int, name: str) -> None:
    more = [*entries[:where], op(name), *entries[where:]]

    assert timeline_of(*more).end_ns >= timeline_of(*entries).end_ns


# -- CUDA graphs, and events across steps


def graph_of(*entries: Entry) -> tuple[Entry, ...]:
    return (Mark("graph_begin", GRAPH_LAUNCH), *entries, Mark("graph_end", GRAPH_LAUNCH))


def test_a_graph_is_one_launch_whose_kernels_share_its_correlation() -> None:
    host = replace(ROUND, graph_launch_us=4.0, graph_kernel_us=0.5)

    timeline = timeline_of(*graph_of(op("kernel_10"), op("view"), op("kernel_20")), host=host)

    (launch,) = timeline.host
    assert (launch.kind, launch.name, launch.duration_ns) == ("launch", GRAPH_LAUNCH, 5_000)
    assert [k.correlation for k in timeline.kernels] == [launch.correlation] * 2
    assert [k.call.signature.op for k in timeline.kernels] == ["test::kernel_10", "test::kernel_20"]
    assert times(timeline) == [(0, 7_000, 17_000), (0, 18_000, 38_000)]
    assert timeline.steps[0].host_ns == 5_000


def test_torchs_trees_cost_the_host_before_and_after_a_launch() -> None:
    host = replace(ROUND, graph_tree_us=30.0, graph_tensor_us=1.0)
    _, *entries, _ = graph_of(op("kernel_10"))
    own, trees = (
        timeline_of(
            Mark("graph_begin", GRAPH_LAUNCH, detail), *entries,
            Mark("graph_end", GRAPH_LAUNCH, detail), host=host,
        )
        for detail in ("", "5")
    )  # fmt: skip

    assert trees.kernels[0].start_ns - own.kernels[0].start_ns == 20_000
    assert trees.steps[0].host_ns - own.steps[0].host_ns == 35_000


def compiled(*entries: Entry) -> tuple[Entry, ...]:
    return Mark("compiled_begin", "", ""), *entries, Mark("compiled_end", "", "")


#: A call of compiled code: 13 us before its ops, 7 after.
COMPILED = replace(ROUND, compiled_call_us=20.0, compiled_return_us=7.0, compiled_library_us=30.0)


def test_compiled_code_returns_while_its_last_kernel_runs() -> None:
    timeline = timeline_of(*compiled(op("kernel_100")), host=COMPILED)

    before_us = 13.0 + COMPILED_OP_SHARE * 8.5 + 3.0
    assert times(timeline)[0][1] == round((before_us + 2.0) * 1000)
    assert timeline.steps[0].host_ns == round((before_us + COMPILED_OP_SHARE * 1.5 + 7.0) * 1000)


@pytest.mark.parametrize("num_calls", [1, 2])
def test_the_first_product_of_each_compiled_call_costs_more(num_calls: int) -> None:
    pair = compiled(op("gemm_5"), op("gemm_5"), op("kernel_5"))
    warm = replace(COMPILED, compiled_library_us=0.0)

    cold, known = (timeline_of(*pair * num_calls, host=host) for host in (COMPILED, warm))

    assert cold.steps[0].host_ns - known.steps[0].host_ns == num_calls * 30_000


def test_what_eager_code_calls_costs_no_more_after_compiled_code() -> None:
    products = op("gemm_5"), op("gemm_5")

    after, before = timeline_of(*compiled(), *products, host=COMPILED), timeline_of(*products)

    assert after.steps[0].host_ns - before.steps[0].host_ns == 20_000


def test_a_graph_lifts_a_step_out_of_being_bound_by_its_host() -> None:
    ops = tuple(op("kernel_2") for _ in range(100))

    eager, graph = timeline_of(*ops), timeline_of(*graph_of(*ops))

    assert bound_of(eager.steps[0], eager) == "host"
    assert bound_of(graph.steps[0], graph) == "memory"
    assert graph.end_ns < eager.end_ns / 3


def test_branches_of_a_graph_run_side_by_side_between_its_events() -> None:
    fork, join = EventRecord(1, 0), EventRecord(2, 5)

    timeline = timeline_of(
        *graph_of(
            op("kernel_10"), fork, EventWait(1, 5), op("kernel_50", stream=5), join,
            op("kernel_20"), EventWait(2, 0), op("kernel_5"),
        )
    )  # fmt: skip

    first, branch, beside, last = timeline.kernels
    assert branch.start_ns >= first.end_ns
    assert beside.start_ns < branch.end_ns
    assert last.start_ns >= branch.end_ns
    assert [span.kind for span in timeline.host] == ["launch"]


def test_an_event_of_the_step_before_is_waited_for() -> None:
    recording = Recording(
        (
            Step("setup", (op("kernel_1000", stream=5), EventRecord(event=1, stream=5))),
            Step("train", (EventWait(event=0, stream=0), op("kernel_10"))),
        ),
        gpu="H100",
        torch_version="2",
    )

    timeline = schedule(recording, price, ROUND)

    first, second = timeline.kernels
    assert second.start_ns == first.end_ns


def test_events_of_equal_steps_are_those_of_the_step_before_each() -> None:
    prefetch = (
        EventWait(event=0, stream=0),  # the copy that the step before began
        op("kernel_10"),
        op("kernel_500", stream=5),
        EventRecord(event=1, stream=5),
    )

    timeline = timeline_of(*prefetch, count=9)

    on_default = [k for k in timeline.kernels if k.stream == 0]
    on_side = [k for k in timeline.kernels if k.stream == 5]
    for copy, user in zip(on_side, on_default[1:], strict=False):
        assert user.start_ns >= copy.end_ns
    assert timeline.steps[-1].latency_ns == pytest.approx(510_000, rel=0.03)


def test_an_event_that_nothing_recorded_is_done() -> None:
    timeline = timeline_of(EventWait(event=-7, stream=0), op("kernel_10"))

    assert times(timeline) == [(0, 13_500, 23_500)]


# -- copies from the host


def copy_from_host(*, num_bytes: int, pinned: bool) -> Timeline:
    source = TensorSpec((num_bytes,), (1,), "uint8", "cpu", pinned)
    arguments = (("self", source), ("non_blocking", True))
    signature = OpSignature("aten::_to_copy", "default", arguments, (SPEC,))
    kernel = Kernel.elementwise("memcpy_h2d", num_bytes, dtype="uint8")
    estimate = Estimate(500, 500, 500, "memory", "physics", "test")
    entries = (OpCall(signature, MATH), op("view_"))
    recording = Recording((Step("train", entries),), gpu="H100", torch_version="2")
    others = price
    return schedule(
        recording,
        lambda call: ((kernel, estimate),) if call.signature is signature else others(call),
        ROUND,
    )


@pytest.mark.parametrize(
    ("num_bytes", "pinned", "waits"),
    [(2**20, True, False), (2**20, False, True), (2**10, False, False)],
)
def test_the_host_brings_pageable_memory_to_the_gpu_itself(
    num_bytes: int, pinned: bool, waits: bool
) -> None:
    timeline = copy_from_host(num_bytes=num_bytes, pinned=pinned)

    (copy,) = timeline.kernels
    (launch,) = [span for span in timeline.host if span.kind == "launch"]
    assert copy.duration_ns == 500_000
    assert (launch.end_ns == copy.end_ns) is waits
    assert launch.duration_ns == (505_000 if waits else 3_000)
    assert timeline.steps[0].host_ns == (516_000 if waits else 14_000)


# -- steps of a loop that goes on -----------------------------------------------------------------


def _of_steps(*steps: Step) -> Timeline:
    return schedule(Recording(steps, gpu="H100", torch_version="2"), price, ROUND)


def test_steps_queued_behind_a_long_one_take_what_they_take_in_a_longer_loop() -> None:
    prompt = Step("eval", (op("kernel_900"),))
    token = Step("eval", (op("kernel_5"), op("kernel_6")))

    few = _of_steps(prompt, replace(token, count=5))
    many = _of_steps(prompt, replace(token, count=500))

    assert [step.latency_ns for step in few.steps[1:]] == [26_000] * 3
    assert many.steps[-1].latency_ns == 26_000
    assert few.end_ns == few.steps[-1].done_ns < 26_000 * 6 + 900_000


def test_steps_of_unlike_kinds_that_keep_the_gpu_busy_add_up_to_its_time() -> None:
    heavy = Step("eval", (op("kernel_500"),))
    light = Step("eval", (op("kernel_5"), op("kernel_6")))

    timeline = _of_steps(*(heavy, light) * 5)

    _assert_latencies_add_up(timeline)
