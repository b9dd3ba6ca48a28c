"""How the checks of cases came out, and what becomes of the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from neusight.exit_codes import ExitCode
from neusight.integrations.check.baseline import Case, update_baseline
from neusight.integrations.check.figures.tolerance import Tolerance
from neusight.integrations.check.judgement import Judgement, judge
from neusight.integrations.check.observation import Observation
from neusight.integrations.program.options import STATED_OF_BATCH

Kind = Literal[
    "ok",
    "better",
    "tool",
    "regression",
    "new",
    "removed",
    "foreign",
    "failed",
    "updated",
    "dropped",
]
_EXIT_CODES = {
    "regression": ExitCode.JUDGED,
    "new": ExitCode.WRONG_USE,
    "removed": ExitCode.WRONG_USE,
    "foreign": ExitCode.WRONG_USE,
    "failed": ExitCode.SCRIPT_FAILED,
}


@dataclass(frozen=True)
class CaseResult:
    """What became of one case. `failure` says why there is no judgement."""

    name: str
    kind: Kind
    judgement: Judgement | None = None
    case: Case | None = None
    failure: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """What the command's exit code says of it."""
        return _EXIT_CODES.get(self.kind, ExitCode.OK)


def result_of(
    name: str, found: Observation | str, before: Case | None, tolerances: Mapping[str, Tolerance]
) -> CaseResult:
    """What the baseline says of what a check saw, or of why it saw nothing."""
    if isinstance(found, str):
        return CaseResult(name, "failed", failure=found)
    if before is None:
        return CaseResult(name, "new", case=found.case)
    other = _other_settings(before, found.case)
    if other:
        return CaseResult(name, "foreign", case=found.case, failure=other)
    judgement = judge(name, before, found, tolerances)
    if judgement.is_regression:
        return CaseResult(name, "regression", judgement, found.case)
    if judgement.is_moved_by_tool:
        return CaseResult(name, "tool", judgement, found.case)
    return CaseResult(name, "better" if judgement.is_improved else "ok", judgement, found.case)


def _other_settings(before: Case, now: Case) -> str:
    if before.gpu != now.gpu:
        return f"the baseline is for {before.gpu}"
    for name in sorted(before.settings.keys() | now.settings.keys()):
        was, value = before.settings.get(name), now.settings.get(name)
        if name in STATED_OF_BATCH:  # judged of one, then
            continue
        is_moved_file = name == "calibration" and was and value  # what is in it, the tool says
        if was != value and not is_moved_file:
            return (
                f"the baseline was made with {name} {was or '(not set)'}, this check uses "
                f"{value or '(not set)'}; use the same, or --update"
            )
    return ""


def removed_result(name: str, case: Case, results: Iterable[CaseResult]) -> CaseResult:
    """What becomes of a case of the baseline that was not among all those checked."""
    duplicates = [
        result.name
        for result in results
        if result.kind == "new" and result.case is not None and result.case.work == case.work
    ]
    hint = f"; {duplicates[0]!r} does the same, so it may have been renamed" if duplicates else ""
    return CaseResult(
        name, "removed", case=case, failure=f"the project has no such case any more{hint}"
    )


def updated(path: Path, results: list[CaseResult], removed: list[str]) -> list[CaseResult]:
    """Writes the cases that ran; those of programs that failed stay as they are."""
    fresh = {result.name: result.case for result in results if result.case is not None}

    def change(cases: dict[str, Case]) -> dict[str, Case]:
        kept = {name: case for name, case in cases.items() if name not in removed}
        return {**kept, **fresh}

    if fresh or removed:
        update_baseline(path, change)
    written = [
        result if result.kind == "failed" else replace(result, kind="updated", failure="")
        for result in results
    ]
    return written + [CaseResult(name, "dropped") for name in removed]
