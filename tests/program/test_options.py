"""How a program is forecast: one value, checked where it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.program.options import (
    DEFAULT_STEPS,
    ProgramOptions,
    checked_calibration,
    stated_options,
)
from neusight.output.batch import SAMPLES_OPTION, TOKENS_OPTION
from neusight.predictors.errors import CalibrationError, OptionError, UnknownPredictorError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Measurement


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a calibration of the L4."""
    path = tmp_path_factory.mktemp("calibration") / "l4.json"
    measured = Measurement((Kernel.gemm(512, 512, 512),), 20.0)
    fit_calibration([measured], "L4").save(path)
    return str(path)


def test_what_is_stated_as_text_becomes_values() -> None:
    stated = {"steps": "7", "host": "older", "predictor": "roofline", "calibration": None}

    options = stated_options(stated, ProgramOptions(tokens=3))

    assert options == ProgramOptions(steps=7, host="older", predictor="roofline", tokens=3)
    assert options.steps_text == "7"


def test_all_steps_and_no_statement_are_two_things() -> None:
    assert stated_options({"steps": "all"}).steps_text == "all"
    assert stated_options({"steps": None}).steps == DEFAULT_STEPS


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"steps": "0"}, "--steps is '0'; it must be a number above 0, or all"),
        ({"steps": "few"}, "--steps is 'few'"),
        ({"torch": "1.13"}, "--torch is '1.13'; it must be a version like 2.4 or 2.6.0"),
        ({"torch": "newest"}, "--torch is 'newest'; it must be a version like 2.4 or 2.6.0"),
        ({"host": "fast"}, "unknown host 'fast'; known: plain, cloud, older, wsl, profiled"),
        ({"predictor": "oracle"}, "Unknown predictor 'oracle'"),
        ({"samples": "few"}, "samples is 'few'; it must be a number above 0"),
        ({"tokens": "1.5"}, "tokens is '1.5'"),
        ({"gpus_per_node": "-2"}, "gpus_per_node is '-2'"),
    ],
)
def test_what_means_nothing_is_reported(stated: dict[str, str], words: str) -> None:
    with pytest.raises((OptionError, UnknownPredictorError), match=words):
        stated_options(stated)


@pytest.mark.parametrize("option", ["samples", "tokens"])
def test_a_step_takes_in_something(option: str) -> None:
    nothing: dict[str, Any] = {option: 0}

    with pytest.raises(OptionError, match=f"--{option} is 0; it must be a number above 0"):
        ProgramOptions(**nothing)


def test_a_recording_keeps_what_is_said_of_the_program() -> None:
    assert ProgramOptions(tokens=4096, host="older").stated == {TOKENS_OPTION: "4096"}
    assert ProgramOptions(samples=8).stated == {SAMPLES_OPTION: "8"}


def test_a_calibration_is_for_its_own_gpu(calibration: str) -> None:
    options = ProgramOptions(calibration=calibration)

    fitted = options.calibration_for(find_gpu("L4"))

    assert fitted is not None
    assert fitted.gpu == "L4"
    assert options.calibration_for(find_gpu("T4")) is None
    assert ProgramOptions().calibration_for(find_gpu("L4")) is None


def test_a_calibration_of_none_of_the_gpus_is_refused(calibration: str) -> None:
    options = ProgramOptions(calibration=calibration)

    checked_calibration(options, [find_gpu("T4"), find_gpu("L4")])
    checked_calibration(ProgramOptions(), [find_gpu("T4")])
    with pytest.raises(CalibrationError, match=r"is of L4, which is not among .*: T4\."):
        checked_calibration(options, [find_gpu("T4")])


def test_a_calibration_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = ProgramOptions(calibration=str(tmp_path / "gone.json"))

    with pytest.raises(CalibrationError, match=r"gone\.json"):
        options.calibration_for(find_gpu("L4"))


def test_ranks_are_stated_as_text_too() -> None:
    found = stated_options({"world_size": "16", "ranks": "0,3", "gpus_per_node": None})

    assert (found.rank, found.ranks) == (Rank(0, 16, 8), (0, 3))
    assert stated_options(found.stated_ranks) == found
    assert stated_options({"world_size": "4", "ranks": "2"}).stated_ranks["ranks"] == "2"
    assert stated_options({"world_size": "4", "ranks": "all-distinct"}).ranks == ()
    assert stated_options({"world_size": "4", "ranks": "0..2"}).ranks == (0, 1, 2)
    assert ProgramOptions().stated_ranks == {}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"world_size": "eight"}, "world_size is 'eight'"),
        ({"world_size": "4", "ranks": "0,9"}, "no rank 9 of 4"),
        ({"world_size": "4", "ranks": "some"}, "--rank is 'some'"),
        ({"ranks": "all-distinct"}, "mean nothing without --world-size"),
    ],
)
def test_ranks_that_mean_nothing_are_reported(stated: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        stated_options(stated)


def test_ranks_need_a_rank_and_a_wait_needs_seconds() -> None:
    with pytest.raises(OptionError, match="say --world-size"):
        ProgramOptions(ranks=(0, 1))
    with pytest.raises(OptionError, match="--wait is 0"):
        ProgramOptions(wait_s=0.0)
