"""A stored result of `neusight serve` that a later one is judged by, for CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neusight.integrations.serving.document import SCHEMA_VERSION
from neusight.predictors.errors import BaselineError, OptionError
from neusight.predictors.files import is_number, read_json_document

#: Figures that are judged: what they are called, where they stand, and whether less is better.
_FIGURES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("TTFT p50", ("ttft_s", "p50"), True),
    ("TTFT p99", ("ttft_s", "p99"), True),
    ("TPOT p50", ("tpot_s", "p50"), True),
    ("TPOT p99", ("tpot_s", "p99"), True),
    ("tokens/s", ("output_tokens_per_s",), False),
    ("goodput", ("goodput",), False),
    ("KV cache use", ("most_kv_use",), True),
)
#: What two results of one load have in common.
_LOAD = ("num_requests", "mean_input_tokens", "mean_output_tokens")


@dataclass(frozen=True)
class BaselineChanges:
    """Sentences: what is worse than stored (`failures`), and what else differs (`notes`)."""

    failures: tuple[str, ...]
    notes: tuple[str, ...]


def parse_tolerance(text: str) -> float:
    """A share from "2 %"; OptionError.

    >>> parse_tolerance("2 %")
    0.02
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise OptionError(f"--tolerance is {text!r}; it is a share of each figure, as 2%")
    return float(match[1]) / 100


def read_result(path: str) -> dict[str, Any]:
    """A document that `neusight serve` wrote; BaselineError."""
    if not Path(path).exists():
        raise BaselineError(
            f"There is no baseline {path}. Write it with --update, look at it and commit it."
        )
    document = read_json_document(
        path,
        kind="result of `neusight serve`",
        error=BaselineError,
        remedy="Write it again with --update.",
        version=SCHEMA_VERSION,
    )
    document.rows("points")
    return dict(document.values)


def judge(
    now: Mapping[str, Any], stored: Mapping[str, Any], *, tolerance: float
) -> BaselineChanges:
    """What of a result is worse than a stored one by more than a share."""
    failures: list[str] = []
    notes: list[str] = []
    before = {_name(point): point for point in _points(stored)}
    for point in _points(now):
        name = _name(point)
        old = before.pop(name, None)
        if old is None:
            failures.append(f"{name} is not in the baseline: --update adds it")
        elif any(point.get(key) != old.get(key) for key in _LOAD):
            failures.append(f"{name} is another load than in the baseline: --update replaces it")
        else:
            worse, better = _changes(point, old, tolerance)
            failures += [f"{name}: {text}" for text in worse]
            notes += [f"{name}: {text}" for text in better]
    notes += [f"{name} of the baseline was not served" for name in before]
    return BaselineChanges(tuple(failures), tuple(notes))


def _points(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Its loads, and the highest rates that keep the limits."""
    yield from document["points"]
    for one in document.get("highest_rates", ()):
        yield {**one, "load": "the highest rate that keeps the SLO"}


def _name(point: Mapping[str, Any]) -> str:
    """What distinguishes a load on a deployment from others."""
    parts = [str(point.get("gpu"))]
    for key, text in (("tp", "tp {}"), ("pp", "pp {}"), ("replicas", "{} replicas")):
        if point.get(key, 1) != 1:
            parts.append(text.format(point[key]))
    if point.get("quantization"):
        parts.append(str(point["quantization"]))
    return f"{' '.join(parts)}, {point.get('load')}"


def _changes(
    now: Mapping[str, Any], before: Mapping[str, Any], tolerance: float
) -> tuple[list[str], list[str]]:
    """The figures that are worse, and those that are better."""
    figures = _FIGURES if "ttft_s" in now else (("requests/s", ("rate",), False),)
    worse: list[str] = []
    better: list[str] = []
    for label, path, less_is_better in figures:
        new, old = _value(now, path), _value(before, path)
        if old is None or new == old:
            continue
        if new is None:
            worse.append(f"{label} {old:.4g} -> none")
            continue
        growth = (new - old) / old if old else float("inf")
        if abs(growth) > tolerance:
            is_worse = (growth > 0) == less_is_better
            change = f"{label} {old:.4g} -> {new:.4g} ({growth:+.1%})"
            (worse if is_worse else better).append(change)
    return worse, better


def _value(point: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found: Any = point
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if is_number(found) else None
