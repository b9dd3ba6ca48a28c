"""Sorts events by kind, then ties kernels to their launches and operators."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from neusight.integrations.profiles.reading.fields import (
    integer_of,
    is_timed,
    number_of,
    shapes_of,
    types_of,
)
from neusight.integrations.profiles.reading.notes import Notes
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    EventKind,
    HostOp,
    RuntimeCall,
)
from neusight.predictors.published.wave_scaling import LaunchSize

#: Notes that name examples name this many.
_EXAMPLES = 3

#: Categories of torch 1.8 to 2.13, in lower case; the older ones are the shorter ones.
_DEVICE_CATEGORIES: dict[str, EventKind] = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}

_RUNTIME = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime")

_OPERATORS = ("cpu_op", "operator")

_ANNOTATIONS = ("user_annotation", *_OPERATORS)

STEP_MARK = "ProfilerStep#"

_LOADER = "enumerate(DataLoader)#"


def used_events(events: Iterable[object]) -> list[dict[str, object]]:
    """The events that a profile is made of; stacks, arrows and names, most of a file, are not."""
    return [event for event in events if isinstance(event, dict) and _is_used(event)]


def _is_used(event: dict[str, object]) -> bool:
    if event.get("ph") == "X":
        category = str(event.get("cat", "")).lower()
        known = category in _DEVICE_CATEGORIES or category in _RUNTIME or category in _ANNOTATIONS
        return known and is_timed(event)
    return event.get("name") == "[memory]"


class Builder:
    """Sorts events by kind, then ties kernels to their launches and operators."""

    def __init__(self, base_us: float, keep_arguments: bool) -> None:
        self.ops: list[HostOp] = []
        self.calls: list[RuntimeCall] = []
        self.events: list[DeviceEvent] = []
        self.marks: list[HostOp] = []
        self.loads: list[HostOp] = []
        self._base_us = base_us
        self._keep_arguments = keep_arguments
        self._external: list[int | None] = []
        #: Positions of the events that were launched before the trace begins.
        self.early: frozenset[int] = frozenset()

    def add(self, event: dict[str, object]) -> None:
        """Takes one event, in any order; what no profile needs is passed over."""
        category = str(event.get("cat", "")).lower()
        name = str(event.get("name", ""))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        start_ns = round((number_of(event["ts"]) - self._base_us) * 1000)
        duration_ns = max(0, round(number_of(event["dur"]) * 1000))
        thread = f"{event.get('pid')}/{event.get('tid')}"
        span = HostOp(name, start_ns, duration_ns, thread)
        external = integer_of(args.get("External id", args.get("external id")))
        if category in _DEVICE_CATEGORIES:
            self._external.append(external)
            self.events.append(_device_event(event, _DEVICE_CATEGORIES[category], span, args))
        elif category in _RUNTIME:
            correlation = integer_of(args.get("correlation"))
            call = RuntimeCall(name, start_ns, duration_ns, thread, correlation, external)
            self.calls.append(call)
        elif category in _ANNOTATIONS and name.startswith(STEP_MARK):
            self.marks.append(span)
        elif category in _ANNOTATIONS and name.startswith(_LOADER):
            self.loads.append(span)
        elif category in _OPERATORS:
            op = _host_op(span, args, external)
            self.ops.append(op._replace(arguments=args) if self._keep_arguments else op)

    def finish(self, notes: Notes) -> None:
        """Ties what belongs together, once all events are there."""
        self.calls.sort(key=lambda call: call.start_ns)
        self.ops.sort(key=lambda op: (op.start_ns, -op.duration_ns))
        order = sorted(range(len(self.events)), key=lambda i: (self.events[i].start_ns, i))
        self._external = [self._external[i] for i in order]
        self.events = [self.events[i] for i in order]
        launches = self._launches(notes)
        owners = self._owners(launches, notes)
        self.events = [
            event._replace(launch=launch, op=op)
            for event, launch, op in zip(self.events, launches, owners, strict=True)
        ]
        self.early = self._launched_before()
        self._record_unlinked(launches, owners, notes)

    def _record_unlinked(
        self, launches: Sequence[int], owners: Sequence[int], notes: Notes
    ) -> None:
        if self.early:
            early_ms = sum(self.events[i].duration_ns for i in self.early) / 1e6
            notes.add(
                f"{len(self.early)} of {len(launches)} kernels and copies ({early_ms:,.2f} ms) "
                "were launched before the trace begins: they are left out of its steps"
            )
        untied = sum(launch < 0 for launch in launches) - len(self.early)
        if untied:
            notes.add(f"{untied} of {len(launches)} kernels and copies have no launch call")
        unowned = sum(op < 0 for op in owners)
        if unowned:
            notes.add(f"{unowned} of {len(owners)} kernels and copies have no operator")
        if self.ops and not any(op.shapes for op in self.ops):
            notes.add(
                "operators have no shapes (record_shapes=True records them): kernels can be "
                "matched by class and order only"
            )

    def _launched_before(self) -> frozenset[int]:
        """The events without a launch call that the GPU still had to do: a stream runs in order,
        so they lie before the first one that the trace saw launched there, or before any call."""
        seen: dict[tuple[int, int], int] = {}
        for event in self.events:
            if event.launch >= 0:
                seen.setdefault((event.device, event.stream), event.start_ns)
        if not seen:
            return frozenset()
        begin_ns = self.calls[0].start_ns
        return frozenset(
            position
            for position, event in enumerate(self.events)
            if event.launch < 0
            and event.start_ns < seen.get((event.device, event.stream), begin_ns)
        )

    def _launches(self, notes: Notes) -> list[int]:
        """For each device event the last call of its correlation id that had begun before it."""
        known: dict[int, list[int]] = defaultdict(list)
        for position, call in enumerate(self.calls):
            if call.correlation is not None:
                known[call.correlation].append(position)
        # cudaGraphLaunch and its kernels share one id; two calls must not.
        double = [number for number, found in known.items() if number and len(found) > 1]
        if double:
            notes.add(
                f"{len(double)} correlation ids name several calls ({_named(double)}): kernels "
                "were tied to the latest one before them"
            )
        found = []
        for event in self.events:
            calls = known.get(event.correlation, []) if event.correlation is not None else []
            # Calls are in order of start.
            before = bisect_right(calls, event.start_ns, key=lambda i: self.calls[i].start_ns)
            found.append(calls[max(0, before - 1)] if calls else -1)
        return found

    def _owners(self, launches: list[int], notes: Notes) -> list[int]:
        """For each device event its operator: by id, or the innermost around its launch."""
        known: dict[int, list[int]] = defaultdict(list)
        for position, op in enumerate(self.ops):
            if op.external_id:
                known[op.external_id].append(position)
        double = [number for number, found in known.items() if len(found) > 1]
        if double:
            notes.add(
                f"{len(double)} external ids name several operators ({_named(double)}): kernels "
                "were tied to the one around their launch"
            )
        owners: list[int] = []
        lookups: list[_Lookup] = []
        for event, launch, external in zip(self.events, launches, self._external, strict=True):
            call = self.calls[launch] if launch >= 0 else None
            time_ns = call.start_ns if call is not None else event.start_ns
            if external is None and call is not None:
                external = call.external_id
            named = known.get(external, []) if external else []
            before = bisect_right(named, time_ns, key=lambda i: self.ops[i].start_ns)
            if not before and call is not None:
                lookups.append(_Lookup(call.start_ns, call.thread, len(owners)))
            owners.append(named[before - 1] if before else -1)
        for lookup, position in _innermost(self.ops, lookups):
            owners[lookup.number] = position
        return owners


def _device_event(
    event: dict[str, object], kind: EventKind, span: HostOp, args: dict[str, object]
) -> DeviceEvent:
    return DeviceEvent(
        kind=kind,
        name=span.name,
        start_ns=span.start_ns,
        duration_ns=span.duration_ns,
        device=integer_of(args.get("device", event.get("pid"))) or 0,
        stream=integer_of(args.get("stream", event.get("tid"))) or 0,
        correlation=integer_of(args.get("correlation")),
        num_bytes=integer_of(args.get("bytes")) or 0,
        kernel_class=str(args.get("kernel class", "")),
        size=_launch_size(args),
    )


def _launch_size(args: dict[str, object]) -> LaunchSize | None:
    grid, block = _counts(args.get("grid")), _counts(args.get("block"))
    if not grid or not block:
        return None
    return LaunchSize(
        prod(grid),
        prod(block),
        integer_of(args.get("registers per thread")) or 0,
        integer_of(args.get("shared memory")) or 0,
    )


def _counts(value: object) -> list[int]:
    """The numbers of a list; empty where it is none, or one of them cannot be."""
    numbers = [integer_of(item) or 0 for item in value] if isinstance(value, list) else []
    return numbers if all(number > 0 for number in numbers) else []


def _host_op(span: HostOp, args: dict[str, object], external: int | None) -> HostOp:
    return span._replace(
        shapes=tuple(shapes_of(args.get("Input Dims", args.get("Input dims")))),
        types=types_of(args.get("Input type")),
        external_id=external,
        sequence_nr=integer_of(args.get("Sequence number", args.get("Fwd sequence number"))),
    )


class _Lookup(NamedTuple):
    """Which operator runs at a time on a thread; `number` says who asks."""

    time_ns: int
    thread: str
    number: int


def _innermost(ops: list[HostOp], lookups: Iterable[_Lookup]) -> Iterator[tuple[_Lookup, int]]:
    """The innermost operator for each question, -1 where none runs; all in one pass over time."""
    open_ops: dict[str, list[int]] = defaultdict(list)
    begun = 0
    for lookup in sorted(lookups):
        while begun < len(ops) and ops[begun].start_ns <= lookup.time_ns:
            stack = open_ops[ops[begun].thread]
            while stack and ops[stack[-1]].end_ns <= ops[begun].start_ns:
                stack.pop()
            stack.append(begun)
            begun += 1
        stack = open_ops[lookup.thread]
        while stack and ops[stack[-1]].end_ns < lookup.time_ns:
            stack.pop()
        yield lookup, stack[-1] if stack else -1


def _named(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_EXAMPLES])
    return shown + (", …" if len(numbers) > _EXAMPLES else "")
