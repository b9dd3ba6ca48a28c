"""A timeline with the operators that torch's dispatcher calls around and below its ops.

The time of each op on the host is shared between it and them; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Union

from neusight.recording.recording import OpCall, Operator
from neusight.timeline.host_lane import AUTOGRAD, EVALUATE
from neusight.timeline.operators.inner_calls import CLOSE, LAUNCH, Open, Token, inner_calls
from neusight.timeline.operators.self_times import BETWEEN_US, self_us
from neusight.timeline.spans import HostSpan, KernelSpan, SpanKind, StepSpan, Thread, Timeline

__all__ = ["with_operators"]

#: Share of a span before what follows it that operators in front of it may take.
_GIVEN_SHARE = 0.5


def with_operators(timeline: Timeline, steps: Sequence[StepSpan]) -> Timeline:
    """These steps of a timeline, with their operators; its times are those of all of it."""
    host: list[HostSpan] = []
    kernels: list[KernelSpan] = []
    shown: list[StepSpan] = []
    inner = _Inner()
    for step in steps:
        first_host, first_kernel = len(host), len(kernels)
        tree = _StepTree(timeline, step, host, inner)
        tree.write()
        kernels += (
            kernel._replace(op=tree.position_of(kernel))
            for kernel in timeline.kernels[step.first_kernel : step.last_kernel]
        )
        shown.append(
            replace(
                step,
                first_host=first_host,
                last_host=len(host),
                first_kernel=first_kernel,
                last_kernel=len(kernels),
            )
        )
    return replace(timeline, host=tuple(host), kernels=tuple(kernels), steps=tuple(shown))


class _Begin(NamedTuple):
    """A span begins: an operator, or (`call`) the op itself."""

    name: str
    kind: SpanKind = "operator"
    call: OpCall | None = None


#: What happens in an op's time: a span begins, the innermost one ends, or the runtime is called.
_Event = Union[_Begin, None, HostSpan]


class _Inner:
    """What equal ops call, found once. (The ops are kept, so that no other has their identity.)"""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[Token, ...], OpCall]] = {}

    def events(self, span: HostSpan, made: Sequence[HostSpan]) -> list[_Event]:
        """The op, what it calls, and the calls of the runtime that it made, in order."""
        call = span.call
        assert call is not None
        known = self._known.get(id(call.signature))
        if known is None:
            known = self._known[id(call.signature)] = inner_calls(call.signature), call
        tokens = known[0]
        events: list[_Event] = [_Begin(span.name, "op", call)]
        left = list(made)
        num_launches = tokens.count(LAUNCH)
        for token in tokens:
            if isinstance(token, Open):
                events.append(_Begin(token.name))
            elif token == CLOSE:
                events.append(None)
            else:
                num_launches -= 1
                taken = left[:1] if num_launches else left
                events += taken
                left = left[len(taken) :]
        return [*events, *left, None]


class _Between(NamedTuple):
    """What begins and ends between two spans: `ends` up to the last end of something that began
    before, which may lie in the time of the span before, and the rest."""

    ends: list[_Event]
    begins: list[_Event]


class _Level(NamedTuple):
    """A recorded operator that is open, and how many spans show it."""

    depth: int
    last: int
    num_shown: int


class _Recorded:
    """Reads the recorded operators of a step."""

    def __init__(self, operators: tuple[Operator, ...]) -> None:
        self._operators = operators
        self._next = 0
        self._levels: list[_Level] = []

    def before(self, entry: int, *, is_node: bool = False) -> _Between:
        """What comes before this entry; before an autograd node of the timeline only what lies
        outside of it."""
        events: list[_Event] = []
        operators, levels = self._operators, self._levels
        num_old, split = len(levels), 0
        while True:
            operator = operators[self._next] if self._next < len(operators) else None
            begins = operator is not None and operator.first <= entry
            while levels and (
                levels[-1].depth >= operator.depth if begins and operator else levels[-1].last <= entry
            ):
                events += [None] * levels.pop().num_shown
                if len(levels) < num_old:
                    num_old, split = len(levels), len(events)
            if not begins or operator is None:
                return _Between(events[:split], events[split:])
            self._next += 1
            begun = _begun(operator)
            events += begun
            levels.append(_Level(operator.depth, operator.last, len(begun)))
            if is_node and operator.is_node and not begun:
                return _Between(events[:split], events[split:])


def _begun(operator: Operator) -> list[_Event]:
    """The spans of a recorded operator; the timeline has those of nodes with ops."""
    if not operator.is_node:
        return [_Begin(operator.name)]
    if operator.last > operator.first:
        return []
    return [_Begin(EVALUATE + operator.name, "node"), _Begin(operator.name, "node")]


class _Frame(NamedTuple):
    """An open span: its position and its parent's, and the span around it in the old timeline."""

    position: int
    parent: int
    around: int
    begin: _Begin
    start_ns: int
    thread: Thread
    entry: int


class _StepTree:
    """The spans of one step written anew, with operators."""

    def __init__(
        self, timeline: Timeline, step: StepSpan, host: list[HostSpan], inner: _Inner
    ) -> None:
        self._old = timeline.host
        self._step = step
        self._host = host
        self._inner = inner
        self._open: list[_Frame] = []
        self._moved: dict[int, int] = {}
        self._launched: dict[int, int] = {}
        self._reached_ns = 0
        #: The first op of each open operator that autograd numbered in the forward pass.
        self._numbered: dict[int, OpCall] = {}

    def position_of(self, kernel: KernelSpan) -> int:
        """Where the operator is now that launched the kernel."""
        at = self._launched.get(kernel.correlation)
        return self._moved.get(kernel.op, -1) if at is None else at

    def write(self) -> None:
        """Appends all spans of the step."""
        old, recorded = self._old, _Recorded(self._step.replay.step.operators)
        position, last = self._step.first_host, self._step.last_host
        end = len(self._step.replay.step.entries)
        between = self._between(recorded, position, end)
        while position < last:
            span, after = old[position], position + 1
            if span.kind == "op":
                while after < last and old[after].parent == position:
                    after += 1
                following = self._between(recorded, after, end)
                self._op(position, after, between, following.ends)
                between = _Between([], following.begins)
            else:
                next_ns = old[after].start_ns if after < last else span.end_ns
                self._other(position, between, next_ns)
                between = self._between(recorded, after, end)
            position = after
        while self._open:
            self._end(max(self._reached_ns, self._open[-1].start_ns))

    def _between(self, recorded: _Recorded, position: int, end: int) -> _Between:
        if position >= self._step.last_host:
            return recorded.before(end)
        span = self._old[position]
        if span.kind != "node":
            return recorded.before(span.entry)
        if span.parent == position - 1 and self._old[span.parent].kind == "node":
            return _Between([], [])  # the second of the two that stand for one node
        return recorded.before(span.entry, is_node=True)

    def _op(self, position: int, after: int, before: _Between, ends: list[_Event]) -> None:
        """An op, what begins in front of it and what ends behind it, in its time."""
        span = self._old[position]
        head = [*before.ends, *before.begins]
        events = [*head, *self._inner.events(span, self._old[position + 1 : after]), *ends]
        self._moved[position] = len(self._host) + sum(map(_is_begin, head))
        self._happen(events, _times(events, span.start_ns, span.end_ns), span)
        self._reached_ns = span.end_ns

    def _other(self, position: int, before: _Between, next_ns: int) -> None:
        """Any other span; what begins in front of it takes a part of its time."""
        span = self._old[position]
        events = [*before.ends, *before.begins]
        start_ns, end_ns = span.start_ns, span.end_ns
        if events:
            is_cpu_work = span.kind == "work"
            free_ns = max(0, min(next_ns, end_ns) - start_ns)
            until_ns = end_ns if is_cpu_work else start_ns + round(free_ns * _GIVEN_SHARE)
            self._happen(events, _times(events, start_ns, until_ns), span)
            self._reached_ns = start_ns = until_ns
            if is_cpu_work:
                return
        self._moved[position] = len(self._host)
        if span.correlation:
            self._launched[span.correlation] = len(self._host)
        self._host.append(
            span._replace(
                start_ns=start_ns, duration_ns=end_ns - start_ns, parent=self._parent(span.parent)
            )
        )
        if span.kind == "module" and self._open:
            self._reached_ns = max(self._reached_ns, end_ns)

    def _parent(self, around: int) -> int:
        """The new position of what encloses a span whose parent was this: an operator in it, or
        that parent itself."""
        for frame in reversed(self._open):
            if frame.around == around:
                return frame.position
        return self._moved.get(around, -1)

    def _happen(self, events: Sequence[_Event], times: Sequence[int], span: HostSpan) -> None:
        """The events at these times, where the old timeline has this span."""
        level = len(self._open)
        for event, time_ns in zip(events, times, strict=True):
            if event is None:
                self._end(time_ns)
                level = min(level, len(self._open))
            elif isinstance(event, HostSpan):
                parent = self._open[-1].position
                self._launched[event.correlation] = parent
                self._host.append(event._replace(parent=parent))
            else:
                is_outer = len(self._open) == level
                parent = self._parent(span.parent) if is_outer else self._open[-1].position
                thread = AUTOGRAD if event.kind == "node" else span.thread
                if event.call is not None:
                    self._note_number(event.call)
                self._open.append(
                    _Frame(
                        len(self._host), parent, span.parent, event, time_ns, thread, span.entry
                    )
                )
                self._host.append(span)  # holds the place until its end is known

    def _note_number(self, call: OpCall) -> None:
        """The operators around an op have its number, unless they have one."""
        if call.sequence_nr is None or call.node:
            return
        for frame in reversed(self._open):
            if frame.position in self._numbered:
                return
            self._numbered[frame.position] = call

    def _end(self, time_ns: int) -> None:
        """The innermost operator ends."""
        if not self._open:
            return
        frame = self._open.pop()
        begin = frame.begin
        self._host[frame.position] = HostSpan(
            begin.kind, begin.name, frame.start_ns, max(0, time_ns - frame.start_ns),
            frame.thread, frame.parent, begin.call or self._numbered.pop(frame.position, None),
            entry=frame.entry,
        )  # fmt: skip


def _is_begin(event: _Event) -> bool:
    return isinstance(event, _Begin)


def _times(events: Sequence[_Event], start_ns: int, end_ns: int) -> list[int]:
    """When each event happens: the first begins and the last ends; calls of the runtime are where
    they were; what lies between shares the time by `self_us`."""
    times: list[int] = []
    pending: list[_Event] = []
    since_ns, is_first = start_ns, True
    for event in events:
        if not isinstance(event, HostSpan):
            pending.append(event)
            continue
        times += _shared(pending, since_ns, event.start_ns, at_start=is_first, at_end=False)
        times.append(event.start_ns)
        pending, since_ns, is_first = [], event.end_ns, False
    return times + _shared(pending, since_ns, end_ns, at_start=is_first, at_end=True)


def _shared(
    events: Sequence[_Event], start_ns: int, end_ns: int, *, at_start: bool, at_end: bool
) -> list[int]:
    """The times of events between two others, or from the first to the last of them."""
    weights = [BETWEEN_US if event is None else self_us(event.name, launches=event.call is not None)
               for event in events if not isinstance(event, HostSpan)]  # fmt: skip
    gaps = weights if at_start else [BETWEEN_US, *weights]
    if at_end:
        gaps = gaps[:-1]
    total = sum(gaps)
    free_ns = max(0, end_ns - start_ns)
    if not total:
        return [start_ns] * len(events)
    times = [start_ns] if at_start else []
    passed = 0.0
    for gap in gaps:
        passed += gap
        times.append(start_ns + int(free_ns * passed / total))
    return times[: len(events)]
