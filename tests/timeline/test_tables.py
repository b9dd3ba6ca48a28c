"""When the ops and kernels of small programs run, as tables; NEUSIGHT_UPDATE_GOLDEN=1 rewrites
them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields

from default_values import numbers_by_default
from recorded_calls import recorded_calls
from small_programs import PROGRAMS, recorded

from neusight.forecast import host_profile
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.tiled import Tiled
from neusight.recording.recording import (
    COMPILED_CODE,
    Entry,
    EventRecord,
    EventWait,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    Recording,
    Step,
    Synchronize,
)
from neusight.timeline.host import HOST_NAMES, HOSTS, HostProfile, stated_host
from neusight.timeline.operators.inner_calls import calls_around, calls_within
from neusight.timeline.operators.self_times import self_us
from neusight.timeline.operators.tree import with_operators
from neusight.timeline.pricing import Pricer
from neusight.timeline.ranks.contention import schedule_beside
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import bound_of, critical_path_of, kernels_of, steady_step_of
from op_calls import call, convolution, spec
from places import require_golden

#: Machines by GPU and host: the host sets the pace, the GPU does, and what a profiler adds.
MACHINES = (("H100", "plain"), ("T4", "cloud,ghz=2.4,launch=9"), ("A100", "profiled"))


def test_programs_take_as_long_as_the_golden_table_has_them() -> None:
    """Of each step what it takes, what the GPU and the host are busy and what bounds it; of each
    operator and kernel how often it runs, the sum of the starts and that of the durations."""
    lines = []
    for name in PROGRAMS:
        for gpu, host in MACHINES if name == "training" else MACHINES[:2]:
            timeline = timeline_of(name, find_gpu(gpu), host)
            lines += [f"{name} on {gpu}, {host}", *steps(timeline), *spans(timeline)]

    require_golden("timelines.txt", lines)


def timeline_of(name: str, gpu: GPU, host: str) -> Timeline:
    """Also where the program would ask that GPU for another path."""
    pricer = Pricer(gpu, Tiled())
    recording = recorded(name).recording
    pricer.prepare(recording)
    return schedule_beside(recording, pricer, host_profile(host, gpu), gpu)


def steps(timeline: Timeline) -> list[str]:
    steady = steady_step_of(timeline)
    path = critical_path_of(kernels_of(steady, timeline)) if steady else []
    return [
        f"  {step.represents} steps {step.latency_ns} {step.gpu_busy_ns} {step.host_ns} "
        f"{step.communication_ns} {bound_of(step, timeline)}"
        for step in timeline.steps
    ] + [f"  critical path {len(path)} {sum(kernel.duration_ns for kernel in path)}"]


def spans(timeline: Timeline) -> list[str]:
    """The operators of the steady step, else of the last."""
    sums: defaultdict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    shown = with_operators(timeline, [steady_step_of(timeline) or timeline.steps[-1]])
    rows = [((span.kind, span.name, span.thread), span) for span in shown.host]
    rows += [((kernel.kernel.name, kernel.stream), kernel) for kernel in shown.kernels]  # type: ignore[misc]
    for key, span in rows:
        row = sums[key]
        row[0] += 1
        row[1] += span.start_ns
        row[2] += span.duration_ns
    return [f"    {' '.join(map(str, (*key, *row)))}" for key, row in sums.items()]


#: Calls of every kind of dispatch: one kernel, several, none, lists, copies, a library's.
CALLS = (
    call("add", spec(64), self=spec(64), other=spec(64)),
    call("transpose", spec(64, 32), self=spec(32, 64), dim0=0, dim1=1),
    call("mm", spec(64, 64), self=spec(64, 64), mat2=spec(64, 64)),
    convolution("float32", bias=True),
    call("native_layer_norm", spec(64, 256), spec(64, 1), spec(64, 1), input_=spec(64, 256),
         normalized_shape=(256,), weight=spec(256), bias=spec(256), eps=1e-5),
    call("_foreach_add_", self=(spec(64), spec(32)), other=(spec(64), spec(32)), overload="List"),
    call("_to_copy", spec(1 << 20), self=spec(1 << 20, device="cpu")),
    call("inductor::triton_poi_fused_add_0", spec(64), x=spec(64), y=spec(64)),
)  # fmt: skip


def programs() -> Iterator[tuple[str, list[Entry]]]:
    """The calls by themselves, in gradients, in compiled code of each kind and in graphs."""
    for phase in ("forward", "backward"):
        yield phase, [OpCall(one, MathMode(), "net", phase) for one in CALLS]
    body: list[Entry] = [OpCall(one, MathMode(), "net") for one in CALLS]
    for name in COMPILED_CODE:
        begin = Mark("compiled_begin", name, "7 0/0")
        yield name, [begin, *body, Mark("compiled_end", name, "7 0/0")]
    for trees in ("", "5"):
        begin = Mark("graph_begin", "graph", trees)
        yield f"graph {trees}", [begin, *body, Mark("graph_end", "graph", trees)]
    waits: list[Entry] = [
        HostWork("cpu ops", 7.5),
        EventRecord(1, 0),
        EventWait(1, 7),
        Synchronize("synchronize"),
        Synchronize("event", event=1),
    ]
    yield "waits", [*body[:3], *waits, *body[:3]]


def test_calls_cost_hosts_what_the_golden_table_says() -> None:
    """Of each host nanoseconds of the whole; of the first the spans and the kernels."""
    gpu, lines = find_gpu("A100"), []
    for name, entries in programs():
        recording = Recording((Step("train", tuple(entries)),), gpu="A100", torch_version="2.13.0")
        lines.append(name)
        for host in (*HOST_NAMES, "plain,ghz=2.0", "cloud,ghz=4.1,launch=3,torch=2.1"):
            pricer = Pricer(gpu, Tiled())
            timeline = schedule_beside(recording, pricer, host_profile(host, gpu), gpu)
            [step] = timeline.steps
            lines.append(f"  {host} {step.latency_ns} {step.gpu_busy_ns} {step.host_ns}")
        rows: list[tuple[object, ...]] = [
            (span.kind, span.name, span.start_ns, span.duration_ns) for span in timeline.host
        ]
        rows += [(k.kernel.name, k.stream, k.start_ns, k.duration_ns) for k in timeline.kernels]
        lines += [f"    {' '.join(map(str, row))}" for row in rows]

    require_golden("host_costs.txt", lines)


#: Texts that state a host beside a GPU.
STATED = ("cloud,ghz=2.4", "older,torch=2.1", "plain,launch=9.5", "ghz=4.0,torch=1.13", "profiled")


def test_hosts_cost_what_the_golden_table_has() -> None:
    """A figure a line, a host a column: those that are shipped, then stated ones on an A100."""
    stated = [stated_host(text, find_gpu("A100")) for text in STATED]
    hosts = [*HOSTS.values(), *stated]
    lines = ["".join(f"{host.name:>22}" for host in hosts)]
    for item in fields(HostProfile):
        cells = (getattr(host, item.name) for host in hosts)
        shown = (round(cell, 6) if isinstance(cell, float) else cell for cell in cells)
        lines.append(f"{item.name:<22}" + "".join(f"{cell:>22}" for cell in shown))

    require_golden("hosts.txt", [line.rstrip() for line in lines])


def test_ops_call_others_as_the_golden_table_has_it() -> None:
    """An op a line: those around it, and those that a CUDA build calls inside it; then the shares
    of the host's time that were measured of some of them."""
    lines, names = [], set()
    for _, ops in recorded_calls():
        for op in ops:
            around = " ".join(calls_around(op.signature))
            inside = " ".join(map(str, calls_within(op.signature)))
            lines.append(f"{op.signature.op} in [{around}] calls [{inside}]")
            names |= {op.signature.op, *calls_around(op.signature)}
            names |= set(re.findall(r"aten::\w+", inside))
    for name in sorted(names):
        shares = {self_us(name, launches=launches) for launches in (False, True)}
        if len(shares) == 1:
            lines.append(f"{name} takes {shares.pop()}")

    require_golden("inner_calls.txt", dict.fromkeys(line.removeprefix("aten::") for line in lines))


def test_an_operator_that_was_not_measured_takes_longer_where_it_launches() -> None:
    assert [self_us("aten::mine", launches=launches) for launches in (False, True)] == [2.0, 8.0]


def test_what_is_not_stated_is_as_the_golden_table_has_it() -> None:
    """The numbers of functions and values by default."""
    require_golden("defaults_timeline.txt", numbers_by_default("neusight.timeline"))
