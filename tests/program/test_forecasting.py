"""A program on several GPUs: recorded once where that will do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neusight.integrations.program import forecasting
from neusight.integrations.program.forecasting import forecast_program
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.recording import recorded
from neusight.integrations.program.runner import Outcome
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import GPU, find_gpu

H100, A100, L40S = find_gpu("H100"), find_gpu("A100"), find_gpu("L40S")
OPTIONS = ProgramOptions(quiet=True, host="older", predictor="roofline")
TRAIN = 'import torch\ntorch.ones(4096, device="cuda").sum()\n'
ASKS = """
import torch
major, _ = torch.cuda.get_device_capability()
if major == 7:
    raise RuntimeError("too old")
torch.ones(1024 * major, device="cuda").sum()
"""


def program(folder: Path, text: str) -> Program:
    path = folder / "train.py"
    path.write_text(text)
    return Program(str(path), ())


def test_the_options_make_the_forecast_here_and_elsewhere(tmp_path: Path) -> None:
    first = forecast_program(program(tmp_path, TRAIN), H100, OPTIONS)

    there = first.on(L40S)

    for found, target in ((first, H100), (there, L40S)):
        assert found.forecast.gpu == target
        assert found.forecast.host.name == "older"
        assert found.forecast.predictor_name == "roofline"
    assert there.forecast.recording is first.forecast.recording
    assert there.files == first.files != ""


def test_where_it_would_take_another_path_it_is_recorded_there_unless_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[GPU, ProgramOptions, str]] = []

    def recorded_here(program: Program, gpu: GPU, options: ProgramOptions, *, doing: str) -> object:
        asked.append((gpu, options, doing))
        return recorded(program, gpu, options)

    monkeypatch.setattr(forecasting, "recorded_apart", recorded_here)
    loud = replace(OPTIONS, quiet=False, keep_writes="kept")
    first = replace(forecast_program(program(tmp_path, ASKS), H100, OPTIONS), options=loud)

    there = first.on(A100)
    with pytest.raises(ForecastStateError, match=r"could not be recorded on V100.*too old"):
        first.on(find_gpu("V100"))
    with pytest.raises(ForecastStateError, match="capability"):
        replace(first, outcome=Outcome("interrupted", exit_code=130)).on(A100)

    assert there.forecast.gpu == A100
    assert there.options == loud
    assert [(gpu.name, doing) for gpu, _, doing in asked] == [
        ("A100-SXM4-80GB", "running it again for A100-SXM4-80GB"),
        ("V100-SXM2-32GB", "running it again for V100-SXM2-32GB"),
    ]
    assert asked[0][1] == replace(OPTIONS, quiet=True)


@pytest.mark.slow
def test_a_program_that_takes_another_path_runs_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asks = program(tmp_path, f"{ASKS}print('ran')\n")
    first = forecast_program(asks, H100, OPTIONS)

    there = first.on(A100)

    assert capfd.readouterr().out == "ran\n"  # the second time out of view
    sizes = [found.forecast.kernels[0][0].size for found in (first, there)]
    assert sizes[0] != sizes[1]
    assert there.forecast.host.name == "older"
    with pytest.raises(ForecastStateError, match=r"could not be recorded on V100.*too old"):
        first.on(find_gpu("V100"))
