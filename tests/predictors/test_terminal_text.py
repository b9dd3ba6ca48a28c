"""Whatever a module, a GPU or a script is named, a terminal shows the name and does nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.check.baseline import Case
from neusight.integrations.check.figures.tolerance import parse_tolerances
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import observe
from neusight.integrations.check.outputs.github import github_annotations
from neusight.integrations.check.outputs.markdown import markdown_report
from neusight.integrations.check.outputs.terminal import text_of
from neusight.integrations.check.result import CaseResult
from neusight.integrations.cli.commands.doctor import Finding, report
from neusight.integrations.profiles.comparison.rendering import Table
from neusight.integrations.profiles.comparison.rendering import markdown_table as compared_markdown
from neusight.integrations.profiles.comparison.rendering import plain as compared_table
from neusight.integrations.report.memory import MemoryReport
from neusight.integrations.report.side_by_side import lay_side_by_side, text_table
from neusight.predictors.gpu import find_gpu
from neusight.predictors.terminal_text import fitted, printable, printable_lines, printable_text

#: Red, the title of the window, a bell, a new line, a line over the one before, text turned round,
#: nothing wide, a byte that is no UTF-8, a line of Unicode's own.
HOSTILE = "a\x1b[31mb\x1b]0;t\x07c\nd\re\u202ef\u200bg\udcffh\u2028i\x9b31m"
#: What of it must not reach a terminal; a new line stands for itself between lines.
FORBIDDEN = {character for character in HOSTILE if not character.isprintable()} - {"\n"}


@pytest.fixture(scope="module")
def hostile() -> Forecast:
    """A forecast in which all that has a name has a hostile one."""
    target = replace(find_gpu("H100"), name=HOSTILE, aliases=(), driver_name=HOSTILE)
    named = type(HOSTILE.replace("\udcff", ""), (nn.Linear,), {})
    with neusight.forecast_on(target, with_stack=True) as forecast:
        model = nn.Sequential().cuda()
        model.add_module(HOSTILE, named(64, 64).cuda())
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.randn(32, 64, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    recording = replace(forecast.recording, script=HOSTILE, warnings=(HOSTILE,))
    return forecast.of(recording)


def result(kind: str, forecast: Forecast) -> CaseResult:
    seen = observe(forecast)
    better = {name: value / 2 for name, value in seen.case.metrics.items()}
    before: Case = replace(seen.case, metrics=better, ops=seen.case.ops[:-1], work="another")
    judgement = judge(HOSTILE, before, seen, parse_tolerances({}))
    if kind == "failed":
        return CaseResult(HOSTILE, "failed", failure=HOSTILE)
    return CaseResult(HOSTILE, "regression", judgement, seen.case)


def tables(forecast: Forecast) -> dict[str, Callable[[], str]]:
    rows: Table = [("operator", "size"), (HOSTILE, HOSTILE)]
    return {
        "summary": lambda: forecast.summary(changes=[HOSTILE]),
        "repr": lambda: repr(forecast),
        "memory": lambda: str(MemoryReport(forecast, 2**20)),
        "memory verdict": lambda: MemoryReport(forecast, 2**20).verdict,
        "side by side": lambda: lay_side_by_side([forecast, forecast], {}).table(),
        "side by side in Markdown": lambda: lay_side_by_side([forecast], {}).to_markdown(),
        "text table": lambda: text_table([HOSTILE], [[HOSTILE]]),
        "comparison": lambda: compared_table(HOSTILE, rows),
        "comparison in Markdown": lambda: compared_markdown(HOSTILE, rows),
        "doctor": lambda: report([Finding("GPU", "ok", HOSTILE, HOSTILE)]),
        "check": lambda: text_of(result("regression", forecast), Path()),
        "failed check": lambda: text_of(result("failed", forecast), Path()),
        "check in Markdown": lambda: markdown_report([result("regression", forecast)], Path()),
        "failed check in Markdown": lambda: markdown_report([result("failed", forecast)], Path()),
        "check on GitHub": lambda: "\n".join(
            github_annotations(
                [result("regression", forecast), result("failed", forecast)], Path(), Path()
            )
        ),
    }


def test_no_text_for_people_holds_what_a_terminal_would_obey(hostile: Forecast) -> None:
    texts = {name: text() for name, text in tables(hostile).items()}

    found = {name: FORBIDDEN & set(text) for name, text in texts.items()}
    assert {name: characters for name, characters in found.items() if characters} == {}
    for name in ("summary", "side by side", "comparison", "check", "check in Markdown"):
        assert r"a\x1b[31mb" in texts[name], name


def test_a_name_cannot_add_a_line(hostile: Forecast) -> None:
    for text in (hostile.summary(), lay_side_by_side([hostile], {}).table()):
        assert not any(line.startswith("d") for line in text.splitlines())


def test_json_keeps_names_as_they_are(hostile: Forecast) -> None:
    document = hostile.to_json()

    assert document["gpu"] == HOSTILE
    assert document["warnings"] == [HOSTILE]
    assert any(HOSTILE.partition("\n")[0] in row["name"] for row in document["by_module"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blocks.0.attention 12 µs … 日本", "blocks.0.attention 12 µs … 日本"),
        ("a\tb", "a b"),
        ("\x1b[0m", r"\x1b[0m"),
        ("one\ntwo", r"one\ntwo"),
        ("\u202e\u2066", r"\u202e\u2066"),
        ("", ""),
    ],
)
def test_what_is_printable_stays_and_the_rest_is_named(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_lines() -> None:
    assert printable_text("a\x07\nb") == "a\\x07\nb"
    assert printable_lines(["a\nb", "c"]) == "a\\nb\nc"


class Wide(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_long_line_is_broken_below_what_it_says_where_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    note = "  note      " + "a line of the program that is long " * 3
    table = "GPU             ms a step  fits"

    lines = fitted(f"{note}\n{table}", Wide()).split("\n")

    assert [len(line) <= 60 for line in lines] == [True] * 4
    assert lines[1].startswith(" " * 12 + "program that")
    assert lines[-1] == table
    assert fitted(note, io.StringIO()) == note


def test_a_table_loses_its_blanks_first_and_then_goes_on_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    spaced = ["    gemm                        4.68 ms  85.3%       6 kernels",
              "    softmax                     0.21 ms   3.8%      12 kernels"]  # fmt: skip
    wide = [f"{name:<14}{'12.34 ms':>20}{'12.34 to 56.78':>20}{'compute':>14}" for name in "ab"]

    assert fitted("\n".join(spaced), Wide()).split("\n") == [
        "    gemm     4.68 ms  85.3%   6 kernels",
        "    softmax  0.21 ms   3.8%  12 kernels",
    ]
    assert fitted("\n".join(wide), Wide()) == (
        "a  12.34 ms  12.34 to 56.78  compute\nb  12.34 ms  12.34 to 56.78  compute"
    )
    monkeypatch.setenv("COLUMNS", "40")
    rows = [" ".join(["word"] * 2) + "   123456789" * 4 for _ in range(2)]
    lines = fitted("\n".join(rows), Wide()).split("\n")
    assert lines == ["word word  123456789  123456789", "    123456789  123456789"] * 2


def test_a_terminal_of_a_few_columns_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "39")

    assert fitted("a word and more " * 9, Wide()) == "a word and more " * 9


def test_what_stands_below_a_row_loses_its_blanks_where_it_is_too_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    figures = (("1" * 20, "2" * 16, "3" * 7), ("1", "2", "3"))
    rows = [f"{name:<22}{one:>24}{two:>20}{three:>30}" for name, (one, two, three) in
            zip(("a name", "another name"), figures, strict=True)]  # fmt: skip

    assert fitted("\n".join(rows), Wide()).split("\n") == [
        f"a name        {'1' * 20}", f"    {'2' * 16}  {'3' * 7}",
        "another name                     1", "                   2        3",
    ]  # fmt: skip


def test_a_word_that_is_too_long_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = "/a" * 40

    assert path in fitted(f"  trace     {path}", Wide()).split()
