"""The first screen: its colours, and the command that it ends with."""

from __future__ import annotations

import io
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.cli import screen
from neusight.integrations.cli.main import _split
from neusight.integrations.cli.screen import (
    Screen,
    _warnings_of,
    check_command,
    coloured,
    print_screen,
)
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import Outcome

SCREEN = "T4: does not fit, 5 ms\nA100: fits, 2 ms\n  note      a NOTE\nL4  NO  yes\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    text = coloured(SCREEN, Terminal())

    assert "\x1b[31mdoes not fit\x1b[0m" in text
    assert "\x1b[32mfits\x1b[0m" in text
    assert "\x1b[31mNO\x1b[0m" in text
    assert "a NOTE" in text  # only the word by itself is a verdict


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_none(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)

    assert coloured(SCREEN, Terminal()) == SCREEN


def test_a_file_gets_no_colours() -> None:
    assert coloured(SCREEN, io.StringIO()) == SCREEN


def test_the_command_for_ci_is_one_that_check_takes() -> None:
    program = Program("my train.py", ("--name", "it's"))

    words = shlex.split(check_command(program, ("H100", "T4")))

    own, inner = _split(words[1 : words.index("(first")])
    assert own == ["check", "--gpu", "H100", "--gpu", "T4"]
    assert inner == program


def test_the_command_for_ci_runs_the_same_ranks() -> None:
    options = ProgramOptions(rank=Rank(0, 16), ranks=())

    words = shlex.split(check_command(Program("train.py", ()), ("H100",), options))

    assert words[4:10] == [
        "--world-size",
        "16",
        "--gpus-per-node",
        "8",
        "--rank",
        "all-distinct",
    ]


@pytest.mark.parametrize(
    ("judges_memory", "fits", "is_shown"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_beside_each_other_it_says_how_to_make_it_fit_unless_that_is_shown(
    judges_memory: bool, fits: bool, is_shown: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    compared = SimpleNamespace(table=lambda: "the table", words=lambda: "")
    monkeypatch.setattr(screen, "lay_side_by_side", lambda forecasts, prices: compared)
    recording = SimpleNamespace(options={}, num_ops=0)
    one: Any = SimpleNamespace(
        gpu=SimpleNamespace(name="T4"), fits=fits, warnings=(), unmapped=(), recording=recording
    )
    shown = Screen(
        Program("train.py", ()), Outcome(), ProgramOptions(), ("T4", "L4"), {},
        judges_memory=judges_memory, trace=None, html="o.html", others=(("figures", "o.json"),),
    )  # fmt: skip

    print_screen(shown, [one, one], [[], []])

    hint = "  memory    --max-memory shows what would make it fit\n" if is_shown else ""
    places = "  report    o.html\n  figures   o.json\n"
    assert capsys.readouterr().out == f"\n\nthe table\n{hint}{places}"


def test_a_note_of_some_forecasts_names_them() -> None:
    def forecast(gpu: str, *warnings: str, unmapped: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(gpu=SimpleNamespace(name=gpu), warnings=warnings, unmapped=unmapped)

    found = _warnings_of(
        [forecast("T4", "slow", "old"), forecast("A100", "old", unmapped=("x::y",))]
    )

    assert found == [
        "  note      slow (T4)",
        "  note      old",
        "  note      unmapped, priced by bytes over bandwidth: x::y (A100)",
    ]
