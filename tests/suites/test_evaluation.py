"""A suite is evaluated from a folder to its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neusight.integrations.suites.evaluation import evaluate_suite
from neusight.predictors.errors import DataError, UnknownPredictorError
from suite_folders import paper_folder, published_folder

PREDICTORS = ("roofline", "tiled")
LABELS = ("Tesla T4,tiny_gpt,inf,16,2,,3", "Tesla P4,tiny_bert,train,16,2,,5")


def test_the_paper_is_run_whole_with_its_kernels(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("pandas", reason="reading tables needs the extra [data]")
    folder = paper_folder(tmp_path, LABELS)
    rows = [f"Tesla T4,add,{4096 * n},,,,1024,{100 * n}" for n in range(1, 200)]
    (folder / "kernels.csv").write_text("\n".join(("gpu,op,B,M,N,K,H,latency_us", *rows)) + "\n")
    reported: list[str] = []

    report = evaluate_suite("paper", folder, PREDICTORS, progress=reported.append)

    marked = {result.case.gpu.name: result.case.is_held_out for result in report.results}
    assert marked == {"T4": False, "P4": True}
    assert [table.title for table in report.tables] == [
        "all eager cases of one GPU",
        "by mode",
        "by GPU",
        "by model",
        "by batch",
        "single kernels",
    ]
    assert [row.name for row in report.tables[-1].rows] == ["element-wise, Tesla T4"]
    assert reported[-2:] == [
        "1/2 tiny_gpt inf 2 x 16 fp32: 1 cases",
        "2/2 tiny_bert train 2 x 16 fp32: 1 cases",
    ]
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert [row["predictor"] for row in document["cases"]] == [*PREDICTORS, *PREDICTORS]


def test_cases_can_be_chosen_by_their_names(tmp_path: Path) -> None:
    pytest.importorskip("transformers")

    report = evaluate_suite("paper", paper_folder(tmp_path, LABELS), ("tiled",), only="tiny_gpt")

    assert [result.case.name for result in report.results] == ["Tesla T4 tiny_gpt inf 16 2"]


def test_published_rows_without_a_program_are_reported(tmp_path: Path) -> None:
    row = "gptfast-a,x/y,A100-SXM-80G,1,llama,1,1,bf16,inf,no,,tokens/s,100,"

    report = evaluate_suite("published", published_folder(tmp_path, [row]), ("tiled",))

    assert (report.results, report.tables) == ((), ())
    assert [item.name for item in report.left_out] == ["gptfast-a"]


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        evaluate_suite("paper", tmp_path / "nowhere", PREDICTORS)
    with pytest.raises(DataError, match=r"model_configs.json cannot be read"):
        evaluate_suite("paper", tmp_path, PREDICTORS)
    with pytest.raises(UnknownPredictorError):
        evaluate_suite("paper", paper_folder(tmp_path, LABELS), ["oracle"])
    with pytest.raises(DataError, match="has 'nothing' in its name"):
        evaluate_suite("paper", tmp_path, PREDICTORS, only="nothing")
