"""A profile as a recording and a timeline: what lies where, once its kernels take other times."""

from __future__ import annotations

from collections.abc import Iterator

from neusight.integrations.profiles.carrying.prices import CarriedKernel
from neusight.integrations.profiles.carrying.program import CarriedProgram
from neusight.integrations.profiles.carrying.replay import replayed
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    HostOp,
    Profile,
    ProfileStep,
    RuntimeCall,
)
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Alloc, MathMode, OpCall, OpSignature, Recording
from places import require_golden

MAIN, LOADER, ENGINE = "1/1", "1/2", "1/3"

#: Two steps: a product and an activation that are waited for; a backward that communicates, on
#: another stream, and a copy of which no launch is known. The host is in microseconds.
OPS = [
    ("aten::linear", 2, 20, MAIN), ("aten::addmm", 4, 18, MAIN), ("aten::relu", 20, 28, MAIN),
    ("collate", 5, 9, LOADER), ("collate", 9, 12, LOADER),
    ("autograd::engine::evaluate_function: MmBackward0", 105, 125, ENGINE),
    ("aten::mm_backward", 106, 124, ENGINE),
]  # fmt: skip
CALLS = [
    ("cudaLaunchKernel", 6, 10, MAIN), ("cudaLaunchKernel", 22, 25, MAIN),
    ("cudaDeviceSynchronize", 30, 77, MAIN), ("cudaLaunchKernel", 107, 110, ENGINE),
    ("cudaLaunchKernel", 112, 115, ENGINE), ("cudaGetDevice", 116, 117, MAIN),
    ("cudaStreamSynchronize", 120, 186, MAIN),
]  # fmt: skip
#: Begin, end, stream, op and call.
EVENTS = [
    (15, 65, 7, 1, 0), (66, 76, 7, 2, 1), (118, 158, 7, 6, 3), (120, 180, 8, 6, 4),
    (187, 190, 7, -1, -1),
]  # fmt: skip
PRODUCT = Kernel.gemm(64, 64, 64)
KERNELS = [
    PRODUCT, Kernel.elementwise("relu", 64, dtype="float32"), PRODUCT,
    Kernel.collective("all_reduce", 4096, 2), Kernel.elementwise("copy", 64, dtype="float32"),
]  # fmt: skip


def profile(peak_bytes: int | None) -> Profile:
    events = tuple(
        DeviceEvent("kernel", f"k{at}", begin * 1000, (end - begin) * 1000, 0, stream, 10 + at, op,
                    launch)
        for at, (begin, end, stream, op, launch) in enumerate(EVENTS)
    )  # fmt: skip
    ops = [HostOp(name, begin * 1000, (end - begin) * 1000, on) for name, begin, end, on in OPS]
    calls = [
        RuntimeCall(name, begin * 1000, (end - begin) * 1000, on, 10 + at)
        for at, (name, begin, end, on) in enumerate(CALLS)
    ]
    steps = (
        ProfileStep("first", 1000, 100_000, 100_000, events[:2]),
        ProfileStep("second", 101_000, 90_000, 90_000, events[2:]),
    )
    return Profile(
        "run.json", "H100", False, True, steps, tuple(ops), events, tuple(calls), peak_bytes
    )


def program(read: Profile, factor: float) -> CarriedProgram:
    """The profile whose kernels take that many times as long."""
    kernels = []
    for event, kernel in zip(read.events, KERNELS, strict=True):
        name = read.ops[event.op].name if event.op >= 0 else "copy"
        call = OpCall(OpSignature(name, "default", (), ()), MathMode())
        us = event.duration_ns * factor / 1000
        estimate = Estimate(us, us, us, "memory", "physics", "test")
        kernels.append(CarriedKernel(event, event.op, kernel, call, estimate, "measured"))
    durations_ns = [round(event.duration_ns * factor) for event in read.events]
    return CarriedProgram(read, kernels, replayed(read, durations_ns))


def lines_of(factor: float) -> Iterator[str]:
    made = program(profile(None), factor)
    steps = made.steps()
    yield f"kernels that take {factor:g} times as long"
    for number, step in enumerate(steps):
        entries = [
            entry.signature.op if isinstance(entry, OpCall) else type(entry).__name__
            for entry in step.entries
        ]
        yield f"  step {number}, {step.kind}: {', '.join(entries)}"
    timeline = made.timeline(Recording(steps, gpu="H100", torch_version="2.13.0"))
    for span in timeline.host:
        op = "-" if span.call is None else span.call.signature.op
        yield (
            f"  {span.kind:6} {span.name[-21:]:21} {span.start_ns:7} {span.duration_ns:6} "
            f"{span.thread:8} {span.parent:2} {span.correlation:2} {op}"
        )
    for kernel in timeline.kernels:
        yield (
            f"  {kernel.kernel.name:10} stream {kernel.stream} {kernel.start_ns:7} "
            f"{kernel.duration_ns:6} {kernel.correlation:2} {kernel.op:2} "
            f"{kernel.call.signature.op}"
        )
    for found in timeline.steps:
        yield (
            f"  step {found.start_ns} to {found.end_ns}, done {found.done_ns}: latency "
            f"{found.latency_ns}, busy {found.gpu_busy_ns}, communication "
            f"{found.communication_ns}, exposed {found.exposed_communication_ns}, gaps "
            f"{found.stream_gaps_ns}, host {found.host_ns}; spans {found.first_host} to "
            f"{found.last_host}, kernels {found.first_kernel} to {found.last_kernel}"
        )
    yield f"  ends at {timeline.end_ns}, memory at {timeline.memory_ns}"


def test_everything_lies_where_it_happens_now() -> None:
    require_golden(
        "carried_timeline.txt", (line for factor in (1.0, 0.5, 3.0) for line in lines_of(factor))
    )


def test_the_memory_of_a_profile_is_one_allocation_at_its_beginning() -> None:
    made = program(profile(512), 1.0)
    first, second = made.steps()

    timeline = made.timeline(Recording((first, second), gpu="H100", torch_version="2.13.0"))

    assert first.entries[0] == Alloc(0, 512, op="(the profile's peak)")
    assert (len(first.entries), len(second.entries)) == (4, 3)
    assert timeline.memory_ns == (0,)
