"""What a check runs, and who says how: the command line, the case, the project, the baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neusight.integrations.check.baseline import Case
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.plan import CheckRequest, Plan, plans_of
from neusight.integrations.check.settings import CaseSettings, Settings
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.predictors.errors import CalibrationError, OptionError
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Measurement

KNOWN = Case(
    gpu="L4", program=("train.py", "--wide"), settings={}, bound="host", tool={}, work="", files="",
    metrics={metric.name: 0.0 for metric in METRICS}, peak="", ops=(), memory=(), waits=(),
)  # fmt: skip
ON_L4 = CheckRequest(gpu_names=("L4",))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a script, and with the calibration of an L4."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    measured = Measurement((Kernel.gemm(512, 512, 512),), 20.0)
    fit_calibration([measured], "L4").save("l4.json")
    return tmp_path


def plan_of(request: CheckRequest, settings: Settings, **baseline: Case) -> Plan:
    [plan] = plans_of(request, settings, baseline)
    return plan


def test_the_command_line_says_more_than_the_case_and_that_more_than_the_project() -> None:
    case = CaseSettings(("train.py",), {"steps": "3", "host": "older"})
    stated = {"steps": "2", "host": "profiled", "predictor": "roofline"}
    settings = Settings(cases={"small": case}, stated=stated)
    request = replace(
        ON_L4, stated={"steps": "4", "host": None}, options=ProgramOptions(quiet=True)
    )

    plan = plan_of(request, settings)

    assert plan.options == ProgramOptions(steps=4, host="older", predictor="roofline", quiet=True)
    assert (plan.program, plan.names) == (Program("train.py", ()), ("small on L4",))


def test_what_the_baseline_says_is_asked_for_by_the_names_that_options_have() -> None:
    made_with = {
        "steps": "3",
        "host": "profiled-older, calibrated",
        "predictor": "tiled, calibrated",
        "calibration": "l4.json",
    }

    plan = plan_of(CheckRequest(), Settings(), wide=replace(KNOWN, settings=made_with))

    assert plan.options == ProgramOptions(
        steps=3, host="profiled", predictor="tiled", calibration="l4.json"
    )
    assert plan.program == Program("train.py", ("--wide",))


def test_a_case_may_have_a_calibration_of_its_own() -> None:
    cases = {"a": CaseSettings(("train.py",), {"calibration": "l4.json"}),
             "b": CaseSettings(("train.py",))}  # fmt: skip

    first, second = plans_of(ON_L4, Settings(cases=cases), {})

    assert (first.options.calibration, second.options.calibration) == ("l4.json", None)


def test_a_calibration_of_none_of_the_gpus_is_refused() -> None:
    request = CheckRequest(Program("train.py", ()), ("T4",), stated={"calibration": "l4.json"})

    with pytest.raises(CalibrationError, match="is of L4, which is not among the GPUs asked for"):
        plans_of(request, Settings(), {})


def test_the_projects_calibration_may_be_of_a_gpu_that_is_left_out_today() -> None:
    settings = Settings(gpus=("L4", "T4"), stated={"calibration": "l4.json"})
    on_t4 = CheckRequest(Program("train.py", ()), ("T4",))

    assert plan_of(on_t4, settings).options.calibration == "l4.json"
    with pytest.raises(CalibrationError, match="is of L4"):
        plans_of(CheckRequest(Program("train.py", ())), replace(settings, gpus=("T4",)), {})


def test_of_several_programs_each_keeps_its_files_apart() -> None:
    cases = {"a": CaseSettings(("train.py",)), "b / c": CaseSettings(("train.py",))}
    request = replace(ON_L4, options=ProgramOptions(keep_writes="kept"))

    plans = plans_of(request, Settings(cases=cases), {})

    assert [plan.options.keep_writes for plan in plans] == ["kept/a-on-L4", "kept/b-c-on-L4"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ON_L4, "There is nothing to check"),
        (replace(ON_L4, case="huge"), "There is no case 'huge'"),
        (CheckRequest(Program("train.py", ())), "Say which GPU"),
        (replace(ON_L4, program=Program("gone.py", ())), "there is no script 'gone.py'"),
    ],
)
def test_what_cannot_be_checked_is_reported(request_: CheckRequest, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plans_of(request_, Settings(), {})
