"""The table of scores, from lines made by hand."""

from __future__ import annotations

import csv
import io

from neusight.predictors.training.evaluate import Score
from neusight.predictors.training.report import Line, csv_text


def line(split: str, gpu: str, mape: float, *, table: str = "gemm", op: str = "gemm") -> Line:
    score = Score(
        gpu=gpu,
        table=table,
        dtype="bf16",
        phase_or_op=op,
        size_class="all",
        num_rows=100,
        mape=mape,
        median_ape=mape,
        p90_ape=mape,
        sum_error=-0.01,
        within_interval=0.8,
        predictor="tiled",
        clock_regime="burst",
        label_overhead_us=None,
    )
    return Line(split, roofline=0.5, scaled_roofline=0.4, physics=0.1, scores={"all": score})


LINES = [
    line("held-out shapes", "a100", 0.05),
    line("held-out shapes", "h100", 0.03),
    line("held-out shapes", "l40s", 0.06),
    line("GPU left out, prior constants", "l40s", 0.17),
    line("physics alone", "h100", 0.3, table="memory_bound", op="rope"),
]


def test_every_line_is_a_row_of_the_table() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(LINES))))

    assert len(rows) == len(LINES)
    assert (rows[1]["gpu"], float(rows[1]["tiled"]), rows[1]["tiled_>1ms"]) == ("h100", 0.03, "")
