"""A timeline with the operators that torch's dispatcher calls around and below its ops.

The time of each op on the host is shared between it and them; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple, Union

from neusight.recording.recording import UNSEEN, WHOLE, Operator, OpSignature, Step
from neusight.timeline.operators.inner_calls import (
    CLOSE,
    LAUNCH,
    Open,
    Token,
    calls_around,
    calls_within,
)
from neusight.timeline.operators.repeats import Repeat, later_kernels, later_spans, repeats_of
from neusight.timeline.operators.self_times import BETWEEN_US, self_us
from neusight.timeline.spans import (
    AUTOGRAD,
    MAIN,
    HostSpan,
    KernelSpan,
    SpanKind,
    StepSpan,
    Thread,
    Timeline,
)

#: Spans are made by the ten thousand: without the function that a NamedTuple makes them by.
_new = tuple.__new__
_OP = KernelSpan._fields.index("op")
_PARENT = HostSpan._fields.index("parent")

#: Share of a span before what follows it that operators in front of it may take.
_GIVEN_SHARE = 0.5


def with_operators(
    timeline: Timeline, steps: Sequence[StepSpan], repeats: Sequence[Repeat] | None = None
) -> Timeline:
    """These steps of a timeline, with their operators; its times are those of all of it. `repeats`
    are `repeats_of` them."""
    host: list[HostSpan] = []
    kernels: list[KernelSpan] = []
    shown: list[StepSpan] = []
    plans = _Plans()
    repeats = repeats_of(timeline, steps) if repeats is None else repeats
    for step, (first, offset) in zip(steps, repeats, strict=True):
        first_host, first_kernel = len(host), len(kernels)
        if first == len(shown):
            tree = _StepTree(timeline, step, host, plans)
            tree.write()
            kernels += tree.kernels()
        else:
            same = shown[first]
            offset = offset._replace(position=first_host - same.first_host)
            host += later_spans(host[same.first_host : same.last_host], offset)
            kernels += later_kernels(kernels[same.first_kernel : same.last_kernel], offset)
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


def shown_positions(
    timeline: Timeline, steps: Sequence[StepSpan], shown: Timeline
) -> dict[int, int]:
    """The position of each op of these steps of a timeline, and where it is in what
    `with_operators` made of them; ops that are left out have none."""
    positions: dict[int, int] = {}
    for step, shown_step in zip(steps, shown.steps, strict=True):
        at = {
            shown.host[position].entry: position
            for position in range(shown_step.first_host, shown_step.last_host)
            if shown.host[position].kind == "op"
        }
        for position in range(step.first_host, step.last_host):
            span = timeline.host[position]
            if span.kind == "op" and span.entry in at:
                positions[position] = at[span.entry]
    return positions


class _Begin(NamedTuple):
    """A span begins: an operator, an autograd node, or ("op") the op itself. Recorded ones have
    numbers of autograd's, which are kept apart: what happens in an op's time is often the same."""

    kind: SpanKind
    name: str
    is_recorded: bool = False


class _RuntimeCalls(NamedTuple):
    """Here the op makes so many calls of the runtime, one after the other."""

    num_calls: int


#: What happens in an op's time; None: the innermost span ends.
_Event = Union[_Begin, _RuntimeCalls, None]


class _Item(NamedTuple):
    """A span that begins in a group of events: by which of their times it begins and ends (-1: it
    stays open), in which other one of the group it lies (-1: in none), whether the op lies in it,
    and whether it launches kernels itself."""

    begin: _Begin
    starts: int
    ends: int
    parent: int
    has_op: bool = False
    launches: bool = False


class _Plan(NamedTuple):
    """What happens in the time of a span, the same for all spans alike. `items` are spans, and the
    numbers of the item (-1: none) around each call of the runtime; `shares` says of each stretch
    of time between such calls when its events happen. `ends` are the times at which spans end that
    were open before: `num_ends` of them before anything begins."""

    items: tuple[_Item | int, ...]
    shares: tuple[tuple[float, ...], ...]
    ends: tuple[int, ...]
    num_ends: int
    op: int


class _Group(NamedTuple):
    """A span of a step and how many calls of the runtime it makes (-1: it is no op); positions,
    also that of the next span, count from the step's first; what happens in its time, and the
    sequence numbers of what begins in it."""

    position: int
    num_calls: int
    following: int
    plan: _Plan | None
    numbers: tuple[int | None, ...]


class _Plans:
    """Plans, made once. (What the identities in keys belong to is kept.)"""

    def __init__(self) -> None:
        self._steps: dict[object, tuple[list[_Group], Step]] = {}
        self._plans: dict[object, _Plan] = {}
        self._inner: dict[tuple[int, str], tuple[tuple[Token, ...], OpSignature]] = {}

    def of_op(
        self, span: HostSpan, name: str, num_calls: int, head: Sequence[_Event],
        ends: Sequence[_Event],
    ) -> _Plan:  # fmt: skip
        """An op of that name ("": only what it calls), and what begins before it and ends after."""
        assert span.call is not None
        signature = span.call.signature
        key = (id(signature), name, num_calls, *head, 0, *ends)
        plan = self._plans.get(key)
        if plan is None:
            known = id(signature), name
            if known not in self._inner:
                called = calls_within(replace(signature, op=name or signature.op))
                self._inner[known] = called, signature
            op = _with_calls(self._inner[known][0], num_calls)
            events = [*head, *([_Begin("op", name), *op, None] if name else op), *ends]
            plan = self._plans[key] = _planned(events)
        return plan

    def of_step(self, step: StepSpan, groups: Callable[[], Iterator[_Group]]) -> Iterable[_Group]:
        """The groups of a step, the same each time that it is run through."""
        recorded = step.replay.step
        key = (id(recorded), step.last_host - step.first_host)
        if key not in self._steps:
            self._steps[key] = list(groups()), recorded
        return self._steps[key][0]

    def of_others(self, events: Sequence[_Event]) -> _Plan:
        """What begins and ends without an op."""
        plan = self._plans.get(tuple(events))
        if plan is None:
            plan = self._plans[tuple(events)] = _planned(events)
        return plan


#: What `reshape` calls where it can keep the strides of a tensor that is not contiguous. It calls
#: `view` for subclasses of tensors, which tensors without data are (TensorShape.cpp).
_ALIAS, _ALIAS_NODE = "aten::_reshape_alias", "ReshapeAliasBackward0"
_VIEW, _VIEW_NODE = "aten::view", "ViewBackward0"

#: Autograd's engine adds a second gradient of a tensor to the first one in place, unless that is a
#: view or, as here, they are of a subclass of tensors (accumulate_grad.h).
_ENGINE = "autograd::engine::"
_ADD, _ADD_INPLACE = "aten::add", "aten::add_"


def _is_alias(span: HostSpan, head: Sequence[_Event]) -> bool:
    """Whether an op is a view of a tensor that is not contiguous, which `reshape` makes."""
    if span.name != _VIEW or span.call is None or not head or head[-1] is None:
        return False
    begun = head[-1]
    if not isinstance(begun, _Begin) or begun.name != "aten::reshape":
        return False
    return not span.call.signature.input_tensors[0].is_contiguous


#: What a program on a GPU calls in an operator, instead of the op that is called there for tensors
#: of a subclass: nothing is changed in place (FunctionsManual.cpp).
_SELECTED = "aten::value_selecting_reduction_backward"
_ON_GPU = {
    ("IndexBackward0", "aten::index_put"): "aten::_index_put_impl_",
    (_SELECTED, "aten::new_zeros"): "aten::zeros",
    (_SELECTED, "aten::scatter"): "aten::scatter_",
    ("aten::index_select_backward", "aten::index_add"): "aten::index_add_",
    ("BinaryCrossEntropyWithLogitsBackward0", "aten::sub"): "aten::sub_",
    ("BinaryCrossEntropyWithLogitsBackward0", "aten::mul"): "aten::mul_",
    ("aten::hardtanh_", "aten::hardtanh_"): "aten::hardtanh",
}


def _with_calls(tokens: Sequence[Token], num_calls: int) -> list[_Event]:
    """What an op calls, with so many calls of the runtime: one at each launch, the rest at the
    last; where there are fewer, at the last launches."""
    events: list[_Event] = []
    num_launches, left = tokens.count(LAUNCH), num_calls
    skipped = max(0, num_launches - num_calls)
    for token in tokens:
        if isinstance(token, Open):
            events.append(_Begin("operator", token.name))
        elif token == CLOSE:
            events.append(None)
        else:
            num_launches -= 1
            if skipped:
                skipped -= 1
                continue
            count = min(left, 1) if num_launches else left
            left -= count
            if count:
                events.append(_RuntimeCalls(count))
    return [*events, _RuntimeCalls(left)] if left else events


def _planned(events: Sequence[_Event]) -> _Plan:
    items: list[_Item | int] = []
    opened: list[int] = []
    ends: list[int] = []
    num_ends, op, num_times = 0, -1, 0
    stretches: list[list[_Event]] = [[]]

    def change(index: int, **fields: Any) -> None:
        item = items[index]
        assert isinstance(item, _Item)
        items[index] = item._replace(**fields)

    for event in events:
        if isinstance(event, _RuntimeCalls):
            items += [opened[-1] if opened else -1] * event.num_calls
            if opened:
                change(opened[-1], launches=True)
            stretches += [[] for _ in range(event.num_calls)]
            continue
        stretches[-1].append(event)
        if event is None and opened:
            change(opened.pop(), ends=num_times)
        elif event is None:
            ends.append(num_times)
            num_ends += not items
        else:
            if event.kind == "op":
                op = len(items)
                for index in opened:
                    change(index, has_op=True)
            parent = opened[-1] if opened else -1
            opened.append(len(items))
            items.append(_Item(event, num_times, -1, parent))
        num_times += 1
    last = len(stretches) - 1
    shares = [
        _shares(stretch, at_start=number == 0, at_end=number == last)
        for number, stretch in enumerate(stretches)
    ]
    return _Plan(tuple(items), tuple(shares), tuple(ends), num_ends, op)


def _shares(events: Sequence[_Event], *, at_start: bool, at_end: bool) -> tuple[float, ...]:
    """When events happen in a stretch of time, as shares of it by `self_us`: between two calls of
    the runtime, or from the first of the events to the last."""
    weights = [
        self_us(event.name, launches=event.kind == "op")
        if isinstance(event, _Begin)
        else BETWEEN_US
        for event in events
    ]
    gaps = weights if at_start else [BETWEEN_US, *weights]
    gaps = gaps[:-1] if at_end else gaps
    total = sum(gaps) or 1.0
    shares = [0.0] if at_start else []
    shares += [passed / total for passed in accumulate(gaps)]
    return tuple(shares[: len(events)])


class _Between(NamedTuple):
    """What begins and ends between two spans: `ends` up to the last end of something that began
    before, which may lie in the time of the span before, and the rest; each with the numbers of
    what begins in it; `inside` is the innermost operator then. `is_unseen`: no program on a GPU
    calls the op that follows; `is_whole`: it is what the innermost operator does itself."""

    ends: list[_Event]
    begins: list[_Event]
    end_numbers: list[int | None]
    numbers: list[int | None]
    inside: str
    is_unseen: bool = False
    is_whole: bool = False


class _Recorded:
    """Reads the recorded operators of a step."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        #: Whether nodes of autograd are among them.
        self.has_nodes = any(operator.is_node for operator in operators)
        #: Autograd's numbers of views that `reshape` makes by strides.
        self.aliases: set[int] = set()
        self._operators = tuple(operators)
        self._next = 0
        self._open: list[Operator] = []

    def before(self, entry: int) -> _Between:
        """What comes before this entry."""
        events: list[_Event] = []
        numbers: list[int | None] = []
        operators, opened = self._operators, self._open
        num_old, split, num_split, is_unseen, is_whole = len(opened), 0, 0, False, False
        while True:
            operator = operators[self._next] if self._next < len(operators) else None
            if operator is not None and operator.first > entry:
                operator = None
            while opened and (
                opened[-1].last <= entry if operator is None else opened[-1].depth >= operator.depth
            ):
                opened.pop()
                events.append(None)
                if len(opened) < num_old:
                    num_old, split, num_split = len(opened), len(events), len(numbers)
            if operator is None:
                return _Between(
                    events[:split], events[split:], numbers[:num_split], numbers[num_split:],
                    opened[-1].name if opened else "", is_unseen, is_whole,
                )  # fmt: skip
            self._next += 1
            if operator.name in (UNSEEN, WHOLE):
                is_unseen = is_unseen or operator.name == UNSEEN
                is_whole = is_whole or operator.name == WHOLE
                continue
            opened.append(operator)
            begin, number = self._begin(operator)
            events.append(begin)
            numbers.append(number)

    def _begin(self, operator: Operator) -> tuple[_Begin, int | None]:
        """Begins the operator before `_next`, with its number."""
        kind: SpanKind = "node" if operator.is_node else "operator"
        kind = "function" if operator.is_function else kind
        number = operator.sequence_nr
        if number is None and operator.is_node and self._next < len(self._operators):
            number = self._operators[self._next].sequence_nr  # of the node that the engine runs
        name = operator.name
        if number in self.aliases and name.endswith(_VIEW_NODE):
            name = name.removesuffix(_VIEW_NODE) + _ALIAS_NODE
        return _Begin(kind, name, True), number


class _Frame(NamedTuple):
    """An open span: its position and its parent's, and the span around it in the old timeline."""

    position: int
    parent: int
    around: int | None
    start_ns: int
    sequence_nr: int | None


class _StepTree:
    """The spans of one step written again, with operators."""

    def __init__(
        self, timeline: Timeline, step: StepSpan, host: list[HostSpan], plans: _Plans
    ) -> None:
        self._old = timeline.host
        self._kernels = timeline.kernels[step.first_kernel : step.last_kernel]
        self._step = step
        self._host = host
        self._plans = plans
        self._recorded = _Recorded(step.replay.step.operators)
        self._open: list[_Frame] = []
        self._least_ends: list[int] = []  # of those, by what lies in them
        self._moved: dict[int, int] = {}
        self._launched: dict[int, int] = {}
        self._reached_ns = 0

    def kernels(self) -> Iterator[KernelSpan]:
        """The step's kernels, each with the operator that launched it."""
        for kernel in self._kernels:
            at = self._launched.get(kernel.correlation)
            if at is None:
                at = self._moved.get(kernel.op, -1)
            yield _new(KernelSpan, (*kernel[:_OP], at, *kernel[_OP + 1 :]))

    def write(self) -> None:
        """Appends all spans of the step."""
        first = self._step.first_host
        for group in self._plans.of_step(self._step, self._groups):
            if group.num_calls >= 0:
                self._op(first, group)
            else:
                self._other(first, group)
        while self._open:
            self._end(max(self._reached_ns, self._open[-1].start_ns))

    def _groups(self) -> Iterator[_Group]:
        """The step's spans with what begins and ends around them."""
        old, first = self._old, self._step.first_host
        position, last = self._next_own(first), self._step.last_host
        yield from self._elsewhere(first, position)
        between = self._between(position)
        plan: _Plan | None
        while position < last:
            span, after = old[position], position + 1
            head = [*between.ends, *between.begins]
            numbers = [*between.end_numbers, *between.numbers]
            if span.kind == "op":
                behind = self._behind(position)
                num_calls, after = behind - position - 1, self._next_own(behind)
                following = self._between(after)
                if between.is_unseen:
                    plan = self._plans.of_others([*head, *following.ends])
                else:
                    name = self._name_of(span, head, between)
                    plan = self._plans.of_op(span, name, num_calls, head, following.ends)
                numbers += following.end_numbers
                between = following._replace(ends=[], end_numbers=[])
            else:
                behind, num_calls, after = after, -1, self._next_own(after)
                plan = self._plans.of_others(head) if head else None
                between = self._between(after)
            yield _Group(position - first, num_calls, after - first, plan, tuple(numbers))
            yield from self._elsewhere(behind, after)
            position = after

    def _elsewhere(self, position: int, last: int) -> Iterator[_Group]:
        """Spans of the program's other threads: what operators call theirs is not recorded, so
        that those are around them that always are."""
        first = self._step.first_host
        while position < last:
            span, after, plan, num_calls = self._old[position], position + 1, None, -1
            if span.call is not None:
                after = self._behind(position)
                num_calls = after - position - 1
                around = calls_around(span.call.signature)
                head, ends = [_Begin("operator", name) for name in around], [None] * len(around)
                plan = self._plans.of_op(span, span.name, num_calls, head, ends)
            if span.kind != "node":
                yield _Group(position - first, num_calls, after - first, plan, ())
            position = after

    def _behind(self, position: int) -> int:
        """The position behind an op and its calls of the runtime."""
        after = position + 1
        while after < self._step.last_host and self._old[after].parent == position:
            after += 1
        return after

    def _name_of(self, span: HostSpan, head: list[_Event], between: _Between) -> str:
        """The name that an op has on a GPU; "" where the operator around it launches its
        kernels."""
        inside = between.inside
        if _is_alias(span, head):
            if span.call and span.call.sequence_nr is not None:
                self._recorded.aliases.add(span.call.sequence_nr)
            return _ALIAS
        if span.name == _ADD and inside.startswith(_ENGINE) and span.call is not None:
            first = span.call.signature.input_tensors[0]
            if first.is_contiguous or first.is_channels_last:  # no part of another gradient
                return _ADD_INPLACE
        return _ON_GPU.get((inside, span.name), "" if between.is_whole else span.name)

    def _next_own(self, position: int) -> int:
        """The next span of the main thread or its backward which is no node, where nodes were
        recorded."""
        old, has_nodes = self._old, self._recorded.has_nodes
        while position < self._step.last_host and (
            (has_nodes and old[position].kind == "node") or _is_elsewhere(old[position])
        ):
            position += 1
        return position

    def _between(self, position: int) -> _Between:
        is_end = position >= self._step.last_host
        num_entries = len(self._step.replay.step.entries)
        return self._recorded.before(num_entries if is_end else self._old[position].entry)

    def _around(self, span: HostSpan) -> tuple[int, int]:
        """The old span around one, and when it starts: with its nodes, where these are recorded."""
        around, start_ns = span.parent, span.start_ns
        if self._recorded.has_nodes:
            while around >= 0 and self._old[around].kind == "node":
                if self._old[around].start_ns >= self._reached_ns:
                    start_ns = self._old[around].start_ns
                around = self._old[around].parent
        return around, start_ns

    def _op(self, first: int, group: _Group) -> None:
        """An op, what begins in front of it and what ends behind it, in its time."""
        position, plan = first + group.position, group.plan
        assert plan is not None
        span = self._old[position]
        made = self._old[position + 1 : position + 1 + group.num_calls]
        if plan.op >= 0:
            self._moved[position] = len(self._host) + plan.op
        if _is_elsewhere(span):
            self._happen(plan, (), span, None, span.start_ns, span.end_ns, made)
            return
        around, start_ns = self._around(span)
        self._happen(plan, group.numbers, span, around, start_ns, span.end_ns, made)
        self._reached_ns = span.end_ns

    def _other(self, first: int, group: _Group) -> None:
        """Any other span; what begins in front of it takes a part of its time."""
        position, following, plan = first + group.position, first + group.following, group.plan
        span = self._old[position]
        start_ns, end_ns = span.start_ns, span.end_ns
        if plan is not None:
            is_cpu_work = span.kind == "work"
            is_last = following >= self._step.last_host
            next_ns = end_ns if is_last else min(end_ns, self._old[following].start_ns)
            free_ns = max(0, next_ns - start_ns)
            until_ns = end_ns if is_cpu_work else start_ns + round(free_ns * _GIVEN_SHARE)
            self._happen(plan, group.numbers, span, span.parent, start_ns, until_ns, ())
            self._reached_ns = start_ns = until_ns
            if is_cpu_work:
                return
        self._moved[position] = len(self._host)
        if span.correlation:
            self._launched[span.correlation] = len(self._host)
        parent = self._parent(None if _is_elsewhere(span) else span.parent)
        thread = span.thread
        if parent >= 0 and self._host[parent].thread == AUTOGRAD:  # backward calls a module again
            thread = AUTOGRAD
        self._host.append(
            span._replace(
                start_ns=start_ns, duration_ns=end_ns - start_ns, parent=parent, thread=thread
            )
        )
        if span.kind == "module" and self._open:
            self._reached_ns = max(self._reached_ns, end_ns)
            self._least_ends = [max(known, end_ns) for known in self._least_ends]

    def _parent(self, around: int | None) -> int:
        """The new position of what encloses a span whose parent was this: an operator in it, or
        that parent itself; nothing of another thread (None)."""
        if around is None:
            return -1
        for frame in reversed(self._open):
            if frame.around == around:
                return frame.position
        return self._moved.get(around, -1)

    def _happen(
        self, plan: _Plan, numbers: Iterable[int | None], span: HostSpan, around: int | None,
        start_ns: int, end_ns: int, made: Sequence[HostSpan],
    ) -> None:  # fmt: skip
        """What is planned happens in the time of a span; `made` are its calls of the runtime."""
        times = _times(plan.shares, start_ns, end_ns, made)
        for index in plan.ends[: plan.num_ends]:
            self._end(times[index])
        host, first = self._host, len(self._host)
        outer, call, thread, entry = self._parent(around), span.call, span.thread, span.entry
        forward_nr = None if call is None or call.node else call.sequence_nr
        if forward_nr is not None and around is not None:
            self._number_open(forward_nr)
        num_calls, given = 0, iter(numbers)
        for item in plan.items:
            if isinstance(item, int):
                runtime = made[num_calls]
                num_calls += 1
                parent = first + item if item >= 0 else outer
                self._launched[runtime.correlation] = parent
                host.append(_new(HostSpan, (*runtime[:_PARENT], parent, *runtime[_PARENT + 1 :])))
                continue
            (kind, name, is_recorded), starts, ends, inside, has_op, launches = item
            start_ns = times[starts]
            parent = first + inside if inside >= 0 else outer
            number = next(given) if is_recorded else None
            if number is None and has_op and kind == "operator":
                number = forward_nr
            lane: Thread = AUTOGRAD if kind == "node" else MAIN if kind == "function" else thread
            if ends < 0:
                duration_ns = 0
                self._open.append(_Frame(len(host), parent, around, start_ns, number))
                self._least_ends.append(start_ns)
            else:
                duration_ns = times[ends] - start_ns
            of_item = call if launches or kind == "op" else None
            fields = (
                kind, name, start_ns, duration_ns, lane, parent, of_item, 0, "", entry, number
            )  # fmt: skip
            host.append(_new(HostSpan, fields))
        for index in plan.ends[plan.num_ends :]:
            self._end(times[index])

    def _number_open(self, number: int) -> None:
        """Operators around an op that autograd numbers have its number, unless they have one."""
        frames = self._open
        for index in range(len(frames) - 1, -1, -1):
            if frames[index].sequence_nr is not None:
                return
            frames[index] = frames[index]._replace(sequence_nr=number)

    def _end(self, time_ns: int) -> None:
        """The innermost operator ends."""
        frame, end_ns = self._open.pop(), max(time_ns, self._least_ends.pop())
        self._host[frame.position] = self._host[frame.position]._replace(
            duration_ns=end_ns - frame.start_ns, sequence_nr=frame.sequence_nr
        )


def _is_elsewhere(span: HostSpan) -> bool:
    """Whether a span is of a thread of the program's own."""
    return span.thread not in (MAIN, AUTOGRAD)


def _times(
    shares: Sequence[Sequence[float]], start_ns: int, end_ns: int, made: Sequence[HostSpan]
) -> list[int]:
    """When each event happens; calls of the runtime are where they were."""
    if not made:
        free_ns = end_ns - start_ns if end_ns > start_ns else 0
        return [start_ns + int(free_ns * share) for share in shares[0]]
    times: list[int] = []
    for number, stretch in enumerate(shares):
        until_ns = made[number].start_ns if number < len(made) else end_ns
        free_ns = max(0, until_ns - start_ns)
        times += [start_ns + int(free_ns * share) for share in stretch]
        if number < len(made):
            start_ns = made[number].end_ns
    return times
