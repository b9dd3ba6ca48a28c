"""A program as it is beside the same with its models compiled: in lines, in JSON, as advice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compiled_net import train

import neusight
from neusight.advice.advice import Advice
from neusight.integrations.cli.commands import run
from neusight.integrations.cli.main import _parser, main
from neusight.integrations.cli.trial import (
    Trial,
    trial_json,
    trial_lines,
    tried_compiling,
    with_trial,
)
from neusight.integrations.program.forecasting import ProgramForecast
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import Outcome
from neusight.recording.recording import TRIAL_OPTION


@pytest.fixture(scope="module")
def eager() -> neusight.Forecast:
    return train(lambda net: net)


@pytest.fixture(scope="module")
def trial(eager: neusight.Forecast) -> Trial:
    """As if torch's own functions had been compiled: the backend changes nothing, all else does."""
    compiled = train(lambda net: torch.compile(net, backend="eager"))
    options = {**compiled.recording.options, TRIAL_OPTION: "Net"}
    recording = replace(compiled.recording, options=options, warnings=("a graph is eager",))
    return Trial(eager, compiled.of(recording))


def test_eager_and_compiled_stand_beside_each_other(trial: Trial) -> None:
    first, header, as_is, there, *rest = trial_lines(trial)

    assert first.startswith(f"  what torch.compile gives: {-trial.gain:+.1%} of the step's time.")
    assert (
        "Compiled by torch.compile(model): Net; all else, the optimizer too, ran as it is" in first
    )
    assert header.split() == ["a", "step", "80", "%", "range", "GPU", "busy", "memory", "kernels"]
    assert [as_is.split()[0], there.split()[0]] == ["eager", "compiled"]
    assert rest[0].startswith("  compiled  1 graph")
    assert rest[-1] == "  note      compiled: a graph is eager"


def test_the_json_has_the_compiled_figures(trial: Trial) -> None:
    document = json.loads(json.dumps(trial_json(trial)))

    assert (document["models"], document["problem"]) == ("Net", None)
    assert document["gain"] == pytest.approx(trial.gain, abs=1e-6)
    assert document["forecast"]["compiled"]["num_graphs"] == 1


ESTIMATE = Advice("compile", "an estimate", 1.0, 0.9, "all becomes one graph")


def test_a_trial_that_came_to_nothing_says_why(eager: neusight.Forecast) -> None:
    trial = Trial(eager, problem="it did not run: no")

    assert trial_lines(trial) == ["  --try compile: it did not run: no"]
    assert trial_json(trial)["problem"] == "it did not run: no"
    assert (trial.gain, trial.models) == (0.0, "")
    assert with_trial([ESTIMATE], trial, smallest_gain=0.0) == [ESTIMATE]


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_several_trials_are_named_by_their_gpus(
    num_gpus: int, eager: neusight.Forecast,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    trials = [Trial(eager, problem="no")] * num_gpus
    monkeypatch.setattr(run, "tried_compiling", lambda *_: trials)
    options = _parser().parse_args(["run", "--gpu", "H100", "--try", "compile", "--quiet"])
    options.is_command_line = True
    program = Program("json.tool", (), is_module=True)
    first = ProgramForecast(program, ProgramOptions(), eager, Outcome(), files="")

    assert run._report(run._requested(options, program), [eager] * num_gpus, first, []) == []

    named = ["", "H100-SXM5-80GB"] * (num_gpus > 1) + ["--try compile: no"]
    assert capsys.readouterr().out.splitlines()[num_gpus:] == named * num_gpus


def test_advice_is_what_the_trial_says_and_no_estimate(trial: Trial) -> None:
    other = Advice("tf32", "TF32", 5.0, 0.5, "ten bits")

    computed, last = with_trial([ESTIMATE, other], trial, smallest_gain=-10.0)[::-1]
    too_little = with_trial([ESTIMATE, other], trial, smallest_gain=0.99)

    assert too_little == [other]
    assert {computed.kind, last.kind} == {"compile", "tf32"}
    assert any("computed by compiling" in item.what for item in (computed, last))


def test_a_program_that_compiles_by_itself_is_not_run_again(trial: Trial) -> None:
    assert trial.compiled is not None
    program = Program("train.py", ())
    first = ProgramForecast(program, ProgramOptions(), trial.compiled, Outcome(), files="")

    [found] = tried_compiling(first, [trial.compiled])

    assert found.problem == "the program compiles its models itself, as shown above"


SCRIPT = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
with torch.no_grad():
    for _ in range(8):
        net(torch.randn(32, 64, device="cuda"))
"""


@pytest.mark.slow
def test_the_command_runs_the_program_again_and_shows_both(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "infer.py").write_text(SCRIPT)
    command = ["run", "--gpu", "H100", "--try", "compile", "--allow-writes", "--json", "out.json"]

    code = main([*command, "infer.py"])

    assert code == 0
    assert "Compiled by torch.compile(model): Sequential" in capfd.readouterr().out
    [tried] = json.loads((tmp_path / "out.json").read_text())["tried"]["compile"]
    assert tried["forecast"]["compiled"]["fused_kernels"]["count"] == 1
