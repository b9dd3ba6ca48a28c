"""A candidate is forecast for each GPU, or there is a line that says why not."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

import neusight
from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli.planning import points
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import (
    PlanPoint,
    PlanRequest,
    evaluated,
    evaluated_in_turn,
)
from neusight.integrations.cli.planning.processes import LostWorker
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.predictors.gpu import find_gpu

TRAIN = """
import argparse, os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
width = parser.parse_args().width
if width % 2:
    raise ValueError("an odd width")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
print("noise"); print("more noise", file=sys.stderr)
with torch.device("cuda"):
    model = nn.Sequential(nn.Embedding(100, width), nn.Linear(width, width))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(4, 8, dtype=torch.long, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
GPUS = (find_gpu("H100"), find_gpu("T4"))


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    return str(tmp_path / "train.py")


def candidate(script: str, width: str) -> Candidate:
    return Candidate((("width", width),), Program(script, ("--width", width)), Rank(0, 4))


def request() -> PlanRequest:
    return PlanRequest(GPUS, ProgramOptions(steps=1), {"T4": 0.5})


@pytest.mark.parametrize("ray", [None, "auto"])
def test_a_process_that_is_lost_leaves_its_reason(
    script: str, ray: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = [(1, LostWorker("it was killed")), (0, [])]
    name = "in_processes" if ray is None else "on_ray"
    monkeypatch.setattr(points, name, lambda *_, **__: iter(done))
    both = [candidate(script, "64"), candidate(script, "128")]

    found = dict(evaluated_in_turn(request(), both, at_once=2, ray=ray, while_waiting=lambda: None))

    assert found == {1: [PlanPoint(both[1], problem="failed: it was killed")], 0: []}
    assert found[1][0].failure == "it was killed"


def test_a_candidate_has_a_point_for_each_gpu(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    points = evaluated(request(), candidate(script, "128"))

    assert [point.gpu for point in points] == ["H100-SXM5-80GB", "T4"]
    assert [point.problem for point in points] == ["", ""]
    row = points[1].row
    assert row is not None
    assert row.tokens_per_second == pytest.approx(4 * 32e6 / row.latency_us)
    assert points[1].gpu_hours == pytest.approx(4 * row.latency_us / 3600e6)
    assert row.cost_per_thousand_steps == pytest.approx(500 * (points[1].gpu_hours or 0))
    assert points[1].exposed_communication_us > 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning")
def test_communication_is_that_of_the_steady_step_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with neusight.forecast_on("H100") as forecast:
        pass

    [point] = points._points(Candidate((), Program("train.py", ())), [forecast], {})

    assert (point.exposed_communication_us, point.gpu_hours) == (0.0, 0.0)
    waiting = SimpleNamespace(exposed_communication_ns=2500)
    monkeypatch.setattr(points, "steady_step_of", lambda _: waiting)
    [point] = points._points(Candidate((), Program("train.py", ())), [forecast], {})
    assert point.exposed_communication_us == 2.5


def test_what_does_not_fit_says_how_much_is_needed(script: str) -> None:
    points = evaluated(request(), candidate(script, str(2**16)))

    assert points[1].problem.startswith("does not fit: ")
    assert points[1].problem.endswith(" of 14.76 GiB")


@pytest.mark.parametrize(
    ("width", "problem"),
    [
        ("7", "failed: ValueError: an odd width (train.py:9)"),
        ("few", "failed: train.py: error: argument --width: invalid int value: 'few'"),
    ],
)
def test_a_script_that_fails_says_why_in_a_line(script: str, width: str, problem: str) -> None:
    [point] = evaluated(request(), candidate(script, width))

    assert point.problem == problem
    assert (point.row, point.gpu, point.gpu_hours) == (None, "", None)
    assert point.to_json()["exposed_communication_us"] is None


@pytest.mark.parametrize(
    ("printed", "line"),
    [(b"", ""), (b"one", "one"), (b"a\n neusight: two \n\n", "two"), (b"neusight: three", "three")],
)
def test_the_last_line_of_what_a_script_printed_is_its_reason(printed: bytes, line: str) -> None:
    errors = io.BytesIO()
    errors.write(printed)

    assert points._last_line(errors) == line


def test_a_script_without_cuda_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(3)\n")

    [point] = evaluated(request(), Candidate((), Program(str(tmp_path / "train.py"), ())))

    assert "put nothing on the GPU" in point.problem


def test_ranks_that_a_candidate_does_not_have_are_its_problem(script: str) -> None:
    asked = PlanRequest(GPUS, ProgramOptions(steps=1), {}, ranks=(0, 7))

    [point] = evaluated(asked, candidate(script, "64"))

    assert "7" in point.problem
    assert point.row is None
