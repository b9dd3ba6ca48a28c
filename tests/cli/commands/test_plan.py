"""`neusight plan`: a command line becomes candidates, and they are shown best first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.commands import plan
from neusight.integrations.cli.commands.plan import _planned
from neusight.integrations.cli.main import _parser, main
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanPoint, PlanRequest
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError
from warm_python import run_python

JSON_TOOL = Program("json.tool", (), is_module=True)
TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--fast", action="store_true")
batch = parser.parse_args().batch
model = nn.Conv2d(3, 64, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(batch, 3, 512, 512, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def planned(*words: str, program: Program = JSON_TOOL) -> tuple[tuple[Candidate, ...], PlanRequest]:
    options = _parser().parse_args(["plan", *words])
    options.is_command_line = False
    return _planned(options, program)


def test_every_option_of_the_command_line_becomes_a_value() -> None:
    candidates, request = planned(
        "--gpu", "H100,B200", "--gpu", "L40S", "--world-size", "8,16", "--gpus-per-node", "4",
        "--sweep=--tp=1,2", "--sweep", "fast", "--price", "H100=2.5", "--by", "cost",
        "--jobs", "3", "--steps", "2", "--tokens", "7", "--network-gbps", "50x4",
    )  # fmt: skip

    assert len(candidates) == 8
    assert candidates[-1].rank == Rank(0, 16, 4)
    assert candidates[-1].program.arguments == ("--tp", "2", "--fast")
    assert [gpu.name for gpu in request.gpus] == ["H100-SXM5-80GB", "B200-SXM-180GB", "L40S"]
    assert request.options.network_gbps == "50x4"
    assert (request.options.steps, request.options.tokens) == (2, 7)


def test_a_launcher_says_the_ranks() -> None:
    program = Program("torchrun", ("--nproc-per-node", "4", "-m", "json.tool"))

    [candidate], _ = planned("--gpu", "H100", program=program)

    assert (candidate.program, candidate.rank) == (JSON_TOOL, Rank(0, 4))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--world-size", "8,many"], "--world-size is '8,many'"),
        (["--jobs", "-1"], "--jobs is -1"),
        (["--price", "T4=1"], "--price names T4, which is not among the GPUs asked for"),
        (["--sweep", "batch="], "--sweep got 'batch='"),
        (["--world-size", "12"], "12 ranks do not fill nodes of 8 GPUs"),
    ],
)
def test_what_cannot_be_planned_is_reported(words: list[str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        planned("--gpu", "H100", *words)


def test_progress_shows_the_time_that_is_left() -> None:
    [candidate], _ = planned("--gpu", "H100")
    point = PlanPoint(candidate, problem="failed")

    first = plan.progress_line(1, 3, [point], elapsed_s=70.0)
    last = plan.progress_line(3, 3, [point], elapsed_s=200.0)

    assert first == f"neusight: [1/3] {point.title}: failed; about 2 min 20 s left"
    assert last == f"neusight: [3/3] {point.title}: failed"


def test_the_time_that_is_left_goes_by_that_since_the_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = _parser().parse_args(["plan", "--gpu", "H100", "--sweep", "lr=1,2", "--jobs", "3"])
    options.is_command_line = False
    [first, second], _ = planned("--gpu", "H100", "--sweep", "lr=1,2")
    asked: dict[str, Any] = {}

    def evaluated(*_: object, **given: Any) -> Iterator[tuple[int, list[PlanPoint]]]:
        asked.update(given)
        yield 1, [PlanPoint(second, problem="failed: no")]
        yield 0, [PlanPoint(first, problem="failed: yes")]

    monkeypatch.setattr(plan, "evaluated_in_turn", evaluated)
    times = iter((1000.0, 1070.0, 1100.0))
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: next(times)))

    assert plan.run(options, JSON_TOOL) == 3

    assert (asked["at_once"], asked["ray"]) == (3, None)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "neusight: [1/2] lr 2: failed: no; about 1 min 10 s left",
        "neusight: [2/2] lr 1: failed: yes",
    ]
    assert shown.out.startswith("none of these fits\n")


def test_a_script_is_planned_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    done = run_python(
        "-m", "neusight", "plan", "--gpu", "H100,T4", "--price", "H100=3,T4=0.3",
        "--sweep", "batch=1,8,few", "--json", "o.json", "train.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "o.json").read_text())
    order = [(item["settings"]["batch"], item["gpu"]) for item in document["points"]]
    assert order[0] == ("8", "H100-SXM5-80GB")
    assert len(order) == 4
    rates = [item["samples_per_second"] for item in document["points"]]
    assert rates == sorted(rates, reverse=True)
    [failed] = document["excluded"]
    assert "argument --batch: invalid int value: 'few'" in failed["problem"]
    assert "[3/3] " in done.stderr
    assert done.stdout.splitlines()[0].split()[:3] == ["rank", "batch", "GPU"]
    assert "fastest: batch 8 on H100-SXM5-80GB; cheapest: " in done.stdout
    assert f"  batch few: {failed['problem']}" in done.stdout


COMPILED = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 128), nn.Linear(128, 1000)).cuda()
run = torch.compile(model) if parser.parse_args().compile else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(0, 1000, (8, 128), device="cuda")
for _ in range(4):
    loss = nn.functional.cross_entropy(run(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_small_model_is_not_ranked_first_because_it_is_compiled(tmp_path: Path) -> None:
    script, written = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text(COMPILED, encoding="utf-8")

    code = main(
        ["plan", "--gpu", "H100", "--sweep", "compile", "--jobs", "1", "--quiet",
         "--json", str(written), str(script)]
    )  # fmt: skip

    document = json.loads(written.read_text(encoding="utf-8"))
    times = [point["latency_us"] for point in document["points"]]
    tokens = [
        point["tokens_per_second"] * time / 1e6
        for point, time in zip(document["points"], times, strict=True)
    ]
    assert code == 0
    assert document["unit"] == "tokens"
    assert times == sorted(times)
    assert times[1] > times[0]
    assert tokens == pytest.approx([8 * 128] * 2)


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    def interrupted(request: object, candidates: Any, **others: object) -> Any:
        yield 1, [PlanPoint(candidates[1], problem="failed: in some way")]
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "evaluated_in_turn", interrupted)

    code = main(["plan", "--gpu", "H100", "--sweep", "batch=1,2", str(tmp_path / "train.py")])

    assert code == 130
    shown = capsys.readouterr().out
    assert "batch 2: failed: in some way" in shown
    assert "not done when it was interrupted\n  batch 1" in shown


def test_a_plan_of_which_every_candidate_fails_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no luck')")

    code = main(["plan", "--gpu", "H100", "--quiet", str(tmp_path / "train.py")])

    assert code == 3
    assert "as it is: failed: ValueError: no luck (train.py:1)" in capsys.readouterr().out
