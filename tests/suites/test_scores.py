"""Errors are grouped as the paper groups them, and sources are never pooled."""

from __future__ import annotations

import pytest

from neusight.integrations.suites.case import CaseProgram
from neusight.integrations.suites.scores import kernel_table, paper_tables, published_tables
from neusight.predictors.training.evaluate import Score
from suite_folders import priced_case

TRAINING = CaseProgram("language", "tiny_gpt", "train", 8, 16)
COMPILED = CaseProgram("language", "tiny_gpt", "inf", 2, 16, compiled="default")
SPLIT = CaseProgram("split", "tiny_gpt", "train", 4, 16, split="dp", num_ranks=4)


def test_the_paper_has_a_table_for_each_way_to_group() -> None:
    results = [
        priced_case("a", 0.1),
        priced_case("b", -0.3, gpu="MI100", program=TRAINING),
        priced_case("c", 0.2, program=COMPILED),
        priced_case("d", 0.2, program=SPLIT),
    ]

    tables = {table.title: table.rows for table in paper_tables(results, ["tiled"])}

    assert {title: [row.name for row in rows] for title, rows in tables.items()} == {
        "all eager cases of one GPU": [
            "AMD, measured for training",
            "NVIDIA, measured for training",
        ],
        "by mode": ["inference, NVIDIA", "training, AMD"],
        "by GPU": ["MI100", "T4"],
        "by model": ["tiny_gpt, inference", "tiny_gpt, training"],
        "by batch": ["batch  2", "batch  8"],
        "fusion (torch.compile)": ["tiny_gpt 2"],
        "several GPUs": ["tiny_gpt dp4"],
    }


def test_held_out_gpus_are_marked_and_apart() -> None:
    results = [priced_case("a", 0.1), priced_case("b", 0.2, gpu="P4", held_out=True)]

    tables = {table.title: table.rows for table in paper_tables(results, ["tiled"])}

    assert [row.name for row in tables["by GPU"]] == ["P4 *", "T4"]
    assert [row.name for row in tables["all eager cases of one GPU"]] == [
        "NVIDIA, measured for training",
        "NVIDIA, not measured for training",
    ]


def test_a_row_says_which_predictors_come_nearer_than_the_default() -> None:
    results = [
        priced_case("a", 0.1),
        priced_case("b", -0.3),
        priced_case("a", -0.15, predictor="roofline"),
        priced_case("b", 0.15, predictor="roofline"),
        priced_case("a", 0.9, predictor="linear"),
    ]

    [row] = published_tables(results, ["linear", "roofline", "tiled"])[0].rows

    assert row.errors == pytest.approx({"linear": 0.9, "roofline": 0.15, "tiled": 0.2})
    assert (row.num_cases, row.better) == (2, ("roofline",))
    assert row.bias == pytest.approx(-0.1)
    assert row.inside == 0.5  # 100 ms of [99, 121] and of [63, 77]


def test_without_the_default_nobody_is_nearer() -> None:
    [table] = published_tables([priced_case("a", 0.1, predictor="linear")], ["linear"])

    assert table.rows[0].better == ()
    assert (table.rows[0].bias, table.rows[0].inside) == (None, None)


def test_sources_are_never_pooled() -> None:
    results = [priced_case("a", 0.1, source="one"), priced_case("b", 0.2, source="two")]

    assert [table.title for table in published_tables(results, ["tiled"])] == ["one", "two"]


def test_kernels_come_by_class_and_gpu_weighted_by_their_rows() -> None:
    def score(operation: str, num_rows: int, mape: float, size_class: str) -> Score:
        return Score("T4", "kernels", "fp32", operation, size_class, num_rows, mape, mape, mape,
                     0.5, 0.8, "tiled")  # fmt: skip

    table = kernel_table(
        [
            score("add", 30, 0.1, "above_floor"),
            score("mul", 10, 0.3, "above_floor"),
            score("mul", 99, 0.9, "all"),
            score("bmm", 5, 0.2, "above_floor"),
        ],
        ["tiled"],
    )

    assert [(row.name, row.num_cases) for row in table.rows] == [
        ("BMM, T4", 5),
        ("element-wise, T4", 40),
    ]
    assert table.rows[1].errors == pytest.approx({"tiled": 0.15})
