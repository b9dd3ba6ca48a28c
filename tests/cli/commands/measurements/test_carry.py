"""`neusight carry` on the command line: several targets, prices, and what cannot be carried."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import neusight
from neusight.integrations.cli.main import main
from neusight.output.trace.file import trace_events


@cache
def text_of_profile() -> str:
    """A profile on H100 of products in 8 bits, without memory, as the profiler would write it."""
    with neusight.forecast_on("H100", host="profiled") as forecast:
        left = torch.empty(1024, 1024, device="cuda", dtype=torch.float8_e4m3fn)
        scale = torch.ones((), device="cuda")
        for _ in range(3):
            product = torch._scaled_mm(
                left, left.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
            )
            product.relu_()
            torch.cuda.synchronize()
    found = trace_events(forecast.timeline, forecast.memory, forecast.gpu, profile_memory=False)
    return json.dumps({key: value for key, value in found.items() if key != "neusight"})


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "run.pt.trace.json"
    path.write_text(text_of_profile())
    return str(path)


def test_several_targets_are_laid_side_by_side_with_their_prices(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = tmp_path / "reported.json"

    code = main(["carry", profile, "--to", "H200,L40S", "--to", "H200", "--price",
                 "H200=4,L40S=1", "--json", str(reported),
                 "--trace", str(tmp_path / "runs")])  # fmt: skip

    shown = capsys.readouterr().out
    assert code == 0
    assert shown.count("H200-SXM-141GB ") == 1
    assert "1000 steps" in shown
    assert " fits" in shown.splitlines()[1]
    rows = json.loads(reported.read_text())["side_by_side"]
    assert [(row["gpu"], row["price_per_hour"]) for row in rows] == [
        ("H200-SXM-141GB", 4.0), ("L40S", 1.0),
    ]  # fmt: skip
    assert {row["memory_verdict"] for row in rows} == {"unknown"}
    assert [len(list(tmp_path.glob(f"runs/{row['gpu']}/*.pt.trace.json.gz"))) for row in rows] == [
        1, 1,
    ]  # fmt: skip


def test_memory_that_nobody_knows_is_not_said_to_fit(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["carry", profile, "--to", "H200"]) == 0

    shown = capsys.readouterr().out
    assert "H200-SXM-141GB: memory not known, " in shown
    assert "fits" not in shown


@pytest.mark.parametrize(
    ("words", "num_summaries", "num_rows"),
    [(["H200"], 1, 0), (["H200", "--price", "H200=4"], 1, 1), (["H200,H100"], 0, 2)],
)
def test_notes_are_shown_once_and_a_table_where_there_is_something_to_compare(
    words: list[str], num_summaries: int, num_rows: int, profile: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["carry", profile, "--to", *words]) == 0

    lines = capsys.readouterr().out.splitlines()
    notes = [line for line in lines if line.startswith("  note ")]
    assert len(notes) == len(set(notes)) > 0
    assert sum("where the time goes" in line for line in lines) == num_summaries
    assert sum(
        line.startswith(("H200-SXM", "H100-SXM5")) and ":" not in line for line in lines
    ) == (num_rows)


def test_a_target_that_cannot_run_a_kernel_is_left_out_and_named(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["carry", profile, "--to", "V100,H200"]) == 0

    shown = capsys.readouterr().out
    assert "H200-SXM-141GB" in shown
    assert "left out  V100-SXM2-32GB: The profile runs scaled_gemm in float8_e4m3fn" in shown


@pytest.mark.parametrize("targets", ["V100", "V100,A100"])
def test_where_no_target_can_run_it_that_is_an_error(
    profile: str, targets: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["carry", profile, "--to", targets]) == 2

    assert "V100-SXM2-32GB has no fp8 unit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "A100"], "was taken on NVIDIA H100"),
        (["--price", "B200=1"], "Ask for B200-SXM-180GB too"),
        (["--price", "H200=much"], "--price got 'H200=much'"),
    ],
)
def test_wrong_use_is_reported_in_a_line(
    profile: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["carry", profile, "--to", "H200", *arguments]) == 2

    assert message in capsys.readouterr().err
