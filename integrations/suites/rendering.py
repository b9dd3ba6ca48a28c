"""A suite's errors as people read them, as Markdown, and as rows of a file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from neusight.integrations.suites.case import LeftOut
from neusight.integrations.suites.results import PricedCase
from neusight.integrations.suites.scores import ErrorRow, ErrorTable
from neusight.predictors.formatting import aligned
from neusight.predictors.registry import DEFAULT_PREDICTOR
from neusight.predictors.terminal_text import printable

_FIGURES = ("bias", "in 80%", "nearer than the default")


def text_table(table: ErrorTable, predictors: Sequence[str]) -> str:
    """Mean absolute errors in percent, a predictor a column; bias and interval are the default's,
    and the last column names the predictors that come nearer."""
    head = [table.title, "cases", *predictors, *_FIGURES]
    lines = [head, *(_cells(row, predictors, unit="%") for row in table.rows)]
    lines = [[printable(cell) for cell in line] for line in lines]
    return "\n".join(aligned(lines, left=(0, len(head) - 1)))


def markdown(table: ErrorTable, predictors: Sequence[str]) -> str:
    """The same as Markdown."""
    head = ["", "cases", *predictors, "bias", "in 80 %", "nearer"]
    lines = [head, ["---", *["---:"] * (len(predictors) + 3), "---"]]
    lines += [_cells(row, predictors, unit="") for row in table.rows]
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table.title}:\n\n{body}\n"


def _cells(row: ErrorRow, predictors: Sequence[str], *, unit: str) -> list[str]:
    shares = [_percent(row.errors.get(name), unit) for name in predictors]
    inside = "-" if row.inside is None else f"{100 * row.inside:.0f}{unit}"
    bias = "-" if row.bias is None else f"{100 * row.bias:+.1f}{unit}"
    return [row.name, f"{row.num_cases}", *shares, bias, inside, ", ".join(row.better) or "none"]


def _percent(share: float | None, unit: str) -> str:
    return "-" if share is None else f"{100 * share:.1f}{unit}"


def left_out_lines(left_out: Iterable[LeftOut]) -> list[str]:
    """A line for each source and reason, with how many rows it holds."""
    counts = Counter((item.source, item.reason) for item in left_out)
    return [
        printable(f"left out, {source}: {count} {'row' if count == 1 else 'rows'}: {reason}")
        for (source, reason), count in sorted(counts.items())
    ]


_COLUMNS = ("suite", "source", "case", "gpu", "held_out", "model", "mode", "batch", "size",
            "precision", "compiled", "optimizer", "split", "num_gpus", "metric", "predictor",
            "status", "trained_share", "error", "is_inside", "assumed", "left_out")  # fmt: skip


def csv_text(suite: str, results: Iterable[PricedCase], left_out: Iterable[LeftOut]) -> str:
    """A row for each case and predictor, and one for each that was left out with its reason: what
    ran, what was assumed, and the signed error as a share. Measured values stay in the data."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerow({"suite": suite, **_of_csv(result)})
    for item in left_out:
        writer.writerow(
            {"suite": suite, "source": item.source, "case": item.name, "left_out": item.reason}
        )
    return stream.getvalue()


def _of_csv(result: PricedCase) -> dict[str, object]:
    row = {
        **result_row(result),
        "case": result.case.name,
        "num_gpus": result.case.program.num_ranks,
        "trained_share": round(result.trained_share, 3),
        "error": round(result.error, 4),
        "assumed": "; ".join(result.case.assumed),
    }
    return {name: value for name, value in row.items() if name in _COLUMNS}


def result_row(result: PricedCase) -> dict[str, object]:
    """A case of `neusight evaluate --suite --json`: all that is known of it."""
    case = result.case
    return {
        **asdict(case.program),
        "name": case.name,
        "source": case.source,
        "gpu": case.gpu.name,
        "held_out": case.is_held_out,
        "metric": case.metric,
        "value": case.value,
        "measured_ms": case.measured_ms,
        "assumed": list(case.assumed),
        "predictor": result.predictor,
        "is_default": result.predictor == DEFAULT_PREDICTOR,
        "status": result.status,
        "trained_share": round(result.trained_share, 5),
        "forecast_ms": result.forecast_ms,
        "low_ms": result.low_ms,
        "high_ms": result.high_ms,
        "error": round(result.error, 5),
        "is_inside": result.is_inside,
        "unmapped": list(result.unmapped),
    }
