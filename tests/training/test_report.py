"""The page and the table of scores, from lines made by hand."""

from __future__ import annotations

import csv
import io

import pytest

from neusight.predictors.training.evaluate import Score
from neusight.predictors.training.report import Line, csv_text, kind_of, markdown


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


def test_the_page_shows_the_median_over_gpus_and_the_worst() -> None:
    page = markdown(LINES, date="2026-01-31", data="abc", commit_id="def")

    [row] = [text for text in page.splitlines() if text.startswith("| products, 16 bit")]
    assert "| 5.0 (6 l40s) |" in row
    assert "| 17.0 (17 l40s) |" in row
    assert row.endswith("| 80 / 80 |")
    assert "norms and quantisation, 16 bit" in page


def test_the_page_says_when_and_from_what_it_was_made() -> None:
    page = markdown(LINES, date="2026-01-31", data="abc", commit_id="def", included=["## More\n"])

    assert "2026-01-31, commit def, data abc" in page
    assert "## More" in page


def test_the_page_says_how_far_measurements_lie_apart() -> None:
    noise = [("gemm", "h100", "bf16", 10, 0.05), ("gemm", "l40s", "bf16", 10, 0.09)]

    assert "gemm 7%" in markdown(LINES, date="", data="", commit_id="", noise=noise)


def test_every_line_is_a_row_of_the_table() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(LINES))))

    assert len(rows) == len(LINES)
    assert (rows[1]["gpu"], float(rows[1]["tiled"]), rows[1]["tiled_>1ms"]) == ("h100", 0.03, "")


@pytest.mark.parametrize(
    ("table", "op", "kind"),
    [
        ("attention", "prefill_causal", "attention, prefill"),
        ("attention", "decode", "attention, decode"),
        ("kernels", "linear", "products, FP32"),
        ("kernels", "softmax", "vectors, softmax, norms, FP32"),
        ("conv_kernels", "conv", "convolutions, FP32"),
        ("collectives", "all_reduce", "collectives"),
    ],
)
def test_rows_are_grouped_by_what_they_are(table: str, op: str, kind: str) -> None:
    assert kind_of(line("", "h100", 0.1, table=table, op=op).scores["all"]) == kind
