"""Operators of a profile beside those of a forecast: paired by name and by place in the call tree.

The operators of a step form a tree on each side. Children of paired operators are aligned in order
by their names; what has no partner is listed with the operator around it and, where it is known,
the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from neusight.integrations.profiles.comparison.operator_reasons import reason_of
from neusight.integrations.profiles.reading.profile import HostOp, Profile, ProfileStep

#: What autograd's engine records around each node, since torch 1.11.
_ENGINE = "autograd::engine::evaluate_function: "
#: Ranges that older torch wrote among the operators; they are annotations since.
_ANNOTATIONS = ("Optimizer.", "ProfilerStep#", "enumerate(DataLoader)#", "[param|")
#: Edits between the operators of one level after which the rest counts as unpaired.
_MOST_EDITS = 700
#: Names that the text of a difference shows on each side.
_NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class OperatorDifference:
    """Operators of a step that have no partner in the same place.

    `within` is the operator around them, whose partner calls `forecast` instead of `measured`;
    `count` says how often. `num_measured` and `num_forecast` count all operators in them.
    """

    within: str
    measured: str
    forecast: str
    count: int
    num_measured: int
    num_forecast: int
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorPairs:
    """Operators of a step on both sides, paired by name and by place.

    `num_by_name` of the measured ones have a partner of the same name, in whatever place;
    `num_in_place` have one in the same place of the call tree. `num_excused` have none by name for
    a known reason: what another torch or another version of the model calls.
    """

    num_measured: int
    num_forecast: int
    num_by_name: int
    num_in_place: int
    num_excused: int = 0
    differences: tuple[OperatorDifference, ...] = ()

    @property
    def name_share(self) -> float:
        """The part of the measured operators with a partner of the same name."""
        return self.num_by_name / self.num_measured if self.num_measured else 0.0

    @property
    def shared_name_share(self) -> float:
        """The same of those that both sides may have: the excused ones left out."""
        num_shared = self.num_measured - self.num_excused
        return self.num_by_name / num_shared if num_shared else 0.0

    @property
    def place_share(self) -> float:
        """The part of the measured operators with a partner in the same place."""
        return self.num_in_place / self.num_measured if self.num_measured else 0.0

    def explained(self) -> int:
        """How many measured operators have no partner in place, for a known reason."""
        return sum(row.num_measured for row in self.differences if row.reason)


#: Of two sides without operators.
NO_OPERATORS = OperatorPairs(0, 0, 0, 0)


def paired_operators(
    measured: Profile, measured_step: ProfileStep, forecast: Profile, forecast_step: ProfileStep
) -> OperatorPairs:
    """Pairs the operators of a step of a profile with those of a step of a forecast."""
    real, ours = _tree(measured, measured_step), _tree(forecast, forecast_step)
    names, our_names = Counter(real.names()), Counter(ours.names())
    has_engine = [any(name.startswith(_ENGINE) for name in found) for found in (names, our_names)]
    if not all(has_engine):
        real.splice_engine()
        ours.splice_engine()
    found = _Alignment()
    found.align(real, ours)
    engine = sum(count for name, count in names.items() if name.startswith(_ENGINE))
    our_engine = sum(count for name, count in our_names.items() if name.startswith(_ENGINE))
    if any(has_engine) and not all(has_engine):
        frames = Counter({name: n for name, n in names.items() if name.startswith(_ENGINE)})
        ours_only = _ENGINE if our_engine else ""
        found.add("", _ENGINE if engine else "", ours_only, engine, our_engine, frames)
    return OperatorPairs(
        num_measured=names.total(),
        num_forecast=our_names.total(),
        num_by_name=(names & our_names).total(),
        num_in_place=found.num_paired,
        num_excused=((names - our_names) & found.excused()).total(),
        differences=found.differences(),
    )


@dataclass(slots=True)
class _Node:
    """An operator and what it calls."""

    name: str
    children: list[_Node] = field(default_factory=list)

    def names(self) -> Iterator[str]:
        """The names of all operators in it, without its own."""
        stack = list(self.children)
        while stack:
            node = stack.pop()
            yield node.name
            stack += node.children

    def splice_engine(self) -> None:
        """Puts the children of what the engine records around nodes in their place."""
        stack = [self]
        while stack:
            node = stack.pop()
            kept: list[_Node] = []
            for child in node.children:
                kept += child.children if child.name.startswith(_ENGINE) else [child]
            node.children = kept
            stack += kept


def _tree(profile: Profile, step: ProfileStep) -> _Node:
    """The operators that begin in a step, on all threads in order of start."""
    root = _Node("")
    open_: dict[str, list[tuple[HostOp, _Node]]] = defaultdict(list)
    for op in profile.ops:  # in order of start, outer ones first
        in_step = step.start_ns <= op.start_ns < step.start_ns + step.host_ns
        if not in_step or op.name.startswith(_ANNOTATIONS):
            continue
        stack = open_[op.thread]
        while stack and stack[-1][0].end_ns <= op.start_ns:
            stack.pop()
        node = _Node(op.name)
        (stack[-1][1] if stack else root).children.append(node)
        stack.append((op, node))
    return root


class _Alignment:
    """Pairs the children of paired operators, and counts what differs."""

    def __init__(self) -> None:
        self.num_paired = 0
        self._found: dict[tuple[str, str, str], list[int]] = {}
        #: By the same difference, what is measured more often than forecast.
        self._missing: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)

    def align(self, real: _Node, ours: _Node) -> None:
        """All of two trees whose roots are partners."""
        stack = [(real, ours)]
        while stack:
            real, ours = stack.pop()
            if not real.children and not ours.children:
                continue
            pairs = _matched(
                [_key(node.name) for node in real.children],
                [_key(node.name) for node in ours.children],
            )
            i = j = 0
            for k, m in [*pairs, (len(real.children), len(ours.children))]:
                self._differ(real.name, real.children[i:k], ours.children[j:m])
                i, j = k + 1, m + 1
            for k, m in pairs:
                first, second = real.children[k], ours.children[m]
                if first.name == second.name:
                    self.num_paired += 1
                else:
                    own = Counter([first.name])
                    self.add(real.name, first.name, second.name, 1, 1, own)
                stack.append((first, second))

    def _differ(self, within: str, real: Sequence[_Node], ours: Sequence[_Node]) -> None:
        if real or ours:
            missing = _names(real) - _names(ours)
            self.add(within, _shown(real), _shown(ours), _size(real), _size(ours), missing)

    def add(
        self, within: str, measured: str, forecast: str, num_measured: int, num_forecast: int,
        missing: Counter[str],
    ) -> None:  # fmt: skip
        """One more of a kind of difference; `missing` are measured and not forecast in it."""
        self._missing[within, measured, forecast] += missing
        sums = self._found.setdefault((within, measured, forecast), [0, 0, 0])
        sums[0] += 1
        sums[1] += num_measured
        sums[2] += num_forecast

    def excused(self) -> Counter[str]:
        """What is missing for a known reason."""
        return sum(
            (names for key, names in self._missing.items() if reason_of(*key)), Counter[str]()
        )

    def differences(self) -> tuple[OperatorDifference, ...]:
        """What differs, the most measured operators first."""
        rows = []
        for (within, measured, forecast), (
            count,
            num_measured,
            num_forecast,
        ) in self._found.items():
            reason = reason_of(within, measured, forecast)
            rows.append(
                OperatorDifference(
                    within, measured, forecast, count, num_measured, num_forecast, reason
                )
            )
        return tuple(
            sorted(
                rows,
                key=lambda row: (
                    -row.num_measured, -row.num_forecast, row.within, row.measured, row.forecast
                ),
            )
        )  # fmt: skip


def _key(name: str) -> str:
    """Nodes of autograd are partners whatever number their names end with."""
    return name.rstrip("0123456789") if "Backward" in name else name


def _size(nodes: Iterable[_Node]) -> int:
    return sum(1 + sum(1 for _ in node.names()) for node in nodes)


def _names(nodes: Sequence[_Node]) -> Counter[str]:
    return Counter(name for node in nodes for name in (node.name, *node.names()))


def _shown(nodes: Sequence[_Node]) -> str:
    """The names of operators in order, the same ones in a row once with their number."""
    runs: list[tuple[str, int]] = []
    for node in nodes:
        if runs and runs[-1][0] == node.name:
            runs[-1] = node.name, runs[-1][1] + 1
        else:
            runs.append((node.name, 1))
    shown = [name if count == 1 else f"{name} x{count}" for name, count in runs[:_NAMES_SHOWN]]
    return " ".join([*shown, *(["..."] if len(runs) > _NAMES_SHOWN else [])])


def _matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of equal items in order, as many as can be (Myers, "An O(ND) difference algorithm",
    1986); after `_MOST_EDITS` edits none of the rest."""
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    tail = 0
    most = min(len(first), len(second)) - start
    while tail < most and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    a, b = first[start : len(first) - tail], second[start : len(second) - tail]
    middle = [(start + i, start + j) for i, j in _snakes(a, b)]
    ends = [(len(first) - k, len(second) - k) for k in range(tail, 0, -1)]
    return [*((i, i) for i in range(start)), *middle, *ends]


def _snakes(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of equal items on the shortest way from one sequence to the other."""
    if not a or not b:
        return []
    reached = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MOST_EDITS) + 1):
        history.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            x = _next(reached, diagonal, edits)
            while x < len(a) and x - diagonal < len(b) and a[x] == b[x - diagonal]:
                x += 1
            reached[diagonal] = x
            if x >= len(a) and x - diagonal >= len(b):
                return _way_back(history, len(a), len(b))
    return []


def _next(reached: dict[int, int], diagonal: int, edits: int) -> int:
    """How far `first` is passed after one more edit on a diagonal."""
    left, right = reached.get(diagonal - 1, -1), reached.get(diagonal + 1, -1)
    if diagonal == -edits or (diagonal != edits and left < right):
        return right
    return left + 1


def _way_back(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(history) - 1, -1, -1):
        reached, diagonal = history[edits], x - y
        left, right = reached.get(diagonal - 1, -1), reached.get(diagonal + 1, -1)
        down = diagonal == -edits or (diagonal != edits and left < right)
        before = diagonal + 1 if down else diagonal - 1
        before_x = reached.get(before, 0)
        begin_x = before_x if down else before_x + 1
        while x > max(begin_x, 0) and y > 0 and x > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_x - before
    return pairs[::-1]
