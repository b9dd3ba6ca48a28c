"""A program that failed gets no verdict but the one that its failure is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.failure import failure_options, failure_text
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report
from neusight.predictors.errors import ForecastStateError
from neusight.recording.tape import EnoughSteps, RunawayLoop
from warm_python import run_python

#: Trains for a while, and then does what the argument says.
SCRIPT = """
import sys, torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(9):
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    if number == 3:
        exec(sys.argv[1])
"""
TOO_LARGE = 'torch.empty(200 * 2**30, device="cuda")'


def trained_until(error: BaseException | None, *, is_too_large: bool = False) -> Forecast:
    with (
        pytest.raises(BaseException) if error or is_too_large else pytest.MonkeyPatch.context(),
        neusight.forecast_on("H100", on_out_of_memory="raise") as forecast,
    ):
        net = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            net(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
        if is_too_large:
            torch.empty(200 * 2**30, device="cuda")
        if error:
            raise error
    return forecast


def test_what_ends_a_program_on_purpose_is_no_failure() -> None:
    for error in (None, SystemExit(), SystemExit(0), EnoughSteps(), KeyboardInterrupt()):
        assert failure_options(error) == {}


def test_a_failure_is_reported_in_text() -> None:
    assert failure_text(ValueError("no such layer")) == "ValueError: no such layer"
    assert failure_text(SystemExit(3)) == "it exited with status 3"
    assert failure_text(SystemExit("no data")) == "it exited with status 1: no data"
    assert failure_text(RunawayLoop("stopped after 5 ops")) == "stopped after 5 ops"


def test_a_program_that_failed_gets_no_step_and_no_verdict() -> None:
    forecast = trained_until(ValueError("no such layer"))

    lines = forecast.summary().splitlines()
    assert lines[0] == "H100-SXM5-80GB: the script failed"
    assert lines[1].split(maxsplit=1) == ["failure", "ValueError: no such layer"]
    assert "until then: 4 training, 1 setup" in lines[2]
    assert "per training step" not in forecast.summary()
    document = forecast.to_json()
    assert document["fits"] is None
    assert document["failure"] == forecast.failure == "ValueError: no such layer"
    assert "no such layer" in repr(forecast)


def test_one_that_ended_well_has_no_failure() -> None:
    forecast = trained_until(None)

    assert forecast.failure == ""
    assert forecast.to_json()["failure"] is None
    assert forecast.to_json()["fits"] is True


def test_what_ran_out_of_memory_does_not_fit() -> None:
    forecast = trained_until(None, is_too_large=True)

    assert not forecast.fits
    assert forecast.summary().startswith(
        "H100-SXM5-80GB: does not fit: the script ran out of memory\n  failure   OutOfMemoryError: "
    )
    assert forecast.to_json()["fits"] is False
    with pytest.raises(ForecastStateError, match="ran out of the memory of H100-SXM5-80GB"):
        forecast.on("B200")


def test_an_error_raised_because_memory_ran_out_is_one_of_memory() -> None:
    memory = torch.OutOfMemoryError("CUDA out of memory")
    error = RuntimeError("no batch fits")
    assert "out_of_memory" not in failure_options(error)

    error.__cause__ = memory

    assert failure_options(error)["out_of_memory"] == "yes"


def test_memory_that_ran_out_and_was_survived_is_no_failure() -> None:
    with neusight.forecast_on("H100", on_out_of_memory="raise") as forecast:
        for num_bytes in (2**40, 2**20):
            try:
                torch.ones(num_bytes, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                continue

    assert forecast.fits
    assert forecast.failure == ""
    assert forecast.peak_memory_bytes == 2**20


def test_a_failure_is_saved_with_the_recording(tmp_path: Path) -> None:
    trained_until(None, is_too_large=True).save(tmp_path / "failed.json")

    again = Forecast.load(tmp_path / "failed.json")

    assert not again.fits
    assert again.failure.startswith("OutOfMemoryError: ")


def test_the_report_of_a_failure_gives_no_verdict() -> None:
    page = html_report([trained_until(ValueError("<b>no such layer</b>"))])

    assert "the script failed</span>: ValueError: &lt;b&gt;no such layer" in page
    assert "per training step" not in page
    assert '<div class="card">' not in page


@pytest.mark.parametrize(
    ("statement", "first", "fits"),
    [
        (TOO_LARGE, "does not fit: the script ran out of memory", False),
        ("raise ValueError('no such layer')", "the script failed", None),
    ],
)
def test_the_command_line_and_its_json_agree(
    statement: str, first: str, fits: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--out-of-memory", "raise",
        "--max-memory", "--json", "out.json", "train.py", statement, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 3
    assert f"H100-SXM5-80GB: {first}\n" in done.stdout
    for words in ("per training step", "what to change", "in CI", "fits into"):
        assert words not in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["fits"] is fits
    assert document["failure"]
    assert (document["advice"], document["side_by_side"]) == ([], [])
