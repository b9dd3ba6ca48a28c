"""`neusight evaluate --suite`: tables, files, and messages for wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neusight.integrations.cli.commands.measurements.evaluate import _suite_predictors
from neusight.integrations.cli.main import _parser, main
from neusight.predictors.registry import predictor_names
from suite_folders import paper_folder, published_folder

LABEL = "Tesla T4,tiny_gpt,inf,16,2,,3"


def test_a_suite_prints_tables_and_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    folder = paper_folder(tmp_path / "data", [LABEL])
    files = {name: tmp_path / f"cases.{name}" for name in ("json", "csv", "markdown")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]

    code = main(["evaluate", "--suite", "paper", "--data", str(folder), "--predictor", "tiled",
                 "--predictor", "roofline", *options])  # fmt: skip

    reported = capsys.readouterr()
    assert code == 0
    assert "1/1 tiny_gpt inf 2 x 16 fp32: 1 cases" in reported.err
    assert "by GPU  cases  tiled" in reported.out
    assert {row["predictor"] for row in json.loads(files["json"].read_text())["cases"]} == {
        "tiled",
        "roofline",
    }
    assert len(files["csv"].read_text().splitlines()) == 3
    assert files["markdown"].read_text().startswith("all eager cases of one GPU:")


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--suite", "other"], "There is no suite 'other'; known are paper, published."),
        (["--suite", "paper"], "e2e_labels.csv lacks the column step_ms"),
        (["--suite", "published"], "e2e_published_dev.csv cannot be read"),
        (["--suite", "paper", "--predictor", "oracle"], "Unknown predictor 'oracle'"),
        (["--csv", "FILE"], "--csv is for cases"),
        (["--clock", "burst"], "--clock is for cases (--suite NAME)"),
        (["--recordings", "DIR"], "--recordings is for cases"),
    ],
)
def test_wrong_use_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reported: str
) -> None:
    head = "gpu,model,mode,seq_len,batch,option,other"
    folder = paper_folder(tmp_path, [LABEL], head=head)

    assert main(["evaluate", "--data", str(folder), *words]) == 2
    assert reported in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], predictor_names()),
        (["--predictor", "linear", "--predictor", "tiled", "--predictor", "linear"],
         ["linear", "tiled"]),
        (["--clock", "burst"], ["tiled_burst"]),
        (["--clock", "sustained", "--predictor", "tiled"], ["tiled"]),
    ],
)  # fmt: skip
def test_a_suite_is_priced_by_all_or_by_those_stated_at_the_clock(
    words: list[str], names: list[str]
) -> None:
    options = _parser().parse_args(["evaluate", "--suite", "paper", *words])

    assert _suite_predictors(options) == names


def test_a_suite_without_a_case_that_runs_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "gptfast-a,x/y,A100-SXM-80G,1,llama,1,1,bf16,inf,no,,tokens/s,100,"
    folder = published_folder(tmp_path, [row])

    assert main(["evaluate", "--suite", "published", "--data", str(folder)]) == 2
    assert "left out, x/y: 1 row: decoding token by token" in capsys.readouterr().out
