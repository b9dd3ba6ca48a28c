"""Is a program slower or bigger than its baseline, what of that is its own doing, and where."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from neusight.integrations.check.baseline import METRICS, Case, MemoryRow, OpRow, folded, unfolded
from neusight.integrations.check.observation import Observation
from neusight.predictors.errors import OptionError
from neusight.predictors.files import is_number, shown

__all__ = [
    "DEFAULT_TOLERANCES",
    "Cause",
    "Judgement",
    "MetricChange",
    "NewWait",
    "Tolerance",
    "judge",
    "parse_tolerance",
    "parse_tolerances",
]

CallStack = tuple[str, ...]
Status = Literal["same", "within", "worse", "better", "tool"]


# -- tolerances ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """How much worse a figure may be: a share of the baseline's, or so much in its own unit."""

    share: float = 0.0
    absolute: float = 0.0

    def allowed(self, before: float) -> float:
        """The most by which the figure may grow."""
        return max(self.share * before, self.absolute)

    def words(self, unit: str) -> str:
        """As a setting would say it."""
        if self.share or not self.absolute:
            return f"{self.share * 100:g} %"
        if unit == "bytes":
            return f"{self.absolute / 2**20:g} MiB"
        return f"{self.absolute:g} {unit}".strip()


#: A forecast is exact: only what nobody would mind passes unseen. Memory is counted in bytes, for a
#: megabyte more is a change of the program whatever the size of the rest; so is another wait.
DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "step_latency": Tolerance(share=0.005),
    "gpu_busy": Tolerance(share=0.005),
    "peak_memory": Tolerance(absolute=2**19),
    "peak_reserved": Tolerance(share=0.05, absolute=20 * 2**20),  # grows by whole segments
    "num_kernels": Tolerance(share=0.005),
    "num_synchronizations": Tolerance(),
    "flops": Tolerance(share=0.005),
    "communication": Tolerance(share=0.005),
}

_UNITS: dict[str, dict[str, float]] = {
    "us": {"us": 1, "µs": 1, "ms": 1e3, "s": 1e6},
    "bytes": {
        "b": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9,
        "kib": 2**10, "mib": 2**20, "gib": 2**30,
    },
    "flops": {"flop": 1, "flops": 1, "gflop": 1e9, "gflops": 1e9, "tflop": 1e12, "tflops": 1e12},
    "": {"": 1},
}  # fmt: skip
_UNIT_OF = {metric.name: metric.unit for metric in METRICS}
_METRIC_OF = {name: full for name in DEFAULT_TOLERANCES for full in _UNIT_OF
              if full.startswith(name)}  # fmt: skip
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9]*)", re.IGNORECASE)


def parse_tolerance(name: str, text: object) -> Tolerance:
    """A tolerance from "0.5 %", "1 MiB", "50 us" or 3; OptionError says what is wrong.

    >>> parse_tolerance("peak_memory", "1 MiB")
    Tolerance(share=0.0, absolute=1048576.0)
    """
    if name not in DEFAULT_TOLERANCES:
        known = ", ".join(DEFAULT_TOLERANCES)
        raise OptionError(f"There is no tolerance {shown(name)}; known: {known}.")
    units = _UNITS[_UNIT_OF[_METRIC_OF[name]]]
    words = str(text).strip() if isinstance(text, str) or is_number(text) else ""
    match = _AMOUNT.fullmatch(words)
    amount = float(match[1]) if match is not None else math.nan
    unit = match[2].lower() if match is not None else ""
    if match is not None and math.isfinite(amount):
        if unit == "%":
            return Tolerance(share=amount / 100)
        if unit in units:
            return Tolerance(absolute=amount * units[unit])
        if amount == 0 and not unit:
            return Tolerance()
    named = ", ".join(f'"1 {unit}"' for unit in units) if "" not in units else "3"
    raise OptionError(
        f'The tolerance of {name} is {shown(text)}; it must be a number such as "0.5 %" or {named}.'
    )


def parse_tolerances(settings: Mapping[str, object]) -> dict[str, Tolerance]:
    """All tolerances, the defaults where nothing is said; by short name ("peak_memory")."""
    given = {name: parse_tolerance(name, text) for name, text in settings.items()}
    return {**DEFAULT_TOLERANCES, **given}


# -- the judgement -------------------------------------------------------------------------------


class MetricChange(NamedTuple):
    """A figure before and now. `by_tool` is the part of the change that the tool brought."""

    name: str
    title: str
    unit: str
    before: float
    after: float
    by_tool: float
    allowed: float
    tolerance: str
    status: Status

    @property
    def by_program(self) -> float:
        """The part of the change that is the program's."""
        return round(self.after - self.before - self.by_tool, 6)


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


class NewWait(NamedTuple):
    """A line that waits for the GPU and did not before; without it the step is `cost_us` faster."""

    reason: str
    code: str
    num_waits: int
    cost_us: float
    stack: CallStack


@dataclass(frozen=True)
class Judgement:
    """A case compared with its baseline. `metrics` in the order of METRICS, causes largest first.

    `time_stack` and `memory_stack` are the lines that all of the larger causes have in common.
    `tool_changes` names what of the tool is another one than the baseline's; `price_changes` how
    much that moved the kernels of an op which the program calls as before. `notes` is what else to
    know.
    """

    name: str
    case: Case
    metrics: tuple[MetricChange, ...]
    time_causes: tuple[Cause, ...] = ()
    memory_causes: tuple[Cause, ...] = ()
    time_stack: CallStack = ()
    memory_stack: CallStack = ()
    new_waits: tuple[NewWait, ...] = ()
    gone_waits: tuple[str, ...] = ()
    new_kernels: tuple[tuple[str, int], ...] = ()
    gone_kernels: tuple[tuple[str, int], ...] = ()
    peak_moved: tuple[str, str] | None = None
    tool_changes: tuple[str, ...] = ()
    price_changes: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        """Whether the program made any figure worse than is tolerated."""
        return any(change.status == "worse" for change in self.metrics)

    @property
    def is_moved_by_tool(self) -> bool:
        """Whether the tool moved any figure by more than is tolerated."""
        return any(change.status == "tool" for change in self.metrics)

    @property
    def is_improved(self) -> bool:
        """Whether figures got better, and none worse."""
        return not self.is_regression and any(item.status == "better" for item in self.metrics)

    @property
    def is_unchanged(self) -> bool:
        """Whether every figure is what it was."""
        return all(change.status == "same" for change in self.metrics)


def judge(
    name: str,
    before: Case,
    after: Observation,
    tolerances: Mapping[str, Tolerance] = DEFAULT_TOLERANCES,
) -> Judgement:
    """Compares what a check saw with the baseline.

    Where the tool is the baseline's, every change is the program's. Where it is another one and
    the program's files or its work did not change, every change is the tool's. Else the prices of
    ops that are called as before are the tool's doing, and the rest is the program's.
    """
    now = after.case
    tool_changes = _tool_changes(before.tool, now.tool)
    is_same_program = bool(tool_changes) and (
        before.work == now.work or before.files == now.files != ""
    )
    before, num_moved = _with_todays_names(before, now)
    ops = _Difference(before.ops, now.ops)
    by_tool = _by_tool(before, now, ops, is_same_program=is_same_program)
    time_causes = _time_causes(ops, after) if not is_same_program else ()
    memory_causes = _memory_causes(before, after) if not is_same_program else ()
    if before.bound == "host" or now.bound == "host":
        time_causes = tuple(sorted(time_causes, key=lambda cause: -abs(cause.host_us)))
    return Judgement(
        name=name,
        case=now,
        metrics=tuple(_changes(before, now, by_tool, tolerances, bool(tool_changes))),
        time_causes=time_causes,
        memory_causes=memory_causes,
        time_stack=_common_stack(time_causes),
        memory_stack=_common_stack(memory_causes),
        new_waits=_new_waits(before, after),
        gone_waits=_gone_waits(before, now),
        new_kernels=_more_of(_kernels_in(now), _kernels_in(before)),
        gone_kernels=_more_of(_kernels_in(before), _kernels_in(now)),
        peak_moved=(before.peak, now.peak) if before.peak != now.peak else None,
        tool_changes=tool_changes,
        price_changes=_price_changes(ops),
        notes=_notes(before, after, num_moved),
    )


def _changes(
    before: Case,
    now: Case,
    by_tool: Mapping[str, float],
    tolerances: Mapping[str, Tolerance],
    is_other_tool: bool,
) -> Iterable[MetricChange]:
    for short, tolerance in tolerances.items():
        name = _METRIC_OF[short]
        metric = next(metric for metric in METRICS if metric.name == name)
        was, value = before.metrics[name], now.metrics[name]
        allowed, tool = tolerance.allowed(was), by_tool.get(name, 0.0)
        yield MetricChange(
            name=name,
            title=metric.title,
            unit=metric.unit,
            before=was,
            after=value,
            by_tool=tool,
            allowed=allowed,
            tolerance=tolerance.words(metric.unit),
            status=_status(value - was, tool, allowed),
        )


def _status(change: float, by_tool: float, allowed: float) -> Status:
    by_program = change - by_tool
    slack = 1e-9 * max(1.0, abs(change))  # sums of parts are not exact to the last bit
    if by_program > allowed + slack:
        return "worse"
    if abs(by_tool) > allowed + slack:
        return "tool"
    if by_program < -allowed - slack:
        return "better"
    return "same" if change == 0 else "within"


_TOOL_WORDS = {
    "code": "neusight's code",
    "weights": "its trained weights",
    "gpu": "its data of the GPU",
    "calibration": "the calibration",
}


def _tool_changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    for name in ("neusight", "torch", "code", "weights", "gpu", "calibration"):
        was, value = before.get(name, "unknown"), now.get(name, "unknown")
        if was != value:
            shown = _TOOL_WORDS.get(name)
            found.append(f"{name} {was} → {value}" if shown is None else shown)
    return tuple(found)


# -- work that is the same, work that is not ------------------------------------------------------


#: Module, phase, op, signature: what is done where.
_Key = tuple[str, str, str, str]
#: Phase, op, signature: what has a price.
_Work = tuple[str, str, str]

#: Share of an increase that its named causes make up.
_MOST = 0.9


class _Cost(NamedTuple):
    kernel_ns: float
    host_ns: float
    num_kernels: float


class _Difference:
    """Ops of two cases paired off: first those of the same module, then those that only moved to
    another one. What is left is new or gone."""

    def __init__(self, before: Sequence[OpRow], now: Sequence[OpRow]) -> None:
        was, has = _counted(before), _counted(now)
        self.works = {
            (row.module, row.phase, row.op, row.signature): row.work for row in (*before, *now)
        }
        self.cost_before, self.cost_now = _costs(before), _costs(now)
        self.kept: Counter[_Work] = Counter()
        #: (module before, module now) of ops that moved, with their number.
        self.moved: Counter[tuple[str, str]] = Counter()
        for key in was.keys() & has.keys():
            self._pair(was, has, key, key)
        unplaced: dict[_Work, list[_Key]] = defaultdict(list)
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

    def _pair(self, was: Counter[_Key], has: Counter[_Key], key: _Key, other: _Key) -> int:
        count = min(was[key], has[other])
        was[key] -= count
        has[other] -= count
        self.kept[key[1:]] += count
        return count


def _with_todays_names(before: Case, now: Case) -> tuple[Case, int]:
    """The baseline with its modules called as they are now, and how many ops that moved.

    Where ops moved from a module that is no more, what the paths do not have in common at their
    ends was renamed.
    """
    moved = _Difference(before.ops, now.ops).moved
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
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


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


def _counted(rows: Iterable[OpRow]) -> Counter[_Key]:
    counts: Counter[_Key] = Counter()
    for row in rows:
        counts[(row.module, row.phase, row.op, row.signature)] += row.num_ops
    return counts


def _costs(rows: Iterable[OpRow]) -> dict[_Work, _Cost]:
    """What one op costs, by phase, op and signature: the module does not matter."""
    found: dict[_Work, _Cost] = {}
    for row in rows:
        n = max(1, row.num_ops)
        found[(row.phase, row.op, row.signature)] = _Cost(
            row.kernel_ns / n, row.host_ns / n, row.num_kernels / n
        )
    return found


def _by_tool(
    before: Case, now: Case, ops: _Difference, *, is_same_program: bool
) -> dict[str, float]:
    """The part of each figure's change that is the tool's."""
    if before.tool == now.tool:
        return {}
    if is_same_program:
        return {name: now.metrics[name] - was for name, was in before.metrics.items()}
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


def _priced_otherwise(ops: _Difference, figure: int) -> float:
    """What the ops of the baseline cost more now, by that figure of their `_Cost`.

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


def _price_changes(ops: _Difference) -> tuple[tuple[str, float], ...]:
    """How much dearer the kernels of each op are, as a share, where they changed by the tool."""
    was: dict[str, float] = defaultdict(float)
    has: dict[str, float] = defaultdict(float)
    for key, count in sorted(ops.kept.items()):
        was[key[1]] += count * ops.cost_before[key].kernel_ns
        has[key[1]] += count * ops.cost_now[key].kernel_ns
    changed = [(op, has[op] / was[op] - 1, has[op] - was[op]) for op in was if was[op] != has[op]]
    changed = [item for item in changed if was[item[0]]]
    changed.sort(key=lambda item: (-abs(item[2]), item[0]))
    return tuple((op, share) for op, share, _ in changed)


# -- causes --------------------------------------------------------------------------------------


def _time_causes(ops: _Difference, after: Observation) -> tuple[Cause, ...]:
    stacks = {(key[0], key[1], key[2], key[4]): lines for key, lines in after.op_stacks.items()}
    groups: dict[tuple[str, str, str], tuple[list[_Key], list[_Key]]] = {}
    for side, keys in enumerate((ops.gone, ops.new)):
        for key in sorted(keys):
            groups.setdefault(key[:3], ([], []))[side].append(key)
    layers: dict[Hashable, list[str]] = defaultdict(list)
    for (module, phase, op), (gone, new) in groups.items():
        was = _total(gone, ops.gone, ops.cost_before)
        now = _total(new, ops.new, ops.cost_now)
        places = next((stacks[key] for key in new if stacks.get(key)), ())
        # Which of equal calls is the new one, nobody can tell; the last is the best guess.
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


def _total(keys: Iterable[_Key], counts: Mapping[_Key, int], costs: Mapping[_Work, _Cost]) -> _Cost:
    each = [(counts[key], costs[key[1:]]) for key in keys]
    return _Cost(*(sum(count * cost[index] for count, cost in each) for index in range(3)))


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


def _memory_causes(before: Case, after: Observation) -> tuple[Cause, ...]:
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


def _cancel_moved(gone: dict[_Key, MemoryRow], new: dict[_Key, MemoryRow]) -> None:
    """What is the same in a module of another name is no change."""
    unplaced: dict[tuple[object, ...], list[_Key]] = defaultdict(list)
    for key in sorted(new):
        if key not in gone:
            unplaced[new[key][1:]].append(key)
    for key in sorted(gone):
        places = unplaced.get(gone[key][1:])
        if places and key not in new:
            del new[places.pop(0)]
            del gone[key]


def _common_stack(causes: Iterable[Cause]) -> CallStack:
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
    common: CallStack | None = None
    reached = 0.0
    for cause in sorted(growing, key=lambda cause: -cause.amount):
        common = cause.stack if common is None else _common_end(common, cause.stack)
        reached += cause.amount
        if reached >= share * total:
            break
    if common is None or (len(common) == 1 and any(len(cause.stack) > 1 for cause in growing)):
        return ()
    return common


def _common_end(first: CallStack, second: CallStack) -> CallStack:
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        count += 1
    return first[len(first) - count :]


# -- waits and kernels ---------------------------------------------------------------------------


def _new_waits(before: Case, after: Observation) -> tuple[NewWait, ...]:
    """Lines that wait more often. Where a line was only rewritten, the count of its reason stays:
    of the lines that are new then, the dearest are named."""
    was = {row[:2]: row.num_waits for row in before.waits}
    more = {
        row[:2]: row.num_waits - was.get(row[:2], 0)
        for row in after.case.waits
        if row.num_waits > was.get(row[:2], 0)
    }
    totals: Counter[str] = Counter()
    for sign, rows in ((1, after.case.waits), (-1, before.waits)):
        for row in rows:
            totals[row.reason] += sign * row.num_waits
    found = [
        NewWait(reason, code, count, *_cost_and_stack(after, (reason, code)))
        for (reason, code), count in more.items()
        if totals[reason] > 0
    ]
    return tuple(sorted(found, key=lambda wait: (-wait.cost_us, wait.reason, wait.code)))


def _cost_and_stack(after: Observation, key: tuple[str, str]) -> tuple[float, CallStack]:
    wait = after.waits.get(key)
    return (0.0, ()) if wait is None else (wait.cost_us, wait.stack)


def _gone_waits(before: Case, now: Case) -> tuple[str, ...]:
    has = {row[:2]: row.num_waits for row in now.waits}
    return tuple(
        f"{row.reason}: {row.code}" for row in before.waits if has.get(row[:2], 0) < row.num_waits
    )


def _kernels_in(case: Case) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in case.ops:
        if row.num_kernels:
            counts[row.work] += row.num_ops
    return counts


def _more_of(first: Counter[str], second: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Kernels of the first that the second has not at all."""
    return tuple((work, first[work]) for work in sorted(first) if work not in second)


def _notes(before: Case, after: Observation, num_moved: int) -> tuple[str, ...]:
    notes = []
    if not before.adds_up:
        notes.append(
            "the baseline's rows do not add up to its figures (edited by hand?), so what is said "
            "about causes may be incomplete; --update writes both again"
        )
    if num_moved:
        notes.append(f"modules were renamed; {num_moved} of their ops do what they did before")
    if after.unmapped:
        notes.append(f"priced by bytes over bandwidth, as fallback: {', '.join(after.unmapped)}")
    return tuple(notes)
