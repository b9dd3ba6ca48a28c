"""Mean errors of predictors on groups of cases: what the tables of a suite are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from neusight.integrations.suites.case import SuiteCase
from neusight.integrations.suites.results import PricedCase
from neusight.predictors.registry import DEFAULT_PREDICTOR
from neusight.predictors.training.evaluate import Score

#: What a GPU is marked with of which no predictor has seen kernels like these.
HELD_OUT = " *"


#: What makes one error smaller than another: half of the last digit that tables show, a share.
_LEAST_NEARER = 0.0005


@dataclass(frozen=True)
class ErrorRow:
    """Mean absolute errors of each predictor on some cases, and the default's signed mean, shares;
    None where a predictor has none of them. `inside` is the share of the default's 80 % intervals
    that hold the measured time."""

    name: str
    num_cases: int
    errors: Mapping[str, float | None]
    bias: float | None
    inside: float | None

    @property
    def better(self) -> tuple[str, ...]:
        """The predictors that come nearer than the default."""
        own = self.errors.get(DEFAULT_PREDICTOR)
        if own is None:
            return ()
        least = own - _LEAST_NEARER
        return tuple(n for n, error in self.errors.items() if error is not None and error < least)


@dataclass(frozen=True)
class ErrorTable:
    """Rows under one heading."""

    title: str
    rows: tuple[ErrorRow, ...]


#: What a table groups its cases by.
Grouping = Callable[[SuiteCase], str]


def paper_tables(results: Sequence[PricedCase], predictors: Sequence[str]) -> list[ErrorTable]:
    """The paper's tables: eager cases of one GPU by GPU, model, batch and mode; fusion; four
    GPUs."""
    eager = [r for r in results if not r.case.program.compiled and not r.case.program.split]
    fused = [r for r in results if r.case.program.compiled]
    split = [r for r in results if r.case.program.split]
    found = [_table(title, eager, by, predictors) for title, by in _PAPER_GROUPS.items()]
    found.append(_table("fusion (torch.compile)", fused, _model_and_batch, predictors))
    found.append(_table("several GPUs", split, _model_and_split, predictors))
    return [table for table in found if table.rows]


def published_tables(results: Sequence[PricedCase], predictors: Sequence[str]) -> list[ErrorTable]:
    """A table a source, by GPU, mode and compilation: sources are never pooled."""
    sources = dict.fromkeys(result.case.source for result in results)
    return [
        _table(source, [r for r in results if r.case.source == source], _gpu_and_mode, predictors)
        for source in sources
    ]


def kernel_table(scores: Iterable[Score], predictors: Sequence[str]) -> ErrorTable:
    """Errors of single kernels by the paper's classes and GPU: labels above twice the host's floor,
    without the rows that estimate the floor."""
    by_group: dict[str, list[Score]] = {}
    for score in scores:
        if score.size_class == "above_floor":
            kind = _CLASSES.get(score.phase_or_op, "element-wise")
            by_group.setdefault(f"{kind}, {score.gpu}", []).append(score)
    rows = (_kernel_row(name, own, predictors) for name, own in sorted(by_group.items()))
    return ErrorTable("single kernels", tuple(rows))


#: The paper's classes of the tables' operations; all others are element-wise.
_CLASSES = {"bmm": "BMM", "linear": "fully connected", "softmax": "softmax", "ln": "layer norm"}


def _kernel_row(name: str, scores: Sequence[Score], predictors: Sequence[str]) -> ErrorRow:
    own = {each: [s for s in scores if s.predictor == each] for each in predictors}
    default = own.get(DEFAULT_PREDICTOR, [])
    return ErrorRow(
        name,
        max(sum(score.num_rows for score in each) for each in own.values()),
        {each: _weighted((s.mape, s.num_rows) for s in found) for each, found in own.items()},
        _weighted((s.sum_error, s.num_rows) for s in default),
        _weighted((s.within_interval, s.num_rows) for s in default),
    )


def _weighted(values: Iterable[tuple[float, int]]) -> float | None:
    found = list(values)
    num_rows = sum(count for _, count in found)
    return sum(value * count for value, count in found) / num_rows if num_rows else None


def _seen(case: SuiteCase) -> str:
    kind = "AMD" if case.gpu.vendor == "amd" else "NVIDIA"
    return f"{kind}, {'not measured' if case.is_held_out else 'measured'} for training"


def _mode(case: SuiteCase) -> str:
    kind = "AMD" if case.gpu.vendor == "amd" else "NVIDIA"
    return f"{'inference' if case.program.mode == 'inf' else 'training'}, {kind}"


def _model_and_batch(case: SuiteCase) -> str:
    return f"{case.program.model} {case.program.batch}"


def _model_and_split(case: SuiteCase) -> str:
    return f"{case.program.model} {case.program.split}{case.program.num_ranks}"


def _gpu_and_mode(case: SuiteCase) -> str:
    program = case.program
    mode = "inference" if program.mode == "inf" else "training"
    how = f"compiled ({program.compiled})" if program.compiled else "eager"
    return f"{case.gpu.name} {program.precision} {mode}, {how}"


_PAPER_GROUPS: Mapping[str, Grouping] = {
    "all eager cases of one GPU": _seen,
    "by mode": _mode,
    "by GPU": lambda case: case.gpu.name + HELD_OUT * case.is_held_out,
    "by model": lambda case: f"{case.program.model}, {_mode(case).partition(',')[0]}",
    "by batch": lambda case: f"batch {case.program.batch:>2}",
}


def _table(
    title: str, results: Sequence[PricedCase], by: Grouping, predictors: Sequence[str]
) -> ErrorTable:
    names = sorted({by(result.case) for result in results})
    rows = (_row(name, [r for r in results if by(r.case) == name], predictors) for name in names)
    return ErrorTable(title, tuple(rows))


def _row(name: str, results: Sequence[PricedCase], predictors: Sequence[str]) -> ErrorRow:
    own = [result for result in results if result.predictor == DEFAULT_PREDICTOR]
    errors = {
        each: _mean(abs(result.error) for result in results if result.predictor == each)
        for each in predictors
    }
    return ErrorRow(
        name,
        len({result.case.name for result in results}),
        errors,
        _mean(result.error for result in own),
        _mean(float(result.is_inside) for result in own),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
