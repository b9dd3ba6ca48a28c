"""Costs of the host from a profile: of a dispatch, a launch and a wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from neusight.integrations.profiles.aliases import class_of_name
from neusight.integrations.profiles.measurements import outermost_ops
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile, RuntimeCall
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import KernelClass
from neusight.timeline.host import (
    HOST_COSTS,
    OF_THE_DEVICE,
    HostProfile,
    profiled_host_of,
)

#: Fewest occurrences for a median.
_LEAST = 5

#: Share of the occurrences before the tail: the slowest were interrupted, or the first.
_BEFORE_TAIL = 0.95
#: A host this near the shipped one, as a ratio, is like it in what the profile does not show.
_SAME_HOST = 1.15

_LAUNCHES = ("launchkernel", "launchcooperativekernel")
_COPIES = ("memcpyasync", "memsetasync")
_EVENTS = ("eventrecord", "streamwaitevent")
_WAITS = ("devicesynchronize", "streamsynchronize", "eventsynchronize")
_NODE = "autograd::engine::evaluate_function"
_ALLOCATIONS = ("aten::empty", "aten::empty_strided")
_VIEWS = frozenset(
    f"aten::{name}"
    for name in ("view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze",
                 "squeeze", "detach", "as_strided", "alias", "split_with_sizes", "unbind")
)  # fmt: skip
#: The field that holds the dispatch of an op whose kernels have that class; all others: `op_us`.
_DISPATCH = {
    KernelClass.GEMM: "gemm_us",
    KernelClass.CONVOLUTION: "convolution_us",
    KernelClass.ATTENTION: "attention_us",
    KernelClass.NORMALIZATION: "normalization_us",
}
#: Classes by the cost of their dispatch: the most expensive kernel of an op decides.
_DEAREST = (
    KernelClass.CONVOLUTION,
    KernelClass.ATTENTION,
    KernelClass.GEMM,
    KernelClass.NORMALIZATION,
)
#: Calls that count only where the device did something: empty copies return at once.
_DEVICE_WORK = ("launch_us", "memcpy_us")
#: Calls that wait where the launch queue is full or the device is busy.
_WITH_WAITS = ("launch_us", "memcpy_us", "synchronize_us")


def costs_of(profile: Profile, gpu: GPU) -> dict[str, float] | None:
    """Every field of a `HostProfile`, µs, as that host has it under the profiler.

    Means of what the profile shows often enough; the rest is scaled by how much faster or slower
    this host is than the shipped one in what it does show. None where it shows no launches.
    """
    shipped = profiled_host_of(gpu)
    read = {
        name: _typical(name, values) / 1000
        for name, values in _observed(profile, shipped).items()
        if len(values) >= _LEAST
    }
    if "launch_us" not in read:
        return None
    ratios = [
        value / getattr(shipped, name)
        for name, value in read.items()
        if name not in OF_THE_DEVICE and getattr(shipped, name) > 0
    ]
    speed = median(ratios)
    if 1 / _SAME_HOST < speed < _SAME_HOST:
        speed = 1.0
    return {
        name: round(
            read.get(name, getattr(shipped, name) * (1.0 if name in OF_THE_DEVICE else speed)), 3
        )
        for name in HOST_COSTS
    }


def _typical(name: str, values: Sequence[float]) -> float:
    """The mean, so that totals are right, without the tail; where waits for
    the device are mixed in, the median."""
    if name in OF_THE_DEVICE or name in _WITH_WAITS:
        return median(values)
    ordered = sorted(values)
    longest = ordered[max(0, int(len(ordered) * _BEFORE_TAIL) - 1)]
    return sum(min(value, longest) for value in ordered) / len(ordered)


def merged_costs(found: Iterable[Mapping[str, float] | None]) -> dict[str, float] | None:
    """The median of each cost over several profiles of a host."""
    known = [costs for costs in found if costs is not None]
    if not known:
        return None
    return {name: round(median(costs[name] for costs in known), 3) for name in known[0]}


def scaled_costs(costs: Mapping[str, float], factor: float) -> dict[str, float]:
    """The costs on a host that takes `factor` times as long."""
    return {
        name: round(value * (1.0 if name in OF_THE_DEVICE else factor), 3)
        for name, value in costs.items()
    }


def _observed(profile: Profile, shipped: HostProfile) -> dict[str, list[float]]:
    """Nanoseconds of each occurrence, by the field that they are an example of."""
    found: dict[str, list[float]] = defaultdict(list)
    at_work = {event.launch for event in profile.events}
    for position, call in enumerate(profile.calls):
        field = _field_of_call(call)
        if field and (position in at_work or field not in _DEVICE_WORK):
            found[field].append(call.duration_ns)
    # Of waits the shortest tenth: their work was done, the others wait for the device.
    waits = sorted(found.get("synchronize_us", []))
    found["synchronize_us"] = waits[: max(_LEAST, len(waits) // 10)]
    _observe_streams(profile, found)
    _observe_ops(profile, found, shipped)
    return found


def _field_of_call(call: RuntimeCall) -> str:
    name = call.name.lower()
    for words, field in (
        (_LAUNCHES, "launch_us"),
        (_COPIES, "memcpy_us"),
        (_EVENTS, "event_us"),
        (_WAITS, "synchronize_us"),
    ):
        if any(word in name for word in words):
            return field
    return ""


def _observe_streams(profile: Profile, found: dict[str, list[float]]) -> None:
    """From the end of a launch to its kernel on an idle stream, and gaps between queued kernels."""
    last: dict[tuple[int, int], DeviceEvent] = {}
    for event in profile.events:
        stream = (event.device, event.stream)
        before, last[stream] = last.get(stream), event
        call = profile.launch_of(event)
        if call is None or event.kind != "kernel":
            continue
        if before is None or before.end_ns <= call.start_ns:
            found["launch_latency_us"].append(max(0, event.start_ns - call.end_ns))
        elif call.end_ns <= before.end_ns <= event.start_ns:
            found["kernel_gap_us"].append(event.start_ns - before.end_ns)


def _observe_ops(profile: Profile, found: dict[str, list[float]], shipped: HostProfile) -> None:
    """Dispatches: an op's time less its launches and its allocation, by the kernels it launches."""
    owners = outermost_ops(profile)
    launched: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in profile.events:
        if event.op >= 0:
            launched[owners[event.op]].append(event)
    found["allocate_us"] += [op.duration_ns for op in profile.ops if op.name in _ALLOCATIONS]
    usual_ns = _usual_allocation_ns(found, shipped)
    between_ns = shipped.extra_kernel_us * 1000
    main = profile.ops[0].thread if profile.ops else ""
    for position, op in enumerate(profile.ops):
        if owners[position] != position:
            continue
        events = launched.get(position, [])
        calls = [call for call in map(profile.launch_of, events) if call is not None]
        if not calls:
            if op.name in _VIEWS:
                found["view_us"].append(op.duration_ns)
            continue
        launches_ns = sum(call.duration_ns for call in calls)
        if any(call.thread != op.thread for call in calls) or len(calls) != len(events):
            continue
        spent_ns = op.duration_ns - launches_ns - between_ns * (len(calls) - 1)
        if not op.name.endswith("_"):  # a new output; scratch counts as dispatch
            spent_ns -= usual_ns
        if spent_ns > 0 and op.thread == main:  # the autograd engine's ops cost less
            found[_field_of_op(events)].append(spent_ns)
    _observe_nodes(profile, found)


def _usual_allocation_ns(found: Mapping[str, Sequence[float]], shipped: HostProfile) -> float:
    """What an allocation takes here: as measured, or shipped and scaled as the launches are."""
    if len(found["allocate_us"]) >= _LEAST:
        return median(found["allocate_us"])
    if len(found["launch_us"]) >= _LEAST:
        return shipped.allocate_us * median(found["launch_us"]) / shipped.launch_us
    return shipped.allocate_us * 1000


def _field_of_op(events: Sequence[DeviceEvent]) -> str:
    classes = {class_of_name(event.name) for event in events}
    dearest = next((kind for kind in _DEAREST if kind in classes), None)
    return "op_us" if dearest is None else _DISPATCH[dearest]


def _observe_nodes(profile: Profile, found: dict[str, list[float]]) -> None:
    """What the autograd engine adds around the ops of a node."""
    open_nodes: list[tuple[int, int, int]] = []  # end, duration, time of its ops
    reached: dict[str, int] = defaultdict(int)

    def close(until_ns: float) -> None:
        while open_nodes and open_nodes[-1][0] <= until_ns:
            _, duration_ns, inside_ns = open_nodes.pop()
            found["node_us"].append(duration_ns - inside_ns)

    for op in profile.ops:
        if op.name.startswith(_NODE):
            close(op.start_ns)
            open_nodes.append((op.end_ns, op.duration_ns, 0))
            continue
        is_inside = open_nodes and op.end_ns <= open_nodes[-1][0]
        if is_inside and op.name.startswith("aten::") and op.start_ns >= reached[op.thread]:
            end_ns, duration_ns, inside_ns = open_nodes[-1]
            open_nodes[-1] = (end_ns, duration_ns, inside_ns + op.duration_ns)
            reached[op.thread] = op.end_ns
    close(float("inf"))
