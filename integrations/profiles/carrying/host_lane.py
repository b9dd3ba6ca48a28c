"""The host of a profile as spans of a timeline, at the times at which they happen now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neusight.integrations.profiles.carrying.prices import CarriedKernel
from neusight.integrations.profiles.carrying.replay import Replayed
from neusight.integrations.profiles.reading.profile import HostOp, Profile, RuntimeCall
from neusight.recording.recording import MathMode, OpCall, OpSignature
from neusight.timeline.spans import AUTOGRAD, MAIN, HostSpan, SpanKind, Thread, other_thread

#: Begins the names of what autograd's engine does on its thread.
_ENGINE = "autograd::engine::"


class CarriedHost(NamedTuple):
    """Ops and runtime calls in order of start, each within the op around it; `place_of_op` is
    where the span of each op of the profile is."""

    spans: tuple[HostSpan, ...]
    place_of_op: dict[int, int]


def carried_host(profile: Profile, kernels: Sequence[CarriedKernel], now: Replayed) -> CarriedHost:
    """The host's ops, launches and waits, of the profile and its carried kernels."""
    calls = {item.position: item.call for item in kernels if item.position >= 0}
    items = list(_in_order(profile))
    lanes = _lanes(profile, [item.thread for item, _ in items])
    spans: list[HostSpan] = []
    place_of_op: dict[int, int] = {}
    open_ops: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for item, position in items:
        stack = open_ops[item.thread]
        while stack and stack[-1][1] <= item.start_ns:
            stack.pop()
        parent = stack[-1][0] if stack else -1
        if isinstance(item, HostOp):
            place_of_op[position] = len(spans)
            stack.append((len(spans), item.end_ns))
        call = None
        if isinstance(item, HostOp):
            call = calls.get(position) or _plain(item.name)
        spans.append(_span(item, now, call, parent, lanes[item.thread]))
    return CarriedHost(tuple(spans), place_of_op)


def _in_order(profile: Profile) -> Iterator[tuple[HostOp | RuntimeCall, int]]:
    """Ops, launches and waits by their start, longer ones first, each with its position."""
    launching = {event.launch for event in profile.events}
    items: list[tuple[HostOp | RuntimeCall, int]] = [
        (op, position) for position, op in enumerate(profile.ops)
    ]
    items += [
        (call, number)
        for number, call in enumerate(profile.calls)
        if number in launching or _is_wait(call)
    ]
    yield from sorted(items, key=lambda pair: (pair[0].start_ns, -pair[0].duration_ns))


def _span(
    item: HostOp | RuntimeCall, now: Replayed, call: OpCall | None, parent: int, thread: Thread
) -> HostSpan:
    kind: SpanKind = "op"
    correlation = 0
    if isinstance(item, RuntimeCall):
        kind = "sync" if _is_wait(item) else "launch"
        correlation = item.correlation or 0
    start_ns = now.host_ns(item.start_ns)
    duration_ns = max(0, now.host_ns(item.end_ns) - start_ns)
    return HostSpan(kind, item.name, start_ns, duration_ns, thread, parent, call, correlation)


def _is_wait(call: RuntimeCall) -> bool:
    return "Synchronize" in call.name


def _plain(name: str) -> OpCall:
    """An op of which the name is all that counts: it launched nothing itself."""
    return OpCall(OpSignature(name, "default", (), ()), MathMode())


def _lanes(profile: Profile, threads: Sequence[str]) -> dict[str, Thread]:
    """The lane of each thread: the one that launches first is the main one."""
    backward = {op.thread for op in profile.ops if op.name.startswith(_ENGINE)}
    main = min(profile.calls, key=lambda call: call.start_ns).thread if profile.calls else ""
    others = (
        thread for thread in dict.fromkeys(threads) if thread != main and thread not in backward
    )
    lanes = {thread: other_thread(number) for number, thread in enumerate(others, start=1)}
    return {**dict.fromkeys(backward, AUTOGRAD), **lanes, main: MAIN}
