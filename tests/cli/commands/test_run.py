"""`neusight run`: a command line becomes values, and all that was asked for is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from neusight.integrations.cli.commands.run import _requested
from neusight.integrations.cli.main import _parser
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program

TRAIN = Program("json.tool", (), is_module=True)


def test_every_option_of_the_command_line_becomes_a_value() -> None:
    options = _parser().parse_args(
        ["run", "--gpu", "H100", "--gpu", "T4", "--steps", "all", "--host", "older", "--strict",
         "--tokens", "7", "--samples", "2", "--predictor", "roofline", "--out-of-memory", "raise",
         "--max-ops", "9", "--price", "H100=1", "--max-memory", "2", "--quiet", "--allow-writes"]
    )  # fmt: skip
    options.is_command_line = True

    request = _requested(options, TRAIN)

    assert request.options == ProgramOptions(
        steps=None, predictor="roofline", host="older", strict=True, out_of_memory="raise",
        max_ops=9, samples=2, tokens=7, with_stack=True, quiet=True, allow_writes=True,
    )  # fmt: skip
    assert [gpu.name for gpu in request.gpus] == ["H100-SXM5-80GB", "T4"]
    assert request.prices == {"H100-SXM5-80GB": 1.0}
    assert request.max_memory == "2"


def test_advice_and_rates_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch import nn\nmodel = nn.Embedding(50_000, 512).cuda()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(4):\n"
        "    model(torch.zeros(4, 8, dtype=torch.long, device='cuda')).mean().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "--json", "o.json", "--html",
         "r.html", "train.py"],
        cwd=tmp_path, capture_output=True, text=True,
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
