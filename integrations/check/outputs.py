"""What a check found, for people (terminal, Markdown) and for machines (JSON, JUnit, GitHub)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from neusight.exit_codes import ExitCode
from neusight.integrations.check.baseline import METRICS
from neusight.integrations.check.judgement import Cause, Judgement, MetricChange
from neusight.integrations.check.observation import code_at
from neusight.integrations.check.result import CaseResult
from neusight.predictors.printable import printable, printable_text
from neusight.predictors.words import amount_text

__all__ = [
    "benchmark_json",
    "code_text",
    "explanation",
    "github_annotations",
    "junit_xml",
    "markdown",
    "report_json",
    "words_of",
]

#: Raised when a key of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1

#: Causes that are named one by one; the JSON has all.
_CAUSES_SHOWN = 6
_KERNELS_SHOWN = 3
#: Causes below this share of the largest are summed up.
_LEAST_SHOWN = 0.002
#: GitHub shows ten annotations of a step.
_ANNOTATIONS = 10


# -- amounts -------------------------------------------------------------------------------------


def _change_text(change: MetricChange) -> str:
    difference = change.after - change.before
    if difference == 0:
        return "same"
    if change.unit == "" or change.before == 0:
        return amount_text(difference, change.unit, signed=True)
    share = difference / change.before
    if abs(share) < 5e-4:
        return amount_text(difference, change.unit, signed=True)
    return f"{share:+.2%}"


def _headline(result: CaseResult) -> str:
    case = result.case
    if case is None:
        return ""
    latency = amount_text(case.metrics["step_latency_us"], "us")
    memory = amount_text(case.metrics["peak_memory_bytes"], "bytes")
    return f"{latency} a step, {memory} at the peak"


def _state(result: CaseResult) -> str:
    judgement = result.judgement
    if result.kind == "ok":
        assert judgement is not None
        return "ok, same as the baseline" if judgement.is_unchanged else "ok, within tolerance"
    return {
        "better": "ok, better than the baseline (--update keeps it)",
        "tool": "ok, but the tool changed and moved the figures (--update)",
        "regression": "REGRESSION",
        "new": "NO BASELINE (--update writes it)",
        "removed": "REMOVED",
        "foreign": "OTHER SETTINGS",
        "failed": "FAILED",
        "updated": "baseline written",
        "dropped": "dropped from the baseline",
    }[result.kind]


# -- the terminal --------------------------------------------------------------------------------


def words_of(result: CaseResult, folder: Path, *, quiet: bool = False) -> str:
    """The result for the terminal: a line, and why where there is something to explain."""
    parts = [f"{result.name}: {_state(result)}", _headline(result), result.failure]
    line = ", ".join(part for part in parts[:2] if part) + (f": {parts[2]}" if parts[2] else "")
    judgement = result.judgement
    if quiet or judgement is None or judgement.is_unchanged:
        return printable(line)
    line = printable(line)
    return "\n".join([line, *explanation(judgement, folder)])


def explanation(judgement: Judgement, folder: Path) -> list[str]:
    """The figures before and now, and what made the difference."""
    lines = [f"  {'':<22}{'baseline':>13}{'now':>13}{'change':>11}  tolerated"]
    for change in judgement.metrics:
        if change.before == change.after == 0:
            continue
        mark = {"worse": "  WORSE", "better": "  better", "tool": "  (tool)"}.get(change.status, "")
        lines.append(
            f"  {change.title:<22}{amount_text(change.before, change.unit):>13}"
            f"{amount_text(change.after, change.unit):>13}{_change_text(change):>11}"
            f"  {change.tolerance}{mark}"
        )
    lines += _tool_lines(judgement)
    lines += _cause_lines(judgement, folder)
    lines += _wait_lines(judgement, folder)
    lines += _kernel_lines(judgement)
    lines += [f"  note: {note}" for note in judgement.notes]
    return [printable(line) for line in lines]


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
        total = sum(cause.amount for cause in causes)
        host = sum(cause.host_us for cause in causes)
        extra = f", {amount_text(host, 'us', signed=True)} on the host" if abs(host) >= 1 else ""
        lines.append(f"  {title}: {amount_text(total, unit, signed=True)}{extra}")
        groups = _by_module(causes)
        if judgement.case.bound != "host":  # what only costs the host costs no time then
            groups = [group for group in groups if any(cause.amount for cause in group)]
        shown = groups[:_CAUSES_SHOWN]
        largest = max((abs(_total(group)) for group in groups), default=0.0)
        shown = [group for group in shown if abs(_total(group)) >= _LEAST_SHOWN * largest]
        for group in shown:
            lines += _group_lines(group, unit, folder)
        if len(groups) > len(shown):
            rest = sum(_total(group) for group in groups[len(shown) :])
            lines.append(
                f"    {amount_text(rest, unit, signed=True):>11}  in "
                f"{len(groups) - len(shown)} more modules"
            )
        is_resized = any(cause.is_resized and cause.made for group in groups[:1] for cause in group)
        is_elsewhere = any(cause.stack and cause.stack[0] != stack[0] for cause in causes if stack)
        if is_elsewhere and not is_resized:
            lines.append(f"    most of it comes through {_place(stack, folder)}")
    if judgement.peak_moved and judgement.memory_causes:
        was, now = judgement.peak_moved
        lines.append(f"    the peak moved from {was} to {now}")
    return lines


def _total(group: Iterable[Cause]) -> float:
    return sum(cause.amount for cause in group)


def _by_module(causes: Iterable[Cause]) -> list[list[Cause]]:
    """Causes of the same modules together; the group that adds most (or saves most) first."""
    groups: dict[str, list[Cause]] = {}
    for cause in causes:
        groups.setdefault(cause.module, []).append(cause)
    return sorted(
        groups.values(),
        key=lambda group: (-abs(sum(c.amount or c.host_us for c in group)), group[0].module),
    )


def _group_lines(group: list[Cause], unit: str, folder: Path) -> list[str]:
    total = sum(cause.amount for cause in group)
    host = sum(cause.host_us for cause in group)
    first = max(group, key=lambda cause: (abs(cause.amount), abs(cause.host_us)))
    amount = amount_text(total, unit, signed=True)
    if unit == "us" and not total:
        amount = f"{amount_text(host, 'us', signed=True)} host"
    module = first.module or f"(no module, {first.phase})"
    more = f" and {len(group) - 1} more ops" if len(group) > 1 else ""
    lines = [f"    {amount:>11}  {module}: {_what(first)}{more}"]
    stack = next((cause.stack for cause in (first, *group) if cause.stack), ())
    if stack:
        lines.append(f"    {'':>11}  {_place(stack, folder)}")
    here = _own_line(stack, folder) if stack else ""
    others = dict.fromkeys(_own_line(other, folder) for other in first.elsewhere)
    others.pop(here, None)
    if others:
        lines.append(f"    {'':>11}  the same is called at {', '.join(others)}")
    if first.made and first.is_resized:
        lines.append(f"    {'':>11}  made at {_place(first.made, folder)}")
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


def _place(stack: Sequence[str], folder: Path) -> str:
    """The innermost line of a stack, the program's own first; with its code."""
    place = _own_line(stack, folder)
    code = code_at(place, folder)
    return f"{place}  {code}" if code else place


def _own_line(stack: Sequence[str], folder: Path) -> str:
    """The innermost line in a file of the project; the innermost one where there is none."""
    return next((place for place in stack if code_at(place, folder)), stack[0])


def _wait_lines(judgement: Judgement, folder: Path) -> list[str]:
    lines = []
    for wait in judgement.new_waits:
        where = _place(wait.stack, folder) if wait.stack else wait.code
        cost = f"the step is {amount_text(wait.cost_us, 'us')} longer for it"
        lines.append(f"  new synchronization ({wait.reason}, {wait.num_waits} a step): {cost}")
        lines.append(f"    {where}")
    if judgement.gone_waits and not judgement.new_waits:
        lines += [f"  synchronization gone: {text}" for text in judgement.gone_waits]
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


# -- Markdown ------------------------------------------------------------------------------------


def markdown(results: Sequence[CaseResult], folder: Path) -> str:
    """A report for a pull request: a table of cases, then a section for each that has a story."""
    lines = ["## Performance forecast", "", "| case | result | step latency | peak memory |"]
    lines.append("|---|---|---:|---:|")
    for result in results:
        latency, memory = "", ""
        if result.judgement is not None:
            by_name = {change.name: change for change in result.judgement.metrics}
            latency = _cell(by_name["step_latency_us"])
            memory = _cell(by_name["peak_memory_bytes"])
        elif result.case is not None:
            latency = amount_text(result.case.metrics["step_latency_us"], "us")
            memory = amount_text(result.case.metrics["peak_memory_bytes"], "bytes")
        lines.append(f"| {code_text(result.name)} | {_state(result)} | {latency} | {memory} |")
    for result in results:
        lines += _markdown_section(result, folder)
    lines += ["", "A forecast, not a measurement: no GPU was used."]
    return "\n".join(lines) + "\n"


def _cell(change: MetricChange) -> str:
    now = amount_text(change.after, change.unit)
    words = _change_text(change)
    return now if words == "same" else f"{now} ({words})"


def _markdown_section(result: CaseResult, folder: Path) -> list[str]:
    if result.failure:
        return ["", f"### {code_text(result.name)}", "", _fenced([printable_text(result.failure)])]
    judgement = result.judgement
    if judgement is None or judgement.is_unchanged:
        return []
    return ["", f"### {code_text(result.name)}", "", _fenced(explanation(judgement, folder))]


def code_text(text: str) -> str:
    """A name in a Markdown table, whatever is in it."""
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if "`" in text else ""
    plain = printable(" ".join(text.split())).replace("|", "\\|")
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _fenced(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


# -- GitHub --------------------------------------------------------------------------------------


def github_annotations(results: Sequence[CaseResult], folder: Path, root: Path) -> list[str]:
    """Workflow commands that show each finding at its line; paths are relative to `root`."""
    found: list[str] = []
    for result in results:
        title = f"neusight: {result.name}"
        judgement = result.judgement
        if result.kind == "regression" and judgement is not None:
            found += [
                _annotation("error", text, title, place, folder, root)
                for text, place in _findings(judgement, folder)
            ]
        elif result.exit_code:
            text = f"{_state(result)} {result.failure}".strip()
            found.append(_annotation("error", text, title, "", folder, root))
        elif result.kind == "tool" and judgement is not None:
            text = f"{_state(result)}: {', '.join(judgement.tool_changes)}"
            found.append(_annotation("notice", text, title, "", folder, root))
    return found[:_ANNOTATIONS]


def _findings(judgement: Judgement, folder: Path) -> list[tuple[str, str]]:
    """(what is wrong, "file.py:12") of a regression: at least one, each line once."""
    worse = [change for change in judgement.metrics if change.status == "worse"]
    figures = ", ".join(
        f"{change.title} {amount_text(change.before, change.unit)} → "
        f"{amount_text(change.after, change.unit)}"
        for change in worse
    )
    found: dict[str, str] = {}
    for wait in judgement.new_waits:
        if wait.stack:
            text = f"waits for the GPU: {amount_text(wait.cost_us, 'us')} a step"
            found.setdefault(_own_line(wait.stack, folder), f"{text} ({figures})")
    names = {change.name for change in worse}
    if names & {"step_latency_us", "gpu_busy_us", "num_kernels", "flops"}:
        _add_finding(found, judgement.time_causes, judgement.time_stack, "us", figures, folder)
    if names & {"peak_memory_bytes", "peak_reserved_bytes"}:
        _add_finding(
            found, judgement.memory_causes, judgement.memory_stack, "bytes", figures, folder
        )
    return [(text, place) for place, text in found.items()] or [(figures, "")]


def _add_finding(
    found: dict[str, str],
    causes: Sequence[Cause],
    stack: Sequence[str],
    unit: str,
    figures: str,
    folder: Path,
) -> None:
    """At the line that made the module where one was resized, else where what is new is called."""
    growing = [cause for cause in causes if cause.amount > 0 and cause.is_in_module]
    if not growing:
        return
    totals: dict[str, float] = defaultdict(float)
    for cause in growing:
        totals[cause.module] += cause.amount
    first = max(
        growing,
        key=lambda cause: (_is_innermost(cause, growing), totals[cause.module], cause.amount),
    )
    if first.made and first.is_resized:
        stack = first.made
    if stack:
        named = sorted(totals, key=lambda module: -totals[module])[:3]
        modules = ", ".join(sorted(named))
        total = amount_text(sum(cause.amount for cause in growing), unit, signed=True)
        found.setdefault(_own_line(stack, folder), f"{total} in {modules} ({figures})")


def _is_innermost(cause: Cause, causes: Iterable[Cause]) -> bool:
    return not any(other.module.startswith(f"{cause.module}.") for other in causes)


def _annotation(level: str, text: str, title: str, place: str, folder: Path, root: Path) -> str:
    name, _, number = place.rpartition(":")
    where = ""
    if name and number.isdigit():
        path = os.path.relpath(folder / name, root)
        where = f"file={_property(path)},line={number},"
    return f"::{level} {where}title={_property(title)}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return printable_text(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


# -- machines ------------------------------------------------------------------------------------


def report_json(results: Sequence[CaseResult]) -> dict[str, Any]:
    """All that is known, nothing left out."""
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": max((result.exit_code for result in results), default=0),
        "cases": [_case_json(result) for result in results],
    }


def _case_json(result: CaseResult) -> dict[str, Any]:
    judgement, case = result.judgement, result.case
    document: dict[str, Any] = {
        "name": result.name,
        "result": result.kind,
        "failure": result.failure,
        "gpu": case.gpu if case else None,
        "metrics": dict(case.metrics) if case else None,
        "tool": dict(case.tool) if case else None,
    }
    if judgement is None:
        return document
    return {
        **document,
        "changes": [change._asdict() for change in judgement.metrics],
        "time_causes": [cause._asdict() for cause in judgement.time_causes],
        "memory_causes": [cause._asdict() for cause in judgement.memory_causes],
        "time_stack": list(judgement.time_stack),
        "memory_stack": list(judgement.memory_stack),
        "new_synchronizations": [wait._asdict() for wait in judgement.new_waits],
        "gone_synchronizations": list(judgement.gone_waits),
        "new_kernels": [{"kernel": work, "count": n} for work, n in judgement.new_kernels],
        "gone_kernels": [{"kernel": work, "count": n} for work, n in judgement.gone_kernels],
        "tool_changes": list(judgement.tool_changes),
        "price_changes": [{"op": op, "share": share} for op, share in judgement.price_changes],
        "notes": list(judgement.notes),
    }


def benchmark_json(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """For github-action-benchmark, tool `customSmallerIsBetter`."""
    return [
        {
            "name": f"{result.name}: {metric.title}",
            "unit": metric.unit or "count",
            "value": result.case.metrics[metric.name],
            "range": "0",
            "extra": f"neusight {result.case.tool['neusight']}, torch {result.case.tool['torch']}",
        }
        for result in results
        if result.case is not None and result.kind not in ("removed", "dropped")
        for metric in METRICS
    ]


def junit_xml(results: Sequence[CaseResult]) -> str:
    """A test suite with a test for each case: a regression is a failure, all else an error."""
    suite = ElementTree.Element(
        "testsuite",
        name="neusight",
        tests=str(len(results)),
        failures=str(sum(result.exit_code == ExitCode.JUDGED for result in results)),
        errors=str(sum(result.exit_code > ExitCode.JUDGED for result in results)),
    )
    for result in results:
        case = result.case
        seconds = case.metrics["step_latency_us"] / 1e6 if case else 0.0
        test = ElementTree.SubElement(
            suite, "testcase", classname="neusight", name=_xml(result.name), time=f"{seconds:.9f}"
        )
        if case is not None:
            properties = ElementTree.SubElement(test, "properties")
            for metric in METRICS:
                value = f"{case.metrics[metric.name]}"
                ElementTree.SubElement(properties, "property", name=metric.name, value=value)
        if not result.exit_code:
            continue
        kind = "failure" if result.exit_code == ExitCode.JUDGED else "error"
        message = result.failure or _state(result)
        problem = ElementTree.SubElement(test, kind, message=_xml(message), type=result.kind)
        if result.judgement is not None:
            problem.text = _xml("\n".join(explanation(result.judgement, Path.cwd())))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
