"""A baseline: the figures of programs, and the work they come from, as text that reviewers read."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from neusight.integrations.check.figures.metrics import COMPILED_METRICS, KEPT_METRICS, METRICS
from neusight.predictors.errors import BaselineError
from neusight.predictors.files import (
    Fields,
    is_count,
    read_bytes,
    read_json_document,
    shown,
    write_atomically,
)

#: Raised when the form of the file changes.
SCHEMA_VERSION = 1

#: Modules that one row may stand for: more is no model, but a slip of the hand.
_MOST_MODULES = 100_000

#: Rows of a file, each module counted.
_MOST_ROWS = 1_000_000

#: Digits of a module's number; a longer one is part of its name.
_MOST_DIGITS = 18


class OpRow(NamedTuple):
    """Equal ops of a module in a phase of the steady step.

    `work` names their kernels, `signature` is a digest of what they were called with: ops of one
    signature cost the same. Times are nanoseconds of all `num_ops` together; `host_ns` is what
    they cost the host, about.
    """

    module: str
    phase: str
    op: str
    work: str
    signature: str
    num_ops: int
    num_kernels: int
    kernel_ns: int
    host_ns: int


class MemoryRow(NamedTuple):
    """Storages of a module that are alive at the peak; bytes of all of them together."""

    module: str
    phase: str
    kind: str
    op: str
    num_storages: int
    num_bytes: int


class WaitRow(NamedTuple):
    """Times that the host waits for the GPU in the steady step, and the line of code that asks."""

    reason: str
    code: str
    num_waits: int


class CompileRow(NamedTuple):
    """A "graph break" or a "recompile" of torch.compile, with torch's reason and the line of code
    that it is about; how often it came."""

    what: str
    reason: str
    code: str
    num_times: int


class OperatorTimeRow(NamedTuple):
    """Kernels of the steady step in an operator such as aten::linear, launched by itself or by
    those that it calls, which have rows of their own."""

    operator: str
    num_kernels: int
    kernel_ns: int


@dataclass(frozen=True)
class Case:
    """One program on one GPU, as a baseline keeps it.

    `program` is the script and its arguments (empty in a test), `settings` what was chosen for the
    forecast, `metrics` the figures by name (`KEPT_METRICS`), `bound` what limits the step. `tool`
    says what made the forecast; `work` is a digest of all that was recorded, prices aside, `files`
    one of the program's own files. `peak` is where memory is fullest. `compiling` and the figures
    of `COMPILED_METRICS` are there where torch.compile compiled something; `optimizer` is the class
    of the one that steps, where one does. `batch_source` says by which means the batch is known
    (`Batch.source`; empty in baselines that do not say). `recording` is what was recorded, to be
    priced again by a later version of the tool (`text_of_recording`; empty where it is too long).
    `operators` is filled where operators were requested.
    """

    gpu: str
    program: tuple[str, ...]
    settings: dict[str, str]
    metrics: dict[str, float]
    bound: str
    tool: dict[str, str]
    work: str
    files: str
    peak: str
    ops: tuple[OpRow, ...]
    memory: tuple[MemoryRow, ...]
    waits: tuple[WaitRow, ...]
    compiling: tuple[CompileRow, ...] = ()
    optimizer: str = ""
    batch_source: str = ""
    recording: str = ""
    operators: tuple[OperatorTimeRow, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile compiled something, as far as the case knows."""
        return COMPILED_METRICS[0].name in self.metrics

    @property
    def adds_up(self) -> bool:
        """Whether the rows give the figures; they do not where one of them was edited."""
        return (
            sum(row.num_kernels for row in self.ops) == self.metrics["num_kernels"]
            and sum(row.num_bytes for row in self.memory) == self.metrics["peak_memory_bytes"]
            and sum(row.num_waits for row in self.waits) == self.metrics["num_synchronizations"]
        )


# -- equal layers in one row ---------------------------------------------------------------------

R = TypeVar("R", OpRow, MemoryRow)
_RANGES = re.compile(r"\[\d+(-\d+)?(,\d+(-\d+)?)*\]")


def folded(modules: Iterable[str]) -> list[str]:
    """Module paths with runs of numbers written together, sorted.

    >>> folded(["Net.0.up", "Net.1.up", "Net.2.up", "Net.head"])
    ['Net.[0-2].up', 'Net.head']
    """
    paths = {tuple(module.split(".")) for module in modules}
    for position in range(max(map(len, paths), default=0)):
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        rest: set[tuple[str, ...]] = set()
        for path in paths:
            if position < len(path) and _is_number(path[position]):
                groups[(*path[:position], "", *path[position + 1 :])].append(int(path[position]))
            else:
                rest.add(path)
        for path, numbers in groups.items():
            rest.add((*path[:position], _ranges(sorted(numbers)), *path[position + 1 :]))
        paths = rest
    return sorted((".".join(path) for path in paths), key=_natural)


def _is_number(part: str) -> bool:
    return _is_digits(part) and str(int(part)) == part


def _is_digits(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS


def _ranges(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    consecutive = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in run] for _, run in consecutive]
    return f"[{','.join('-'.join(map(str, sorted({run[0], run[-1]}))) for run in runs)}]"


def unfolded(module: str) -> list[str]:
    """The module paths that `folded` wrote together; BaselineError where there are too many.

    >>> unfolded("Net.[0-1,7].up")
    ['Net.0.up', 'Net.1.up', 'Net.7.up']
    """
    choices = [_numbers(part) if _RANGES.fullmatch(part) else [part] for part in module.split(".")]
    if math.prod(map(len, choices)) > _MOST_MODULES:
        raise BaselineError(f"{shown(module)} stands for more than {_MOST_MODULES} modules.")
    return [".".join(parts) for parts in product(*choices)]


def _numbers(part: str) -> list[str]:
    found: list[str] = []
    for piece in part[1:-1].split(","):
        first, _, last = piece.partition("-")
        if max(len(first), len(last)) > _MOST_DIGITS:
            raise BaselineError(f"{shown(part)} names a module by a number of too many digits.")
        span = range(int(first), int(last or first) + 1)
        if len(found) + len(span) > _MOST_MODULES:
            raise BaselineError(f"{shown(part)} stands for more than {_MOST_MODULES} modules.")
        found.extend(map(str, span))
    return found


def _natural(text: str) -> list[tuple[float, str]]:
    """Sorts "Net.2" before "Net.10"."""
    return [
        (int(part), "") if _is_digits(part) else (math.inf, part)
        for part in re.split(r"(\d+)", text)
    ]


def _fold_rows(rows: Iterable[R]) -> list[R]:
    modules: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    kind: type[R] | None = None
    for row in rows:
        kind = type(row)
        modules[tuple(row[1:])].append(row.module)
    if kind is None:
        return []
    found = [
        kind(module, *rest) for rest, modules_of in modules.items() for module in folded(modules_of)
    ]
    return sorted(found, key=lambda row: (_natural(row[0]), *(str(part) for part in row[1:])))


def _unfold_rows(rows: Iterable[R], where: str) -> tuple[R, ...]:
    found: list[R] = []
    for row in rows:
        try:
            modules = unfolded(row.module)
        except BaselineError as error:
            raise BaselineError(f"{where}: {error}") from error
        if len(found) + len(modules) > _MOST_ROWS:
            raise BaselineError(f"{where}: the rows stand for more than {_MOST_ROWS} modules.")
        found += [row._replace(module=module) for module in modules]
    return tuple(found)


# -- as text -------------------------------------------------------------------------------------

_SIMPLE = ("gpu", "program", "settings", "bound", "tool", "work", "files", "peak")
_ROWS: dict[str, type[tuple[Any, ...]]] = {
    "ops": OpRow,
    "memory": MemoryRow,
    "waits": WaitRow,
    "compiling": CompileRow,
    "operators": OperatorTimeRow,
}
#: Entries that a case may lack.
_OPTIONAL_TEXTS = ("optimizer", "batch_source", "recording")
_OPTIONAL = ("compiling", "operators", *_OPTIONAL_TEXTS)
_TEXTS = ("gpu", "bound", "work", "files", "peak", *_OPTIONAL_TEXTS)


def baseline_text(cases: Mapping[str, Case]) -> str:
    """The file: a block for each case, sorted by name, a line for each figure and row.

    >>> print(baseline_text({}))
    {
     "schema_version": 1,
     "cases": {}
    }
    <BLANKLINE>
    """
    blocks = [f"  {json.dumps(name)}: {_case_text(cases[name])}" for name in sorted(cases)]
    body = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    return f'{{\n "schema_version": {SCHEMA_VERSION},\n "cases": {body}\n}}\n'


def figures_text(case: Case) -> str:
    """The lines of a case that hold its figures, to paste into the file."""
    kept = [m.name for m in KEPT_METRICS if m in METRICS or m.name in case.metrics]
    figures = [f'    "{name}": {_number(case.metrics[name])}' for name in kept]
    return '   "metrics": {\n' + ",\n".join(figures) + "\n   }"


def _case_text(case: Case) -> str:
    parts = [
        f'   "{name}": {json.dumps(getattr(case, name), sort_keys=True)}'
        for name in _SIMPLE
        if name != "peak"
    ]
    parts.insert(3, figures_text(case))
    parts.append(f'   "peak": {json.dumps(case.peak)}')
    for name in _OPTIONAL_TEXTS:
        if getattr(case, name):
            parts.append(f'   "{name}": {json.dumps(getattr(case, name))}')
    rows: dict[str, list[Any]] = {
        "ops": _fold_rows(case.ops),
        "memory": _fold_rows(case.memory),
        "waits": sorted(case.waits),
        **({"compiling": sorted(case.compiling)} if case.is_compiled else {}),
        **({"operators": sorted(case.operators)} if case.operators else {}),
    }
    for name, lines in rows.items():
        text = ",\n".join(f"    {json.dumps(line, ensure_ascii=False)}" for line in lines)
        parts.append(f'   "{name}": [\n{text}\n   ]' if lines else f'   "{name}": []')
    return "{\n" + ",\n".join(parts) + "\n  }"


def _number(value: float) -> str:
    return json.dumps(int(value) if float(value).is_integer() else value)


# -- reading -------------------------------------------------------------------------------------


def read_baseline(path: Path) -> dict[str, Case]:
    """The cases of a baseline; BaselineError says what is wrong with it and where."""
    try:
        conflicts = _CONFLICT.search(read_bytes(path))
    except FileNotFoundError:
        raise BaselineError(
            f"There is no baseline {path}. Write it with --update (before the script, where there "
            "is one), look at it and commit it."
        ) from None
    except (OSError, ValueError):
        conflicts = None  # said below
    if conflicts:
        raise BaselineError(
            f"The baseline {path} holds the conflict markers of a merge. Take either side and "
            "write it again with --update."
        )
    cases = read_json_document(
        path, kind="baseline", error=BaselineError, remedy=_REMEDY, version=SCHEMA_VERSION
    ).fields("cases")
    return {name: _case_of(name, cases.fields(name)) for name in cases.values}


#: A line of these begins or ends what a merge could not decide.
_CONFLICT = re.compile(rb"^(<<<<<<<|>>>>>>>)", re.MULTILINE)
_REMEDY = "Mend it, or write it again with --update."


def _case_of(name: str, case: Fields) -> Case:
    every = [item.name for item in fields(Case)]
    case.require_only(every)
    for entry in every:
        if entry not in (*case.values, *_OPTIONAL):
            case.refuse(entry, "there")
    where = f"{case.source}, {shown(name)}"
    return Case(
        **{entry: case.text(entry, default="") for entry in _TEXTS},
        program=case.texts("program"),
        settings=case.text_by_name("settings"),
        metrics=_metrics_of(case.fields("metrics")),
        tool=case.text_by_name("tool"),
        ops=_unfold_rows(_rows_of(case, "ops"), where),
        memory=_unfold_rows(_rows_of(case, "memory"), where),
        waits=tuple(_rows_of(case, "waits")),
        compiling=tuple(_rows_of(case, "compiling")),
        operators=tuple(_rows_of(case, "operators")),
    )


def _metrics_of(figures: Fields) -> dict[str, float]:
    names = [
        metric.name for metric in KEPT_METRICS if metric in METRICS or metric.name in figures.values
    ]
    for name in names:
        figures.number(name, least=0)
    return {name: figures.values[name] for name in names}  # counts stay counts


def _rows_of(case: Fields, name: str) -> list[Any]:
    kind = _ROWS[name]
    types = get_type_hints(kind)
    rows = case.items(name, default=[])
    for number, row in enumerate(rows):
        fits = isinstance(row, list) and len(row) == len(types)
        if not fits or not all(map(_is_entry, row, types.values())):
            place = f"{name}[{number}]"
            replace(case, values={place: row}).refuse(place, f"[{', '.join(types)}]")
    return [kind(*row) for row in rows]


def _is_entry(value: Any, annotation: object) -> bool:
    return isinstance(value, str) if annotation is str else is_count(value)


# -- writing -------------------------------------------------------------------------------------


def update_baseline(path: Path, change: Callable[[dict[str, Case]], Mapping[str, Case]]) -> bool:
    """Replaces the file by what `change` makes of its cases; whether it is another file now.

    Runs at the same time wait for each other, none loses what another wrote. A file that is there
    and cannot be read stays as it is: BaselineError.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(target.parent):
            cases = read_baseline(target) if target.exists() else {}
            data = baseline_text(change(cases)).encode()
            if target.exists() and target.read_bytes() == data:
                return False
            write_atomically(target, data)
    except OSError as error:
        raise BaselineError(
            f"The baseline {path} cannot be written: {error.strerror or error}."
        ) from error
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder itself, so that no lock file stays behind."""
    import fcntl  # Windows, where baselines can be read, has none

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
