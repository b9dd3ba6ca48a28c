"""Two forecasts, the first taken for the baseline of the second: what differs, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.integrations.check.baseline import Case, OpRow
from neusight.integrations.check.difference import with_todays_names
from neusight.integrations.check.judgement import Judgement, judge
from neusight.integrations.check.observation import Observation, observe
from neusight.integrations.check.outputs.documents import judgement_json

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: Raised when a key of `Pair.to_json` changes its meaning or goes.
SCHEMA_VERSION = 1

#: Two programs are the same where at least that share of the kernel time is in modules and ops that
#: both have: what a change of one leaves is mostly more.
_SAME_PROGRAM = 0.5


@dataclass(frozen=True)
class Side:
    """A forecast by what it is called, with the folder of the program's files."""

    title: str
    forecast: Forecast
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """What it was made of, in words."""
        recording = self.forecast.recording
        torch = recording.torch_version.partition("+")[0]
        program = f"{recording.script} on " if recording.script else ""
        return f"{program}{self.forecast.gpu.name}, host {self.forecast.host.name}, torch {torch}"


@dataclass(frozen=True)
class Pair:
    """Two sides compared. `warnings` are what makes them hard to compare: shown first."""

    first: Side
    second: Side
    judgement: Judgement
    cases: tuple[Case, Case]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "first": _side_json(self.first, self.cases[0]),
            "second": _side_json(self.second, self.cases[1]),
            "warnings": list(self.warnings),
            **judgement_json(self.judgement),
        }


def _side_json(side: Side, case: Case) -> dict[str, Any]:
    return {
        "title": side.title,
        "gpu": case.gpu,
        "script": side.forecast.recording.script,
        "torch": case.tool["torch"],
        "settings": dict(case.settings),
        "metrics": dict(case.metrics),
        "notes": list(side.notes),
    }


def pair_of(first: Side, second: Side) -> Pair:
    """The two compared; ForecastStateError where one of them launched no kernel."""
    before = _observed(first, prices_waits=False)
    after = _observed(second, known_waits={row[:2] for row in before.case.waits})
    # Nothing is judged: all that differs is shown as it is, also where prices do.
    alike = replace(before.case, tool=after.case.tool)
    return Pair(
        first,
        second,
        judge("", alike, after),
        (before.case, after.case),
        tuple(_warnings(first, second, before.case, after.case)),
    )


def _observed(side: Side, **waits: Any) -> Observation:
    return observe(
        side.forecast,
        folder=side.folder,
        keeps_recording=False,
        with_operators=any(step.operators for step in side.forecast.recording.steps),
        **waits,
    )


def _warnings(first: Side, second: Side, before: Case, now: Case) -> Iterator[str]:
    shared = _shared(with_todays_names(before, now)[0].ops, now.ops)
    if shared < _SAME_PROGRAM:
        scripts = [side.forecast.recording.script for side in (first, second)]
        named = f" ({scripts[0]}, {scripts[1]})" if all(scripts) and len(set(scripts)) > 1 else ""
        yield (
            f"not the same program{named}: {shared:.0%} of the kernel time is in modules and ops "
            "that both have"
        )
    if before.gpu != now.gpu:
        yield f"not the same GPU: {before.gpu}, {now.gpu}"
    for name in sorted(before.settings.keys() | now.settings.keys()):
        was, has = before.settings.get(name, "not set"), now.settings.get(name, "not set")
        if was != has:
            yield f"not the same {name}: {was}, {has}"
    if before.tool["torch"] != now.tool["torch"]:
        yield f"not the same torch: {before.tool['torch']}, {now.tool['torch']}"


def _shared(before: Iterable[OpRow], now: Iterable[OpRow]) -> float:
    """The share of both kernel times that is in modules, phases and ops which both have."""
    was, has = _times(before), _times(now)
    times = was + has
    both = sum(times[key] for key in was.keys() & has.keys())
    return both / times.total() if times else 1.0


def _times(rows: Iterable[OpRow]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found[row.module, row.phase, row.op] += row.kernel_ns
    return found
