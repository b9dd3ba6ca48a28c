"""A check's report for the terminal: a line for each case, and why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from neusight.integrations.check.causes import Cause
from neusight.integrations.check.figures.change import MetricChange
from neusight.integrations.check.judgement import Judgement
from neusight.integrations.check.outputs.report_text import (
    batch_text,
    change_text,
    figure_texts,
    headline,
    own_line,
    place_text,
    state_text,
)
from neusight.integrations.check.result import CaseResult
from neusight.predictors.formatting import amount_text, counted
from neusight.predictors.terminal_text import printable

#: Causes that are named one by one; the JSON has all.
_CAUSES_SHOWN = 6
_KERNELS_SHOWN = 3
_OPERATORS_SHOWN = 8
#: Causes below this share of the largest are summed up.
_LEAST_SHOWN = 0.002
_MARKS = {"worse": "  WORSE", "better": "  better", "tool": "  (tool)"}


def text_of(result: CaseResult, folder: Path, *, quiet: bool = False) -> str:
    """The result for the terminal: a line, and why where there is something to explain."""
    parts = [f"{result.name}: {state_text(result)}", headline(result), result.failure]
    line = ", ".join(part for part in parts[:2] if part) + (f": {parts[2]}" if parts[2] else "")
    judgement = result.judgement
    line = printable(line)
    if quiet or judgement is None:
        return line
    if judgement.is_unchanged:
        return f"{line}\n  {judgement.tool_effect}" if judgement.tool_effect else line
    return "\n".join([line, *explanation(judgement, folder)])


def explanation(judgement: Judgement, folder: Path) -> list[str]:
    """The figures before and now, and what made the difference."""
    reported = batch_text(judgement)
    return [
        *([f"  {reported}"] if reported else []),
        *figure_lines(judgement, ("baseline", "now")),
        *(printable(line) for line in _tool_lines(judgement)),
        *reasons(judgement, folder),
    ]


def figure_lines(
    judgement: Judgement, titles: tuple[str, str], *, is_judged: bool = True
) -> list[str]:
    """The table of figures; with what is tolerated where it `is_judged`."""
    tolerated = "  tolerated" if is_judged else ""
    lines = [f"  {'':<22}{titles[0]:>13}{titles[1]:>13}{'change':>11}{tolerated}"]
    for change in judgement.metrics:
        if not change.before == change.after == 0:
            verdict = f"  {change.tolerance}{_MARKS.get(change.status, '')}" if is_judged else ""
            lines.append(_figure_line(change) + verdict)
    return [printable(line) for line in lines]


def reasons(judgement: Judgement, folder: Path) -> list[str]:
    """What of the program made the difference, and at which lines."""
    reported = judgement.optimizer_change
    lines = [f"  {reported}"] if reported else []
    lines += _cause_lines(judgement, folder)
    lines += _wait_lines(judgement, folder)
    lines += _stop_lines(judgement, folder)
    lines += _kernel_lines(judgement)
    lines += _operator_lines(judgement)
    lines += [f"  note: {note}" for note in judgement.notes]
    return [printable(line) for line in lines]


def _figure_line(change: MetricChange) -> str:
    was, now = figure_texts(change)
    title, unit = change.title, change.unit
    if unit.endswith("/s"):  # with so many digits there is no space for it behind each
        title = f"{title}, {unit}"
        was, now = (text.removesuffix(f" {unit}") for text in (was, now))
    return f"  {title:<22}{was:>13}{now:>13}{change_text(change):>11}"


def _tool_lines(judgement: Judgement) -> list[str]:
    if not judgement.tool_changes:
        return []
    lines = [f"  the tool is another one: {', '.join(judgement.tool_changes)}"]
    for op, share in judgement.price_changes[:_KERNELS_SHOWN]:
        lines.append(f"    {op}, called as before, is forecast {share:+.1%}")
    for change in judgement.metrics:
        if change.by_tool and change.by_program and change.status != "same":
            lines.append(
                f"    {change.title}: {amount_text(change.by_tool, change.unit, signed=True)} by "
                f"the tool, {amount_text(change.by_program, change.unit, signed=True)} by the "
                "program"
            )
    return lines


def _cause_lines(judgement: Judgement, folder: Path) -> list[str]:
    lines: list[str] = []
    for title, unit, causes, stack in (
        ("kernel time", "us", judgement.time_causes, judgement.time_stack),
        ("memory at the peak", "bytes", judgement.memory_causes, judgement.memory_stack),
    ):
        if not causes:
            continue
        host = sum(cause.host_us for cause in causes)
        extra = f", {amount_text(host, 'us', signed=True)} on the host" if abs(host) >= 1 else ""
        lines.append(f"  {title}: {amount_text(_total(causes), unit, signed=True)}{extra}")
        groups = _by_module(causes)
        if judgement.case.bound != "host":  # what only costs the host costs no time then
            groups = [group for group in groups if any(cause.amount for cause in group)]
        least = _LEAST_SHOWN * max(map(_weight, groups), default=0.0)
        shown = [group for group in groups[:_CAUSES_SHOWN] if _weight(group) >= least]
        for group in shown:
            lines += _group_lines(group, unit, folder)
        if len(groups) > len(shown):
            rest = sum(_total(group) for group in groups[len(shown) :])
            lines.append(
                f"    {amount_text(rest, unit, signed=True):>11}  in "
                f"{counted(len(groups) - len(shown), 'more module')}"
            )
        is_resized = any(cause.is_resized and cause.made for group in groups[:1] for cause in group)
        is_elsewhere = any(cause.stack and cause.stack[0] != stack[0] for cause in causes if stack)
        if is_elsewhere and not is_resized:
            lines.append(f"    most of it comes through {place_text(stack, folder)}")
    if judgement.peak_moved and judgement.memory_causes:
        was, now = judgement.peak_moved
        lines.append(f"    the peak moved from {was} to {now}")
    return lines


def _total(group: Iterable[Cause]) -> float:
    return sum(cause.amount for cause in group)


def _weight(group: Iterable[Cause]) -> float:
    """What the group adds or saves: of what only costs the host that."""
    return abs(sum(cause.amount or cause.host_us for cause in group))


def _by_module(causes: Iterable[Cause]) -> list[list[Cause]]:
    """Causes of the same modules together; the group that adds most (or saves most) first."""
    groups: dict[str, list[Cause]] = {}
    for cause in causes:
        groups.setdefault(cause.module, []).append(cause)
    return sorted(groups.values(), key=lambda group: (-_weight(group), group[0].module))


def _group_lines(group: list[Cause], unit: str, folder: Path) -> list[str]:
    total = _total(group)
    host = sum(cause.host_us for cause in group)
    first = max(group, key=lambda cause: (abs(cause.amount), abs(cause.host_us)))
    amount = amount_text(total, unit, signed=True)
    if unit == "us" and not total:
        amount = f"{amount_text(host, 'us', signed=True)} host"
    module = first.module or f"(no module, {first.phase})"
    more = f" and {counted(len(group) - 1, 'more op')}" if len(group) > 1 else ""
    lines = [f"    {amount:>11}  {module}: {_what(first)}{more}"]
    stack = next((cause.stack for cause in (first, *group) if cause.stack), ())
    if stack:
        lines.append(f"    {'':>11}  {place_text(stack, folder)}")
    here = own_line(stack, folder) if stack else ""
    others = dict.fromkeys(own_line(other, folder) for other in first.elsewhere)
    others.pop(here, None)
    if others:
        lines.append(f"    {'':>11}  the same is called at {', '.join(others)}")
    if first.made and first.is_resized:
        lines.append(f"    {'':>11}  made at {place_text(first.made, folder)}")
    return lines


def _what(cause: Cause) -> str:
    if "slack" in (cause.was, cause.now):
        return "ends of blocks that nothing fits into"
    if not cause.was:
        return f"new {cause.op} ({cause.now})"
    if not cause.now:
        return f"gone {cause.op} ({cause.was})"
    if cause.was == cause.now:
        return f"{cause.op} ({cause.now})"
    return f"{cause.op} ({cause.was} → {cause.now})"


def _wait_lines(judgement: Judgement, folder: Path) -> list[str]:
    lines = []
    for wait in judgement.new_waits:
        where = place_text(wait.stack, folder) if wait.stack else wait.code
        cost = f"the step is {amount_text(wait.cost_us, 'us')} longer for it"
        lines.append(f"  new synchronization ({wait.reason}, {wait.num_waits} a step): {cost}")
        lines.append(f"    {where}")
    if judgement.gone_waits and not judgement.new_waits:
        lines += [f"  synchronization gone: {text}" for text in judgement.gone_waits]
    return lines


def _stop_lines(judgement: Judgement, folder: Path) -> list[str]:
    lines = []
    for stop in judgement.new_stops:
        times = f" ({stop.num_times} times)" if stop.num_times > 1 else ""
        lines.append(f"  new {stop.what}{times}: {stop.reason}")
        lines.append(f"    {place_text((stop.place,), folder) if stop.place else stop.code}")
    return lines


def _kernel_lines(judgement: Judgement) -> list[str]:
    lines = []
    for title, kernels in (("new", judgement.new_kernels), ("gone", judgement.gone_kernels)):
        if kernels:
            ordered = sorted(kernels, key=lambda item: (-item[1], item[0]))
            named = ", ".join(f"{count} x {work}" for work, count in ordered[:_KERNELS_SHOWN])
            more = len(ordered) - _KERNELS_SHOWN
            lines.append(f"  {title} kernels: {named}{f' and {more} more' if more > 0 else ''}")
    return lines


def _operator_lines(judgement: Judgement) -> list[str]:
    changes = judgement.operator_changes
    lines = ["  kernel time in operators, those that they call included:"] if changes else []
    for change in changes[:_OPERATORS_SHOWN]:
        difference = amount_text(change.now_us - change.before_us, "us", signed=True)
        was, now = (amount_text(time, "us") for time in (change.before_us, change.now_us))
        lines.append(f"    {difference:>11}  {change.operator}: {was} → {now}")
    more = len(changes) - _OPERATORS_SHOWN
    return [*lines, f"    and {counted(more, 'more operator')}"] if more > 0 else lines
