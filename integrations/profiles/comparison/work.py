"""The work that a step's kernels do, and what of it two profiles share."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from neusight.integrations.profiles.aliases import (
    DATA_GRADIENT,
    WEIGHT_GRADIENT,
    ProblemSize,
    class_of_name,
    class_of_op,
    gradient_of,
    is_auxiliary,
    size_of,
)
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile, ProfileStep
from neusight.predictors.kernel import KernelClass


class Work(NamedTuple):
    """The kernels by which one operator call solves one problem."""

    kind: KernelClass
    size: ProblemSize
    op: str
    num_kernels: int
    duration_ns: int
    has_size: bool = True


#: So many of the rounds in which work is matched ask for equal sizes.
_SHOWN_BY_SIZE = 2


def work_of(profile: Profile, step: ProfileStep) -> list[Work]:
    """The step's kernels gathered by operator call, class and problem, in order of launch."""
    groups: dict[tuple[int, KernelClass, ProblemSize], list[DeviceEvent]] = {}
    by_op: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in step.events:
        by_op[event.op].append(event)
    gradients = {op: _gradients(profile, op, events) for op, events in by_op.items()}
    turn: Counter[int] = Counter()
    alone = -1  # a kernel of no operator is work of its own
    for event in step.events:
        op = profile.op_of(event)
        index = turn[event.op]
        turn[event.op] += 1
        kind = _class_of(event, op.name if op is not None else "")
        if op is None:
            size = ProblemSize("", (event.num_bytes,) if event.num_bytes else ())
            alone -= 1
            groups[alone, kind, size] = [event]
            continue
        size = size_of(kind, op, gradients[event.op][index])
        groups.setdefault((event.op, kind, size), []).append(event)
    return [
        Work(
            kind=kind,
            size=size,
            op=profile.ops[position].name if position >= 0 else "",
            num_kernels=len(events),
            duration_ns=sum(event.duration_ns for event in events),
            has_size=position < 0 or _has_size(kind, profile.ops[position].shapes),
        )
        for (position, kind, size), events in groups.items()
    ]


def _has_size(kind: KernelClass, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the shapes say what is worked on; profiles record none of lists of tensors."""
    return any(shapes) if kind is KernelClass.OPTIMIZER else bool(shapes)


def _class_of(event: DeviceEvent, op: str) -> KernelClass:
    """The class of the work a kernel belongs to: its own, or that of the kernel it helps."""
    if event.kernel_class:
        try:
            kind = KernelClass(event.kernel_class)
        except ValueError:
            kind = KernelClass.UNKNOWN
    else:
        kind = class_of_name(event.name)
    return class_of_op(op) if op and is_auxiliary(kind, op) else kind


def _gradients(profile: Profile, op: int, events: Sequence[DeviceEvent]) -> list[str]:
    """For each kernel of a convolution's backward which gradient it serves; helpers go with the
    main kernel that follows, or with the last one."""
    if op < 0 or "backward" not in profile.ops[op].name:
        return [""] * len(events)
    by_op = gradient_of(profile.ops[op].name)
    if by_op:
        return [by_op] * len(events)
    reported = [gradient_of(event.name) for event in events]
    _name_products(reported, events)
    last = ""
    for index in reversed(range(len(reported))):
        last = reported[index] = reported[index] or last
    for index in range(1, len(reported)):
        reported[index] = reported[index] or reported[index - 1]
    return reported


def _name_products(reported: list[str], events: Sequence[DeviceEvent]) -> None:
    """Fills in which gradient of a convolution a plain matrix product computes, which its name
    does not say: the data's comes first."""
    products = [
        index
        for index, event in enumerate(events)
        if not reported[index] and class_of_name(event.name) is KernelClass.GEMM
    ]
    for index in products:
        if DATA_GRADIENT in reported[:index]:
            reported[index] = WEIGHT_GRADIENT
        elif WEIGHT_GRADIENT in reported[index:] or len(products) > 1:
            reported[index] = DATA_GRADIENT


def matched(
    measured: list[Work], forecast: list[Work]
) -> tuple[list[tuple[Work, Work]], list[Work], list[Work]]:
    """Pairs of equal class and size, equal operator names first, each in order; then those of
    which no size is known, by class alone; and the rest."""
    pairs: list[tuple[Work, Work]] = []
    keys: list[Callable[[Work], object]] = [
        lambda work: (work.kind, work.size, work.op),
        lambda work: (work.kind, work.size),
        lambda work: (work.kind, work.op),
        lambda work: work.kind,
    ]
    for turn, key in enumerate(keys):
        found, measured, forecast = _paired(
            measured, forecast, key, sized_stay=turn >= _SHOWN_BY_SIZE
        )
        pairs += found
    return pairs, measured, forecast


def _paired(
    measured: list[Work], forecast: list[Work], key: Callable[[Work], object], *, sized_stay: bool
) -> tuple[list[tuple[Work, Work]], list[Work], list[Work]]:
    """Pairs of equal key, each in order, and the rest; `sized_stay` leaves out what has a size."""
    waiting: dict[object, deque[int]] = defaultdict(deque)
    for index, work in enumerate(forecast):
        waiting[key(work)].append(index)
    pairs: list[tuple[Work, Work]] = []
    taken: set[int] = set()
    left = []
    for work in measured:
        queue = waiting[key(work)]
        if not queue or (sized_stay and work.has_size) or work.kind is KernelClass.UNKNOWN:
            left.append(work)
            continue
        index = queue.popleft()
        taken.add(index)
        pairs.append((work, forecast[index]))
    return pairs, left, [work for index, work in enumerate(forecast) if index not in taken]
