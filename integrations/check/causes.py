"""What a change of work in a module adds to a figure, and the lines that lead there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from os.path import commonprefix
from typing import Any, NamedTuple

from neusight.integrations.check.baseline import Case, MemoryRow, folded, unfolded
from neusight.integrations.check.difference import Cost, Difference, PricedWork, WorkKey
from neusight.integrations.check.observation import CallStack, Observation

#: Share of an increase that its named causes make up.
_MOST = 0.9


class Cause(NamedTuple):
    """What changed in a module (or in several equal layers, written together).

    `amount` is how much it adds, microseconds or bytes over all of them; `was` and `now` say what
    is done there ("" for nothing), `host_us` what it adds on the host, `num_kernels` how many
    kernels. `stack` holds the lines that lead there now, `made` those that made the module; where
    the same is called from several places, `elsewhere` holds the others.
    """

    module: str
    phase: str
    op: str
    was: str
    now: str
    amount: float
    host_us: float
    num_kernels: int
    stack: CallStack
    made: CallStack = ()
    elsewhere: tuple[CallStack, ...] = ()

    @property
    def is_in_module(self) -> bool:
        """Whether it belongs to a module, not to the optimizer, a library or the allocator."""
        return self.module != "" and not self.module.startswith("(")

    @property
    def is_resized(self) -> bool:
        """Whether the same is done there as before, on other sizes."""
        return self.was != "" and self.now != ""


def time_causes_of(ops: Difference, after: Observation) -> tuple[Cause, ...]:
    """What new, gone and changed ops add to the step's kernels and host, largest first."""
    stacks = {(key[0], key[1], key[2], key[4]): lines for key, lines in after.op_stacks.items()}
    groups: dict[tuple[str, str, str], tuple[list[WorkKey], list[WorkKey]]] = {}
    for side, keys in enumerate((ops.gone, ops.new)):
        for key in sorted(keys):
            groups.setdefault(key[:3], ([], []))[side].append(key)
    layers: dict[Hashable, list[str]] = defaultdict(list)
    for (module, phase, op), (gone, new) in groups.items():
        was = _total(gone, ops.gone, ops.cost_before)
        now = _total(new, ops.new, ops.cost_now)
        places = next((stacks[key] for key in new if stacks.get(key)), ())
        # Which of equal calls is the new one, is not known; the last is the best guess.
        stack = places[-1] if places else ()
        change = (
            phase,
            op,
            " + ".join(sorted(_times(ops.gone[key], ops.works[key]) for key in gone)),
            " + ".join(sorted(_times(ops.new[key], ops.works[key]) for key in new)),
            (now.kernel_ns - was.kernel_ns) / 1000,
            (now.host_ns - was.host_ns) / 1000,
            round(now.num_kernels - was.num_kernels),
            stack,
            after.made.get(module, ()),
            places[:-1],
        )
        layers[change].append(module)
    return _folded_causes(layers)


def _total(
    keys: Iterable[WorkKey], counts: Mapping[WorkKey, int], costs: Mapping[PricedWork, Cost]
) -> Cost:
    each = [(counts[key], costs[key[1:]]) for key in keys]
    return Cost(*(sum(count * cost[index] for count, cost in each) for index in range(3)))


def _times(count: int, work: str) -> str:
    return work if count == 1 else f"{count} x {work}"


def _folded_causes(layers: Mapping[Any, list[str]]) -> tuple[Cause, ...]:
    """Equal changes in equal layers as one; the largest first."""
    causes = []
    for (phase, op, was, now, amount, host_us, num_kernels, *stacks), modules in layers.items():
        for module in folded(modules):
            n = len(unfolded(module))
            cause = Cause(
                module, phase, op, was, now, n * amount, n * host_us, n * num_kernels, *stacks
            )
            if cause.amount or cause.host_us:
                causes.append(cause)
    return tuple(sorted(causes, key=lambda cause: (-abs(cause.amount), cause[:5])))


def memory_causes_of(before: Case, after: Observation) -> tuple[Cause, ...]:
    """What storages add to the peak, largest first; those that only moved cancel."""
    was = {row[:4]: row for row in before.memory}
    has = {row[:4]: row for row in after.case.memory}
    gone = {key: row for key, row in was.items() if has.get(key) != row}
    new = {key: row for key, row in has.items() if was.get(key) != row}
    _cancel_moved(gone, new)
    layers: dict[Hashable, list[str]] = defaultdict(list)
    for key in sorted(gone.keys() | new.keys()):
        old, fresh = gone.get(key), new.get(key)
        module, phase, kind, op = key
        amount = (fresh.num_bytes if fresh else 0) - (old.num_bytes if old else 0)
        stack = after.memory_stacks.get(key, ()) if fresh else ()
        made = after.made.get(module, ())
        was_kind, now_kind = kind if old else "", kind if fresh else ""
        change = (phase, op, was_kind, now_kind, amount, 0.0, 0, stack, made)
        layers[change].append(module)
    return _folded_causes(layers)


def _cancel_moved(gone: dict[WorkKey, MemoryRow], new: dict[WorkKey, MemoryRow]) -> None:
    """What is the same in a module of another name is no change."""
    unplaced: dict[tuple[object, ...], list[WorkKey]] = defaultdict(list)
    for key in sorted(new):
        if key not in gone:
            unplaced[new[key][1:]].append(key)
    for key in sorted(gone):
        places = unplaced.get(gone[key][1:])
        if places and key not in new:
            del new[places.pop(0)]
            del gone[key]


def common_stack(causes: Iterable[Cause]) -> CallStack:
    """The lines that lead to what was added: to all of it where it was not there at all before, to
    most of it where it grew. None where that is only the program's outermost line.

    What belongs to a module counts before the rest.
    """
    growing = [cause for cause in causes if cause.amount > 0 and cause.stack]
    growing = [cause for cause in growing if cause.is_in_module] or growing
    total = sum(cause.amount for cause in growing)
    new = [cause for cause in growing if not cause.was]
    share = _MOST
    if sum(cause.amount for cause in new) >= _MOST * total:
        growing, total, share = new, sum(cause.amount for cause in new), 1.0
    outermost_first: list[CallStack] = []
    reached = 0.0
    for cause in sorted(growing, key=lambda cause: -cause.amount):
        outermost_first.append(cause.stack[::-1])
        reached += cause.amount
        if reached >= share * total:
            break
    common = tuple(reversed(commonprefix(outermost_first)))  # noqa: RUF071 (tuples)
    is_outermost_alone = len(common) == 1 and any(len(cause.stack) > 1 for cause in growing)
    return () if is_outermost_alone else common
