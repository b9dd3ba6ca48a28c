"""Compares a forecast with a real profile: what matches, what differs, what is missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.integrations.profiles.aliases import ALIASES_VERSION
from neusight.integrations.profiles.comparison.breakdown import (
    class_rows,
    operator_rows,
    rows_of,
    score_of,
    step_rows,
)
from neusight.integrations.profiles.comparison.comparability import (
    differences,
    differences_by_class,
    notes_of,
)
from neusight.integrations.profiles.comparison.figures import figures_of, step_of
from neusight.integrations.profiles.comparison.operator_pairs import paired_operators
from neusight.integrations.profiles.comparison.rendering import markdown_table, plain, sections
from neusight.integrations.profiles.comparison.result import ComparedFigures
from neusight.integrations.profiles.comparison.work import matched, work_of
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile, read_profile_events
from neusight.predictors.kernel import KernelClass

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Raised when a key of `Comparison.to_json` changes its meaning or goes.
SCHEMA_VERSION = 2

_ROWS_SHOWN = 12


@dataclass(frozen=True)
class Comparison(ComparedFigures):
    """A forecast compared with a profile; `table()` prints it, `to_json()` has all of it."""

    def table(self, row_limit: int = _ROWS_SHOWN) -> str:
        """The comparison in text: totals, kernel classes, the largest operators, what is left."""
        return "\n".join(sections(self, row_limit, plain))

    def to_markdown(self, row_limit: int = _ROWS_SHOWN) -> str:
        """The same as Markdown tables."""
        return "\n".join(sections(self, row_limit, markdown_table)) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All figures, as `neusight compare --json` writes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "aliases_version": ALIASES_VERSION,
            "kernel_time_error": round(self.kernel_time_error, 6),
            "step_time_error": round(self.step_time_error, 6),
            "same_bound": self.same_bound,
            **asdict(self),
        }


def compare(forecast: Forecast | Profile | str | Path, real: Profile | str | Path) -> Comparison:
    """Compares a forecast (or its trace file) with a real profile, a step of median kernel time
    each.

    Kernels are put into classes by their names, and matched by class and problem size in the
    order of the program; where the profile has no shapes, by class and order alone, which
    `matched_share` does not count. TraceError where a file is no trace or holds no kernels.
    """
    ours, theirs = _profile_of(forecast), _profile_of(real)
    our_step, their_step = step_of(ours), step_of(theirs)
    our_work, their_work = work_of(ours, our_step), work_of(theirs, their_step)
    pairs, only_theirs, only_ours = matched(their_work, our_work)
    rows = rows_of(pairs, only_theirs, only_ours)
    measured_ns = sum(work.duration_ns for work in their_work) or 1
    our_classes = {work.kind for work in our_work}
    matched_share = round(sum(m.duration_ns for m, f in pairs if m.size == f.size) / measured_ns, 6)
    paired_share = round(sum(m.duration_ns for m, _ in pairs) / measured_ns, 6)
    has_sizes = any(work.has_size for work in their_work)
    return Comparison(
        measured=figures_of(theirs, their_step),
        forecast=figures_of(ours, our_step),
        classes=class_rows(rows),
        rows=rows,
        unmatched_measured=rows_of([], only_theirs, []),
        unmatched_forecast=rows_of([], [], only_ours),
        matched_share=matched_share,
        class_share=round(
            sum(
                work.duration_ns
                for work in their_work
                if work.kind in our_classes and work.kind is not KernelClass.UNKNOWN
            )
            / measured_ns,
            6,
        ),
        name_share=round(sum(m.duration_ns for m, f in pairs if m.op == f.op) / measured_ns, 6),
        score=score_of(rows),
        notes=tuple(notes_of(ours, theirs, their_work)),
        steps=step_rows(theirs, ours),
        operators=operator_rows(theirs, their_step, ours, our_step),
        operator_pairs=paired_operators(theirs, their_step, ours, our_step),
        warnings=tuple(
            differences(their_work, only_theirs, only_ours, matched_share)
            if has_sizes
            else differences_by_class(paired_share)
        ),
    )


def _profile_of(source: Forecast | Profile | str | Path) -> Profile:
    if isinstance(source, Profile):
        return source
    if isinstance(source, (str, Path)):
        return read_profile(source)
    from neusight.output.trace.file import trace_events

    return read_profile_events(
        trace_events(source.timeline, source.memory, source.gpu), source="the forecast"
    )
