"""Kernels that run beside collectives or kernels of other streams take longer, and collectives that
share a link: a second pass over a schedule."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    COPY_ENGINE_KERNELS,
    HOST_COPIES,
    PEER_COPY,
    Kernel,
    KernelClass,
)
from neusight.predictors.physics.communication.channels import nccl_has_clusters
from neusight.predictors.physics.communication.contention import (
    Contention,
    contention_of,
    slowdown,
)
from neusight.predictors.physics.communication.sharing import (
    BOTH_WAYS,
    Flow,
    link_demands,
    shared_times_ns,
)
from neusight.predictors.physics.communication.stragglers import num_hosts, slowest_share
from neusight.recording.recording import (
    IN_ORDER_OPTION,
    URGENT_STREAMS_OPTION,
    Recording,
    release_of,
)
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing
from neusight.timeline.ranks.together import schedule_together
from neusight.timeline.spans import KernelSpan, Timeline
from neusight.timeline.steps import Moment, schedule

_NS_PER_US = 1000.0

#: Ops that use one direction of a link.
_SENDS = frozenset({"c10d::send", "_c10d_functional::isend"})
_RECEIVES = frozenset({"c10d::recv_", "c10d::recv_any_source_", "_c10d_functional::irecv"})


def schedule_beside(
    recording: Recording,
    price: Pricing,
    host: HostProfile,
    gpu: GPU,
    *,
    since: Moment | None = None,
) -> Timeline:
    """The recording placed in time, and once more where its kernels overlap others; `since` as in
    `schedule`."""
    first = schedule(recording, price, host, since=since)
    stretch_ns = stretches(first.kernels, gpu, _rules_of(recording))
    if not any(stretch_ns):
        return first
    return schedule(recording, price, host, stretch_ns=stretch_ns, since=since)


def schedule_together_beside(
    recordings: Sequence[Recording], price: Pricing, host: HostProfile, gpu: GPU
) -> tuple[Timeline, ...]:
    """The same of several ranks together."""
    first = schedule_together(recordings, price, host)
    stretch_ns = [
        stretches(timeline.kernels, gpu, _rules_of(recording))
        for timeline, recording in zip(first, recordings, strict=True)
    ]
    if not any(map(any, stretch_ns)):
        return first
    return schedule_together(recordings, price, host, stretch_ns=stretch_ns)


@dataclass(frozen=True)
class StartRules:
    """Whether NCCL's CTAs come in clusters, the streams whose kernels start first (of high
    priority), and whether kernels that could start at once do so in the order of their launches
    (CUDA_DEVICE_MAX_CONNECTIONS=1), not those first that no other stream holds up."""

    in_clusters: bool = True
    urgent_streams: Set[int] = frozenset()
    in_order: bool = False


def _rules_of(recording: Recording) -> StartRules:
    numbers = recording.options.get(URGENT_STREAMS_OPTION, "").split(",")
    return StartRules(
        nccl_has_clusters(release_of(recording.torch_version)),
        frozenset(int(number) for number in numbers if number.isdecimal()),
        IN_ORDER_OPTION in recording.options,
    )


_USUAL = StartRules()


def stretches(kernels: Sequence[KernelSpan], gpu: GPU, rules: StartRules = _USUAL) -> list[int]:
    """How much longer each kernel takes for kernels of other streams and for the collectives that
    run beside it, ns, and for the slowest of the hosts that wait for each other in them.

    Kernels of several streams share SMs, DRAM and the link to other GPUs. A collective waits for
    SMs until the kernel that has them all gives some up. Collectives share the links between GPUs.
    Of other kernels, while they overlap with one, it gets on slower; over a collective's time all
    kernels beside it together lose what that takes from them. So a part of t that overlaps costs
    t · (1 - 1 / slowdown) more.
    """
    found = [0] * len(kernels)
    collectives = [
        number
        for number, span in enumerate(kernels)
        if span.kernel.kernel_class is KernelClass.COLLECTIVE
    ]
    kernels = list(kernels)
    for number, time_ns in _beside_other_streams(kernels, gpu):
        found[number] = time_ns - kernels[number].duration_ns
        kernels[number] = kernels[number]._replace(duration_ns=time_ns)
    if not collectives:
        return found
    for number, span in _queued(kernels, collectives, rules):
        found[number] += span.end_ns - kernels[number].end_ns
        kernels[number] = span
    flows = [_flow(kernels[number], gpu) for number in collectives]
    for number, flow, time_ns in zip(collectives, flows, shared_times_ns(flows), strict=True):
        found[number] += time_ns - flow.alone_ns
        longer_ns = kernels[number].duration_ns + time_ns - flow.alone_ns
        kernels[number] = kernels[number]._replace(duration_ns=longer_ns)
    beside = sorted(_occupations(kernels, gpu, rules.in_clusters), key=lambda span: span[0])
    active: list[tuple[int, int, int, Contention]] = []
    coming = iter(beside)
    following = next(coming, None)
    for number in sorted(range(len(kernels)), key=lambda at: kernels[at].start_ns):
        span = kernels[number]
        while following is not None and following[0] < span.end_ns:
            active.append(following)
            following = next(coming, None)
        active = [other for other in active if other[1] > span.start_ns]
        found[number] += round(sum(_cost_ns(span, other) for other in active))
    _add_slowest(found, kernels, {kernels[number].kernel for number in collectives}, gpu)
    return found


def _beside_other_streams(kernels: Sequence[KernelSpan], gpu: GPU) -> Iterator[tuple[int, int]]:
    """The kernels, no collectives, that need what one of another stream needs at the same time,
    with how long they take where they share it."""
    if len({span.stream for span in kernels}) == 1:
        return
    needs = {number: found for number, span in enumerate(kernels) if (found := _needs(span, gpu))}
    shared: set[int] = set()
    latest: dict[str, dict[int, int]] = {}  # of each need, by stream, the one that ends last
    for number in sorted(needs, key=lambda number: kernels[number].start_ns):
        span = kernels[number]
        for need in needs[number]:
            streams = latest.setdefault(need, {})
            for stream, other in streams.items():
                if stream != span.stream and kernels[other].end_ns > span.start_ns:
                    shared |= {number, other}
            streams[span.stream] = number
    order = sorted(shared)
    flows = [
        Flow(span.start_ns, span.duration_ns, span.stream, needs[number])
        for number in order
        for span in (kernels[number],)
    ]
    yield from zip(order, shared_times_ns(flows), strict=True)


def _needs(span: KernelSpan, gpu: GPU) -> dict[str, float]:
    """The share of SMs, of DRAM and of the link to another GPU that a kernel uses, up to 1."""
    kernel, us = span.kernel, span.duration_ns / _NS_PER_US
    if kernel.name == PEER_COPY:
        return {"peer link": 1.0}
    if kernel.kernel_class is KernelClass.COLLECTIVE or kernel.name in HOST_COPIES:
        return {}
    streamed = kernel.num_bytes / (us * gpu.bandwidth_gbps * gpu.bandwidth_utilization * 1e3)
    needs = {"DRAM": min(1.0, streamed)} if span.estimate.bound in ("memory", "compute") else {}
    if not kernel.branches:  # which were placed where SMs were free (`Streams.branch`)
        needs["SMs"] = span.estimate.sm_share
    return {need: share for need, share in needs.items() if share > 0.0}


def _queued(
    kernels: Sequence[KernelSpan], collectives: Sequence[int], rules: StartRules
) -> Iterator[tuple[int, KernelSpan]]:
    """The collectives that find all SMs taken, as they start when one is free: CTAs of a kernel
    that came first are placed before theirs, up to its last wave where that leaves SMs idle."""
    others = [
        number
        for number, span in enumerate(kernels)
        if span.kernel.kernel_class is not KernelClass.COLLECTIVE
        and span.kernel.name not in COPY_ENGINE_KERNELS
        and span.estimate.num_waves > 1.0  # 1 is what predictors without waves say
    ]
    others.sort(key=lambda number: kernels[number].start_ns)
    starts = [kernels[number].start_ns for number in others]
    for number in collectives:
        span = kernels[number]
        place = bisect_right(starts, span.start_ns) - 1
        if place < 0 or span.stream in rules.urgent_streams:
            continue
        other = kernels[others[place]]
        is_first = other.start_ns < span.start_ns or not (rules.in_order and number < others[place])
        full, waves = math.floor(other.estimate.num_waves), math.ceil(other.estimate.num_waves)
        free_ns = other.start_ns + other.duration_ns * full // waves
        if is_first and other.stream != span.stream and free_ns > span.start_ns:
            moving_ns = span.duration_ns - span.waited_ns
            waited_ns = max(0, span.start_ns + span.waited_ns - free_ns)
            yield (
                number,
                span._replace(
                    start_ns=free_ns, duration_ns=waited_ns + moving_ns, waited_ns=waited_ns
                ),
            )


def _add_slowest(
    found: list[int], kernels: Sequence[KernelSpan], collectives: Set[Kernel], gpu: GPU
) -> None:
    """Lets all kernels but the collectives take as long as on the slowest of the hosts."""
    share = slowest_share(max(num_hosts(collective, gpu) for collective in collectives))
    if not share:
        return
    for number, span in enumerate(kernels):
        if span.kernel.kernel_class is not KernelClass.COLLECTIVE:
            found[number] += round(span.duration_ns * share)


def _flow(span: KernelSpan, gpu: GPU) -> Flow:
    """The collective's transfer, from when all its ranks have come."""
    moving_ns = span.duration_ns - span.waited_ns
    op = span.call.signature.op
    ways = BOTH_WAYS[:1] if op in _SENDS else BOTH_WAYS[1:] if op in _RECEIVES else BOTH_WAYS
    demands = link_demands(span.kernel, moving_ns / _NS_PER_US, gpu, ways)
    return Flow(span.end_ns - moving_ns, moving_ns, span.stream, demands)


def _occupations(
    kernels: Sequence[KernelSpan], gpu: GPU, in_clusters: bool
) -> list[tuple[int, int, int, Contention]]:
    """Start and end of each collective, its stream, and what it leaves; while it waits for others,
    its SMs are held all the same."""
    found: list[tuple[int, int, int, Contention]] = []
    for span in kernels:
        if span.kernel.kernel_class is not KernelClass.COLLECTIVE:
            continue
        moving_ns = span.duration_ns - span.waited_ns
        moving_us = moving_ns / _NS_PER_US
        left = contention_of(span.kernel, moving_us, gpu, in_clusters=in_clusters)
        moves_ns = span.end_ns - moving_ns
        if span.waited_ns:
            waiting = replace(left, bandwidth_left=1.0)
            found.append((span.start_ns, moves_ns, span.stream, waiting))
        found.append((moves_ns, span.end_ns, span.stream, left))
    return found


def _cost_ns(span: KernelSpan, other: tuple[int, int, int, Contention]) -> float:
    start_ns, end_ns, stream, left = other
    shared_ns = min(span.end_ns, end_ns) - max(span.start_ns, start_ns)
    if shared_ns <= 0 or stream == span.stream:
        return 0.0
    estimate = span.estimate
    times = slowdown(span.kernel, estimate.bound, left, num_waves=estimate.num_waves)
    return shared_ns * (1.0 - 1.0 / times)
