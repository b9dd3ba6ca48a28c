"""The tables and files of a suite."""

from __future__ import annotations

import csv
import io

from neusight.integrations.suites.case import LeftOut
from neusight.integrations.suites.rendering import (
    csv_text,
    left_out_lines,
    markdown,
    result_row,
    text_table,
)
from neusight.integrations.suites.scores import published_tables
from suite_folders import priced_case

NAMES = ["roofline", "tiled"]
RESULTS = [
    priced_case("a", 0.1),
    priced_case("a", -0.05, predictor="roofline", trained_share=0.0),
    priced_case("b", 0.2, gpu="P4"),
]
[TABLE] = published_tables(RESULTS, NAMES)

TEXT = """\
a source                      cases  roofline  tiled    bias  in 80%  nearer than the default
P4 fp32 inference, eager          1         -  20.0%  +20.0%      0%  none
T4 fp32 inference, eager          1      5.0%  10.0%  +10.0%    100%  roofline"""

MARKDOWN = """\
a source:

|  | cases | roofline | tiled | bias | in 80 % | nearer |
| --- | ---: | ---: | ---: | ---: | ---: | --- |
| P4 fp32 inference, eager | 1 | - | 20.0 | +20.0 | 0 | none |
| T4 fp32 inference, eager | 1 | 5.0 | 10.0 | +10.0 | 100 | roofline |
"""


def test_a_table_is_text_and_markdown() -> None:
    assert [line.split() for line in text_table(TABLE, NAMES).splitlines()] == [
        line.split() for line in TEXT.splitlines()
    ]
    assert markdown(TABLE, NAMES) == MARKDOWN


def test_rows_with_the_same_reason_are_counted() -> None:
    left_out = [
        LeftOut("a", "one", "no program"),
        LeftOut("b", "one", "no program"),
        LeftOut("c", "two", "no program"),
    ]

    assert left_out_lines(left_out) == [
        "left out, one: 2 rows: no program",
        "left out, two: 1 row: no program",
    ]


def test_the_file_has_a_row_a_case_and_predictor_and_no_measured_value() -> None:
    text = csv_text("published", RESULTS[:2], [LeftOut("c", "two", "no program")])

    first, second, last = csv.DictReader(io.StringIO(text))
    assert (first["case"], first["predictor"], first["error"]) == ("a", "tiled", "0.1")
    assert (first["status"], second["status"]) == ("trained", "untrained")
    assert (first["assumed"], last["case"], last["left_out"]) == ("guessed", "c", "no program")
    assert "100" not in text


def test_json_has_all_that_is_known_of_a_case() -> None:
    row = result_row(RESULTS[1])

    assert (row["measured_ms"], row["value"], row["metric"]) == (100.0, 100.0, "ms a step")
    assert (row["predictor"], row["is_default"], row["status"]) == ("roofline", False, "untrained")
    assert (row["error"], row["is_inside"]) == (-0.05, True)
