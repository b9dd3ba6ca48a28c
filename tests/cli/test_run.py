"""The parts of `neusight run` that need no script: its command lines and its colours."""

from __future__ import annotations

import argparse
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.integrations.cli.main import _parser, _split
from neusight.integrations.cli.run import _check_command, _coloured, command_of
from neusight.integrations.program.runner import Program

SCREEN = "T4: does not fit, 5 ms\nA100: fits, 2 ms\n  note      a NOTE\nL4  NO  yes\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def options(*words: str) -> argparse.Namespace:
    return _parser().parse_args(["run", *words])


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    text = _coloured(SCREEN, Terminal())

    assert "\x1b[31mdoes not fit\x1b[0m" in text
    assert "\x1b[32mfits\x1b[0m" in text
    assert "\x1b[31mNO\x1b[0m" in text
    assert "a NOTE" in text  # only the word by itself is a verdict


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_none(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)

    assert _coloured(SCREEN, Terminal()) == SCREEN


def test_a_file_gets_no_colours() -> None:
    assert _coloured(SCREEN, io.StringIO()) == SCREEN


def test_a_process_of_its_own_gets_every_option_that_changes_figures() -> None:
    given = options(
        "--gpu", "H100", "--steps", "3", "--host", "older", "--strict", "--tokens", "7",
        "--predictor", "roofline", "--out-of-memory", "raise", "--max-ops", "9",
        "--price", "H100=1",
    )  # fmt: skip
    program = Program("pkg.train", ("--x", "1"), is_module=True)

    command = command_of(given, program, gpus=["T4", "A100"], json="o.json")

    own, inner = _split(command[3:])
    again = _parser().parse_args(own)
    assert inner == program
    assert again.gpu == ["T4", "A100"]
    assert (again.quiet, again.json) == (True, "o.json")
    for name in ("steps", "host", "strict", "tokens", "predictor", "out_of_memory", "max_ops",
                 "price", "calibration"):  # fmt: skip
        assert getattr(again, name) == getattr(given, name), name


def test_the_command_for_ci_is_one_that_check_takes() -> None:
    program = Program("my train.py", ("--name", "it's"))

    words = shlex.split(_check_command(options("--gpu", "H100", "--gpu", "T4"), program))

    own, inner = _split(words[1 : words.index("(first")])
    assert own == ["check", "--gpu", "H100", "--gpu", "T4"]
    assert inner == program


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
