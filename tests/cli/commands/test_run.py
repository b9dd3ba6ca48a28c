"""`neusight run`: a command line becomes values, and all that was asked for is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.forecast import Forecast
from neusight.integrations.cli.commands.run import _requested
from neusight.integrations.cli.main import _parser, main
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Level
from neusight.predictors.errors import NeusightError
from neusight.predictors.gpu import find_gpu
from warm_python import run_python

TRAIN = Program("json.tool", (), is_module=True)


def test_every_option_of_the_command_line_becomes_a_value() -> None:
    options = _parser().parse_args(
        ["run", "--gpu", "H100", "--gpu", "T4", "--steps", "all", "--host", "older", "--strict",
         "--tokens", "7", "--samples", "2", "--predictor", "roofline", "--out-of-memory", "raise",
         "--max-ops", "9", "--price", "H100=1", "--max-memory", "2", "--quiet", "--allow-writes",
         "--chakra", "et"]
    )  # fmt: skip
    options.is_command_line = True
    options.own_words = ["run", "--price", "H100=1"]

    request = _requested(options, TRAIN)

    assert request.options == ProgramOptions(
        steps=None, predictor="roofline", host="older", strict=True, out_of_memory="raise",
        max_ops=9, samples=2, tokens=7, with_stack=True, quiet=True, allow_writes=True,
        with_operators=False,
    )  # fmt: skip
    assert [gpu.name for gpu in request.gpus] == ["H100-SXM5-80GB", "T4"]
    assert request.prices == {"H100-SXM5-80GB": 1.0}
    assert (request.max_memory, request.chakra, request.trace) == ("2", "et", None)


@pytest.mark.parametrize("output", ["--trace", "--json", "--html", "--save"])
def test_operators_are_recorded_for_what_shows_them(output: str) -> None:
    options = _parser().parse_args(["run", "--gpu", "H100", output, "there"])
    options.is_command_line = True

    assert _requested(options, TRAIN).options.with_operators


def test_a_topology_and_a_network_are_those_of_every_gpu() -> None:
    options = _parser().parse_args(
        ["run", "--gpu", "H100", "--gpu", "A100", "--world-size", "64", "--topology", "P4D",
         "--network-gbps", "25x8"]
    )  # fmt: skip
    options.is_command_line = True

    asked = _requested(options, TRAIN).options

    topology = asked.topology_for(find_gpu("A100"))
    assert topology is not None
    assert topology.inside == find_topology("p4d").inside
    assert topology.network == Level("network", 25.0, nics_per_node=8)


def test_a_node_holds_as_many_ranks_as_its_topology_has_gpus() -> None:
    options = _parser().parse_args(
        ["run", "--gpu", "GB200", "--world-size", "64", "--topology", "gb200-nvl72"]
    )
    options.is_command_line = True

    assert _requested(options, TRAIN).options.rank == Rank(0, 64, 4)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--topology", "dgx-h10"], "Did you mean 'dgx-h100'"),
        (["--topology", "none.json"], "none.json"),
        (["--network-gbps", "fast"], "it must be like 50, 50x8 or 50x8:ecmp"),
    ],
)
def test_what_is_no_topology_is_refused_before_the_script_runs(
    words: list[str], reported: str
) -> None:
    options = _parser().parse_args(["run", "--gpu", "H100", "--world-size", "16", *words])
    options.is_command_line = True

    with pytest.raises(NeusightError, match=reported):
        _requested(options, TRAIN).options.topology_for(find_gpu("H100"))


def test_advice_and_rates_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch import nn\nmodel = nn.Embedding(50_000, 512).cuda()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(4):\n"
        "    model(torch.zeros(4, 8, dtype=torch.long, device='cuda')).mean().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    )

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--json", "o.json", "--html", "r.html",
        "train.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["advice"][0]["kind"] == "fused_optimizer"
    assert document["tokens_per_step"] == 32
    assert document["side_by_side"][0]["tokens_per_second"] > 0
    shown = done.stdout.splitlines()
    [heading] = [line for line in shown if line.startswith("  what to change")]
    assert "Adam(…, fused=True)" in shown[shown.index(heading) + 1]
    assert "  report    r.html" in shown
    assert "  in CI     neusight check --gpu H100 train.py (first with --update)" in shown
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_stages_that_run_side_by_side_have_a_trace_and_a_chakra_trace_each(tmp_path: Path) -> None:
    (tmp_path / "stages.py").write_text(
        "import torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('nccl')\nrank = dist.get_rank()\ntorch.cuda.set_device(rank)\n"
        "x = torch.ones(64, 1024, device='cuda')\nw = torch.ones(1024, 1024, device='cuda')\n"
        "for step in range(4):\n"
        "    if rank == 1:\n        dist.recv(x, 0)\n"
        "    for _ in range(8):\n        x = x @ w\n"
        "    if rank == 0:\n        dist.send(x, 1)\n"
        "    torch.cuda.synchronize()\n"
    )

    done = run_python(
        "-m", "neusight", "run", "--gpu", "H100", "--world-size", "2", "--rank", "all-distinct",
        "--trace", "runs", "--chakra", "et", "stages.py", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    traces = sorted(path.name for path in (tmp_path / "runs").glob("*.pt.trace.json.gz"))
    assert traces == ["node0_0.1.pt.trace.json.gz", "node0_1.1.pt.trace.json.gz"]
    assert sorted(path.name for path in (tmp_path / "et").glob("*.et")) == [
        "forecast.0.et",
        "forecast.1.et",
    ]
    assert "have Chakra traces" not in done.stderr


def test_ranks_are_run_side_by_side_and_one_alone(tmp_path: Path) -> None:
    def options_of(*words: str) -> ProgramOptions:
        parsed = _parser().parse_args(["run", "--gpu", "H100", "--world-size", "8", *words])
        parsed.is_command_line = True
        return _requested(parsed, TRAIN).options

    alone, some, all_ = (
        options_of(*words)
        for words in (["--rank", "3"], ["--rank", "7,0,3"], ["--rank", "all-distinct"])
    )

    assert (alone.rank, alone.ranks) == (Rank(3, 8), None)
    assert (some.rank, some.ranks) == (Rank(0, 8), (0, 3, 7))
    assert (all_.rank, all_.ranks) == (Rank(0, 8), ())
    assert options_of("--wait", "5").wait_s == 5.0


RANKS = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank, widths = dist.get_rank(), [None, None]
dist.all_gather_object(widths, 8 * (rank + 1))
for width in widths:
    (torch.ones(width, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum()
if rank == 1:
    raise ValueError("no such layer") if "fail" in __import__("sys").argv else SystemExit
"""


def test_what_ranks_do_is_written_and_shown_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    saved, figures = tmp_path / "saved.json", tmp_path / "figures.json"
    own = ["--gpu", "H100", "--world-size", "2", "--rank", "0,1"]

    code = main(["run", *own, "--json", str(figures), "--save", str(saved),
                 str(tmp_path / "train.py")])  # fmt: skip

    reported = capsys.readouterr().out
    assert code == 0
    assert "ranks     2 of 2 side by side" in reported
    assert "what to change" not in reported
    assert [row["rank"] for row in json.loads(figures.read_text())["ranks"]] == [0, 1]
    assert [rank.recording.num_ops for rank in Forecast.load(saved).ranks] == [8, 8]


def test_a_rank_that_fails_is_named_with_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    own = ["--gpu", "H100", "--world-size", "2", "--rank", "all-distinct", "--quiet"]

    code = main(["run", *own, str(tmp_path / "train.py"), "fail"])

    printed = capfd.readouterr()
    assert code == 3
    assert "the script failed: rank 1: ValueError: no such layer (train.py:10)" in printed.err
    assert "[rank 1] ValueError: no such layer" in printed.err


def test_a_program_without_cuda_has_a_report_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text("print('on the CPU')\n")

    code = main(["run", "--gpu", "H100", "--html", "r.html", "plain.py"])

    assert code == 2
    assert "  report    r.html" in capsys.readouterr().out
    assert "nothing was put on the GPU" in (tmp_path / "r.html").read_text()


def test_prices_are_explained_after_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "infer.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64).cuda()\n"
        "for _ in range(3): model(torch.ones(8, 64, device='cuda'))\n"
    )
    known = main(["run", "--gpu", "H100", "--explain", "addmm", str(script)])
    out = capsys.readouterr().out
    unknown = main(["run", "--gpu", "H100", "--explain", "conv", str(script)])

    assert (known, unknown) == (0, 2)
    assert "addmm on H100-SXM5-80GB: 1 kernel of " in out
    assert "no module, op or kernel of the step has 'conv'" in capsys.readouterr().err


def test_the_clock_that_is_asked_for_is_stated_and_priced(tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(
        "import torch\nw = torch.ones(8192, 8192, device='cuda', dtype=torch.bfloat16)\nw @ w\n"
    )

    def lines(*words: str) -> tuple[str, float]:
        done = run_python(
            *("-m", "neusight", "run", "--gpu", "H100", *words, "--json", "found.json"),
            "product.py",
            cwd=tmp_path,
        )
        latency = json.loads((tmp_path / "found.json").read_text())["step_latency_us"]["median"]
        return done.stdout, latency

    default, burst = lines(), lines("--clock", "burst")

    assert ", sustained clocks\n" in default[0]
    assert ", burst clocks\n" in burst[0]
    assert burst[1] < 0.95 * default[1]
    assert lines("--clock", "sustained") == default
