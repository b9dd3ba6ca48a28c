"""A suite evaluated: every case by every predictor, with its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from neusight.integrations.suites.case import LeftOut, Suite
from neusight.integrations.suites.paper import paper_suite
from neusight.integrations.suites.published import published_suite
from neusight.integrations.suites.rendering import result_row
from neusight.integrations.suites.results import PricedCase, case_results
from neusight.integrations.suites.scores import (
    ErrorTable,
    kernel_table,
    paper_tables,
    published_tables,
)
from neusight.predictors.errors import DataError
from neusight.predictors.registry import DEFAULT_PREDICTOR, find_predictor
from neusight.predictors.training.evaluate import Score, score_dataset
from neusight.predictors.training.reading import read_dataset
from neusight.predictors.training.tables.files import found_table

SUITES = ("paper", "published")

#: The table of the paper's kernels.
_KERNELS = "kernels"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SuiteReport:
    """All results of a suite, the tables of them, and what was left out with the reason."""

    suite: str
    predictors: tuple[str, ...]
    results: tuple[PricedCase, ...]
    tables: tuple[ErrorTable, ...]
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> dict[str, object]:
        """The document of `neusight evaluate --suite … --json`."""
        return {
            "schema_version": 1,
            "suite": self.suite,
            "predictors": list(self.predictors),
            "default": DEFAULT_PREDICTOR,
            "cases": [result_row(result) for result in self.results],
            "tables": [asdict(table) for table in self.tables],
            "left_out": [asdict(item) for item in self.left_out],
        }


def evaluate_suite(
    name: str,
    folder: Path,
    predictors: Sequence[str],
    *,
    only: str = "",
    kept: Path | None = None,
    torch: str | None = None,
    host: str | None = None,
    progress: Progress = lambda text: None,
) -> SuiteReport:
    """Runs the cases with `only` in their names, and prices them: as the torch that each ran, or as
    `torch`, and on the usual host of its GPU, or on `host`.

    DataError where the folder, a file or all cases are missing or cannot be used.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} with the cases of the suite {name!r}.")
    chosen = {each: find_predictor(each) for each in predictors}
    scores: tuple[Score, ...] = ()
    if name == "paper":
        measured, scores = _kernels(folder, () if only else predictors, progress)
        suite = paper_suite(folder, measured=measured)
    else:
        suite = published_suite(folder)
    suite = _with(suite, only)
    results: list[PricedCase] = []
    left_out = list(suite.left_out)
    for item in case_results(
        suite, chosen, folder, kept=kept, torch=torch, host=host, progress=progress
    ):
        if isinstance(item, PricedCase):
            results.append(item)
        else:
            left_out.append(item)
    if name == "paper":
        tables = paper_tables(results, predictors)
        tables += [kernel_table(scores, predictors)] if scores else []
    else:
        tables = published_tables(results, predictors)
    return SuiteReport(name, tuple(predictors), tuple(results), tuple(tables), tuple(left_out))


def _with(suite: Suite, only: str) -> Suite:
    cases = tuple(case for case in suite.cases if only in case.name)
    left_out = tuple(item for item in suite.left_out if only in item.name)
    if not cases and not left_out:
        raise DataError(f"No case of the suite {suite.name!r} has {only!r} in its name.")
    return Suite(suite.name, cases, left_out)


def _kernels(
    folder: Path, predictors: Sequence[str], progress: Progress
) -> tuple[set[str] | None, tuple[Score, ...]]:
    """The GPUs whose kernels the folder has, None where it has no table of them; and the scores of
    the predictors on them."""
    if found_table(folder, _KERNELS) is None:
        return None, ()
    dataset = read_dataset(folder, tables=[_KERNELS])
    measured = {group.gpu.name for group in dataset.groups}
    if not predictors:
        return measured, ()
    return measured, score_dataset(dataset, predictors=predictors, progress=progress).rows
