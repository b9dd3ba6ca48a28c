"""The work of a case then and now, paired off: renamed modules, other prices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from neusight.integrations.check.baseline import Case, OpRow

#: Module, phase, op, signature: what is done where.
WorkKey = tuple[str, str, str, str]

#: Phase, op, signature: what has a price.
PricedWork = tuple[str, str, str]


class Cost(NamedTuple):
    """What one op of a kind costs, on average."""

    kernel_ns: float
    host_ns: float
    num_kernels: float


class Difference:
    """Ops of two cases paired off: first those of the same module, then those that only moved to
    another one. What is left is new or gone."""

    def __init__(self, before: Sequence[OpRow], now: Sequence[OpRow]) -> None:
        was, has = _counted(before), _counted(now)
        self.works = {
            (row.module, row.phase, row.op, row.signature): row.work for row in (*before, *now)
        }
        self.cost_before, self.cost_now = _costs(before), _costs(now)
        self.kept: Counter[PricedWork] = Counter()
        #: (module before, module now) of ops that moved, with their number.
        self.moved: Counter[tuple[str, str]] = Counter()
        for key in was.keys() & has.keys():
            self._pair(was, has, key, key)
        unplaced: dict[PricedWork, list[WorkKey]] = defaultdict(list)
        for key in sorted(has):
            if has[key]:
                unplaced[key[1:]].append(key)
        for key in sorted(was):
            for other in unplaced.get(key[1:], ()):
                count = self._pair(was, has, key, other)
                if count:
                    self.moved[key[0], other[0]] += count
        self.gone = {key: count for key, count in was.items() if count}
        self.new = {key: count for key, count in has.items() if count}

    def _pair(
        self, was: Counter[WorkKey], has: Counter[WorkKey], key: WorkKey, other: WorkKey
    ) -> int:
        count = min(was[key], has[other])
        was[key] -= count
        has[other] -= count
        self.kept[key[1:]] += count
        return count


def with_todays_names(before: Case, now: Case) -> tuple[Case, int]:
    """The baseline with its modules called as they are now, and how many ops that moved.

    Where ops moved from a module that is no more, what the paths do not have in common at their
    ends was renamed.
    """
    moved = Difference(before.ops, now.ops).moved
    modules = {row.module for row in now.ops} | {row.module for row in now.memory}
    there = {part for module in modules for part in _prefixes(module)}
    votes: Counter[tuple[str, str]] = Counter()
    for (old, new), count in moved.items():
        prefixes = _without_common_end(old, new)
        if prefixes[0] and prefixes[0] not in there:
            votes[prefixes] += count
    names: dict[str, str] = {}
    for (old, new), _ in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        names.setdefault(old, new)
    if not names:
        return before, 0
    return (
        replace(
            before,
            ops=tuple(row._replace(module=_renamed(row.module, names)) for row in before.ops),
            memory=tuple(row._replace(module=_renamed(row.module, names)) for row in before.memory),
        ),
        sum(moved.values()),
    )


def _prefixes(module: str) -> list[str]:
    return list(accumulate(module.split("."), "{}.{}".format))


def _without_common_end(old: str, new: str) -> tuple[str, str]:
    first, second = old.split("."), new.split(".")
    while len(first) > 1 and len(second) > 1 and first[-1] == second[-1]:
        del first[-1], second[-1]
    return ".".join(first), ".".join(second)


def _renamed(module: str, names: Mapping[str, str]) -> str:
    for prefix in reversed(_prefixes(module)):
        if prefix in names:
            return names[prefix] + module[len(prefix) :]
    return module


def _counted(rows: Iterable[OpRow]) -> Counter[WorkKey]:
    counts: Counter[WorkKey] = Counter()
    for row in rows:
        counts[(row.module, row.phase, row.op, row.signature)] += row.num_ops
    return counts


def _costs(rows: Iterable[OpRow]) -> dict[PricedWork, Cost]:
    """What one op costs, by phase, op and signature: the module does not matter."""
    found: dict[PricedWork, Cost] = {}
    for row in rows:
        n = max(1, row.num_ops)
        found[(row.phase, row.op, row.signature)] = Cost(
            row.kernel_ns / n, row.host_ns / n, row.num_kernels / n
        )
    return found


def changes_by_tool(
    before: Case, now: Case, ops: Difference, *, is_same_program: bool
) -> dict[str, float]:
    """The part of each figure's change that is the tool's."""
    if before.tool == now.tool:
        return {}
    if is_same_program:
        return {name: now.metrics.get(name, 0) - was for name, was in before.metrics.items()}
    kernel_ns, host_ns, num_kernels = (_priced_otherwise(ops, index) for index in range(3))
    total_kernel_ns = sum(row.kernel_ns for row in before.ops)
    total_host_ns = sum(row.host_ns for row in before.ops)
    busy_share = kernel_ns / total_kernel_ns if total_kernel_ns else 0.0
    host_share = host_ns / total_host_ns if total_host_ns else 0.0
    latency_share = host_share if before.bound == "host" else busy_share
    return {
        "step_latency_us": latency_share * before.metrics["step_latency_us"],
        "gpu_busy_us": busy_share * before.metrics["gpu_busy_us"],
        "num_kernels": num_kernels,
    }


def _priced_otherwise(ops: Difference, figure: int) -> float:
    """What the ops of the baseline cost more now, by that figure of their `Cost`.

    Those that are gone have no price now: theirs moves as that of the other ops of their kind
    did, or where there are none, as that of all others.
    """
    was: dict[str, float] = defaultdict(float)
    has: dict[str, float] = defaultdict(float)
    for work, count in sorted(ops.kept.items()):
        was[work[1]] += count * ops.cost_before[work][figure]
        has[work[1]] += count * ops.cost_now[work][figure]
    total_was, total_has = sum(was.values()), sum(has.values())
    change = total_has - total_was
    for key, count in sorted(ops.gone.items()):
        op = key[2]
        before, now = (was[op], has[op]) if was.get(op) else (total_was, total_has)
        if before:
            change += count * ops.cost_before[key[1:]][figure] * (now / before - 1)
    return change


def price_changes_of(ops: Difference) -> tuple[tuple[str, float], ...]:
    """How much dearer the kernels of each op are, as a share, where they changed by the tool."""
    was: dict[str, float] = defaultdict(float)
    has: dict[str, float] = defaultdict(float)
    for key, count in sorted(ops.kept.items()):
        was[key[1]] += count * ops.cost_before[key].kernel_ns
        has[key[1]] += count * ops.cost_now[key].kernel_ns
    changed = [op for op in was if was[op] and was[op] != has[op]]
    changed.sort(key=lambda op: (-abs(has[op] - was[op]), op))
    return tuple((op, has[op] / was[op] - 1) for op in changed)
