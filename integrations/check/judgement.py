"""Compares what a check saw with the baseline, the tool's changes apart from the program's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neusight.integrations.check.baseline import Case, CompileRow, WaitRow
from neusight.integrations.check.causes import (
    Cause,
    common_stack,
    memory_causes_of,
    time_causes_of,
)
from neusight.integrations.check.difference import (
    Difference,
    changes_by_tool,
    price_changes_of,
    with_todays_names,
)
from neusight.integrations.check.figures.batch_change import (
    BatchChange,
    are_batches_comparable,
    batch_change_of,
    rate_of,
)
from neusight.integrations.check.figures.change import MetricChange, metric_changes
from neusight.integrations.check.figures.metrics import COMPILED_METRICS
from neusight.integrations.check.figures.tolerance import DEFAULT_TOLERANCES, Tolerance
from neusight.integrations.check.observation import CallStack, Observation, Wait, priced_again
from neusight.integrations.check.optimizer import optimizer_change
from neusight.predictors.errors import NeusightError
from neusight.predictors.formatting import milliseconds_text


class NewWait(NamedTuple):
    """A line that waits for the GPU and did not before; without it the step is `cost_us` faster."""

    reason: str
    code: str
    num_waits: int
    cost_us: float
    stack: CallStack


class NewStop(NamedTuple):
    """A "graph break" or "recompile" that was not there before: torch's reason, the line of code
    that it is about and its place, how often it came."""

    what: str
    reason: str
    code: str
    num_times: int
    place: str


class OperatorChange(NamedTuple):
    """The time of the kernels in an operator, before and now."""

    operator: str
    before_us: float
    now_us: float


@dataclass(frozen=True)
class Judgement:
    """A case compared with its baseline. `metrics` in the order of METRICS, causes largest first.

    `batch` is there where a step consumes another number of samples or tokens: then figures that
    grow with it are judged of one. `time_stack` and `memory_stack` are the lines that all of the
    larger causes have in common.
    `optimizer_change` says how parameters are updated otherwise.
    `tool_changes` names what of the tool is another one than the baseline's; `price_changes` how
    much that moved the kernels of an op which the program calls as before; `tool_effect` is what
    the tool alone changed, where the baseline's recording was priced again: the figures are then
    compared with those. `notes` is what else to know, `tool_effect` included.
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
    new_stops: tuple[NewStop, ...] = ()
    new_kernels: tuple[tuple[str, int], ...] = ()
    gone_kernels: tuple[tuple[str, int], ...] = ()
    operator_changes: tuple[OperatorChange, ...] = ()
    peak_moved: tuple[str, str] | None = None
    tool_changes: tuple[str, ...] = ()
    batch: BatchChange | None = None
    optimizer_change: str = ""
    price_changes: tuple[tuple[str, float], ...] = ()
    tool_effect: str = ""
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
    the program's files or its work did not change, every change is the tool's. Else the recording
    that the baseline keeps is priced again by today's tool, and compared; a note gives what the
    tool itself changed. Where there is none that can be priced, or torch is another one, the prices
    of ops that are called as before are taken to be the tool's doing. That is an estimate: nothing
    is called better then, and no line is blamed.

    Figures are judged per sample only where both batches are known by the same means.
    """
    now = after.case
    tool_changes = _tool_changes(before.tool, now.tool)
    is_same_program = bool(tool_changes) and (
        before.work == now.work or before.files == now.files != ""
    )
    tool_notes: tuple[str, ...] = ()
    tool_effect = ""
    is_estimated = bool(tool_changes)
    if tool_changes and not is_same_program:
        again, tool_notes = _priced_by_todays_tool(before, after)
        is_estimated = again is None
        if again is not None:
            tool_effect = _tool_effect(before, again)
            tool_notes = (*([tool_effect] if tool_effect else []), *tool_notes)
            before = again
    is_comparable = are_batches_comparable(before.batch_source, now.batch_source)
    batch = batch_change_of(before.metrics, now.metrics) if is_comparable else None
    before, num_moved = with_todays_names(before, now)
    ops = Difference(before.ops, now.ops)
    by_tool = changes_by_tool(before, now, ops, is_same_program=is_same_program)
    changes = metric_changes(
        before.metrics, now.metrics, by_tool, tolerances, batch, compares_rates=is_comparable
    )
    if is_estimated:
        changes = (
            change._replace(status="within") if change.status == "better" else change
            for change in changes
        )
    time_causes = () if is_estimated else time_causes_of(ops, after)
    memory_causes = () if is_estimated else memory_causes_of(before, after)
    if before.bound == "host" or now.bound == "host":
        time_causes = tuple(sorted(time_causes, key=lambda cause: -abs(cause.host_us)))
    waits_now = {row[:2]: row.num_waits for row in now.waits}
    return Judgement(
        name=name,
        case=now,
        metrics=tuple(changes),
        time_causes=time_causes,
        memory_causes=memory_causes,
        time_stack=common_stack(time_causes),
        memory_stack=common_stack(memory_causes),
        new_waits=_new_waits(before, after),
        gone_waits=tuple(
            f"{row.reason}: {row.code}"
            for row in before.waits
            if waits_now.get(row[:2], 0) < row.num_waits
        ),
        new_stops=_new_stops(before, after),
        new_kernels=_more_of(_kernels_in(now), _kernels_in(before)),
        gone_kernels=_more_of(_kernels_in(before), _kernels_in(now)),
        operator_changes=() if is_estimated else _operator_changes(before, now),
        peak_moved=(before.peak, now.peak) if before.peak != now.peak else None,
        batch=batch,
        optimizer_change=optimizer_change(before, now),
        tool_changes=tool_changes,
        price_changes=price_changes_of(ops),
        tool_effect=tool_effect,
        notes=(*tool_notes, *_notes(before, after, num_moved)),
    )


def _operator_changes(before: Case, now: Case) -> tuple[OperatorChange, ...]:
    """Those of which a case keeps another time than the other, the most different first; none where
    only one of them keeps any."""
    was, found = (
        {row.operator: row.kernel_ns / 1000 for row in case.operators} for case in (before, now)
    )
    if not was or not found:
        return ()
    changes = [
        OperatorChange(name, was.get(name, 0.0), found.get(name, 0.0))
        for name in was.keys() | found.keys()
    ]
    return tuple(
        sorted(
            (change for change in changes if change.before_us != change.now_us),
            key=lambda change: (-abs(change.now_us - change.before_us), change.operator),
        )
    )


def _priced_by_todays_tool(before: Case, after: Observation) -> tuple[Case | None, tuple[str, ...]]:
    """The baseline's recording priced as the program is now, and what to know of it; None where
    the baseline cannot be priced again."""
    if before.tool.get("torch") != after.case.tool.get("torch"):
        return None, (_TOOL_NOTE,)
    try:
        again = priced_again(before, after)
    except NeusightError as error:
        return None, (f"the baseline's recording cannot be priced again: {error}", _TOOL_NOTE)
    if again is None:
        return None, (_TOOL_NOTE,)
    return again, (_RECORDED_NOTE,)


def _tool_effect(before: Case, again: Case) -> str:
    """What the tool alone changed of the step's latency; "" where that is nothing."""
    was, now = (case.metrics["step_latency_us"] for case in (before, again))
    if was == now:
        return ""
    share = f" by {(now / was - 1) * 100:+.1f} %" if was else ""
    return (
        f"neusight itself changed this forecast{share}: {milliseconds_text(was)} → "
        f"{milliseconds_text(now)} ms"
    )


_RECORDED_NOTE = (
    "the baseline was recorded by the older version: what this version records differently counts "
    "as a change of the program; `neusight compare --git BASE..HEAD` records both with this one"
)
_TOOL_NOTE = (
    "the baseline was written by another version of the tool, so changes of the program are "
    "estimated: `neusight compare --git BASE..HEAD` forecasts both revisions with this one, and "
    "--update on the base revision renews the baseline"
)
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


def _new_waits(before: Case, after: Observation) -> tuple[NewWait, ...]:
    """Lines that wait more often. Where a line was only rewritten, the count of its reason stays:
    of the lines that are new then, the dearest are named."""
    was = {row[:2]: row.num_waits for row in before.waits}
    more = {
        row[:2]: row.num_waits - was.get(row[:2], 0)
        for row in after.case.waits
        if row.num_waits > was.get(row[:2], 0)
    }
    grown = _totals(after.case.waits) - _totals(before.waits)
    nothing = Wait((), 0.0)
    waits = {key: after.waits.get(key, nothing) for key in more if key[0] in grown}
    found = [NewWait(*key, more[key], wait.cost_us, wait.stack) for key, wait in waits.items()]
    return tuple(sorted(found, key=lambda wait: (-wait.cost_us, wait.reason, wait.code)))


def _totals(rows: Iterable[WaitRow | CompileRow]) -> Counter[str]:
    """How often each reason to wait, or each kind of stop, came."""
    found: Counter[str] = Counter()
    for reason, *_, count in rows:
        found[str(reason)] += int(count)
    return found


def _new_stops(before: Case, after: Observation) -> tuple[NewStop, ...]:
    """Graph breaks and recompiles that came more often than in the baseline, where it knows of any.
    Where a line was only rewritten, their number stays."""
    if not before.is_compiled:
        return ()
    was = {row[:3]: row.num_times for row in before.compiling}
    grown = _totals(after.case.compiling) - _totals(before.compiling)
    more: list[CompileRow] = [
        row._replace(num_times=row.num_times - was.get(row[:3], 0))
        for row in after.case.compiling
        if row.what in grown and row.num_times > was.get(row[:3], 0)
    ]
    return tuple(NewStop(*row, after.stops.get(row[:3], "")) for row in more)


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
            "the baseline's rows do not add up to its figures (edited by hand?), so the listed "
            "causes may be incomplete; --update writes both again"
        )
    notes += [*_intake_notes(before, after.case), *_compiled_notes(before, after.case)]
    if num_moved:
        notes.append(f"modules were renamed; {num_moved} of their ops do what they did before")
    if after.unmapped:
        notes.append(f"priced by bytes over bandwidth, as fallback: {', '.join(after.unmapped)}")
    return tuple(notes)


def _intake_notes(before: Case, now: Case) -> list[str]:
    """Where the batch of a step is not known, another batch cannot be distinguished from other
    work."""
    if before.metrics["flops"] == now.metrics["flops"]:
        return []
    if rate_of(now.metrics) is None:
        return [
            "the batch of a step is not known, so another batch would be judged as other work; "
            "--samples N or --tokens N says it"
        ]
    if not are_batches_comparable(before.batch_source, now.batch_source):
        return [
            f"the batch is known by other means ({before.batch_source or 'not said'}, now "
            f"{now.batch_source or 'not said'}), so whole steps are compared, not samples"
        ]
    return []


def _compiled_notes(before: Case, now: Case) -> list[str]:
    """What else torch.compile makes of it than it did, where that is kept and not judged."""
    if now.is_compiled and not before.is_compiled:
        return ["the baseline knows of no graph breaks and recompiles; --update writes them down"]
    if before.is_compiled and not now.is_compiled:
        return ["torch.compile compiles nothing of it any more"]
    changes = [
        f"{metric.title} {before.metrics.get(metric.name, 0):g} → "
        f"{now.metrics.get(metric.name, 0):g}"
        for metric in COMPILED_METRICS[2:]
        if before.metrics.get(metric.name) != now.metrics.get(metric.name)
    ]
    return [f"torch.compile: {', '.join(changes)}"] if changes else []
