"""What the documents tell people to type works as written."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.integrations.cli.main import _parser, _split
from places import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")])
#: A command in a block of its own, or between backquotes.
_IN_BLOCK = re.compile(r"^(?:    |\t)?(?:\$ )?(?:.*&& )?(neusight [^#\n]*)$", re.MULTILINE)
_IN_LINE = re.compile(r"`(neusight [a-z][^`]*)`")
#: What stands for the reader's own: `neusight run --gpu GPU …`, `--steps N`.
_PLACEHOLDER = re.compile(r"\b(GPU|FORECAST|REAL|FILE|DIR|NAME|DATA|SCRIPT|N)\b|…|\.\.\.")

TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--config")
parser.add_argument("--device")
arguments = parser.parse_args()
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.randn(arguments.batch, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def found_in(path: Path, pattern: re.Pattern[str]) -> list[str]:
    text = path.read_text().replace("\\\n", " ")
    return [words.strip() for words in pattern.findall(text) if not _PLACEHOLDER.search(words)]


COMMANDS = sorted({(path.name, words) for path in DOCUMENTS for words in found_in(path, _IN_BLOCK)})
MENTIONS = sorted({(path.name, words) for path in DOCUMENTS for words in found_in(path, _IN_LINE)})


def test_the_commands_of_the_documents_are_found() -> None:
    assert {"README.md", "TROUBLESHOOTING.md"} <= {name for name, _ in COMMANDS}
    assert len(COMMANDS) > 15
    assert len(MENTIONS) > 5


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_every_command_is_one_that_the_command_line_takes(document: str, command: str) -> None:
    own, program = _split(shlex.split(command)[1:])

    options = _parser().parse_args(own)

    assert options.command is not None
    if program is not None and not program.is_module and "/" in program.target:
        assert (ROOT / program.target).is_file(), f"{document} names a script that is not there"


@pytest.mark.parametrize(("document", "mention"), MENTIONS)
def test_every_command_and_option_that_is_mentioned_exists(document: str, mention: str) -> None:
    name, *words = shlex.split(mention)[1:]
    [commands] = [action for action in _parser()._actions if action.dest == "command"]
    assert isinstance(commands.choices, dict)

    known = commands.choices[name]._option_string_actions

    own, _ = _split([name, *words])
    assert [word for word in own if word.startswith("--") and word not in known] == []


def runnable() -> list[str]:
    """The commands of TROUBLESHOOTING.md that need no profile of a real GPU: those are tested with
    `compare` and `calibrate`."""
    text = (ROOT / "TROUBLESHOOTING.md").read_text()
    found = dict.fromkeys(command.strip() for command in _IN_BLOCK.findall(text))
    needs_profile = ("measured.pt.trace", "--calibration")
    return [command for command in found if not any(word in command for word in needs_profile)]


#: Runs commands one after the other in one process, which loads torch once; prints what failed.
RUN_ALL = """
import json, sys
from neusight.integrations.cli.main import main
failed = [words for words in json.loads(sys.argv[1]) if main(words) != 0]
sys.exit(f"failed: {failed}" if failed else 0)
"""


def test_every_command_of_troubleshooting_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    small = ["--batch", "1", "--seq", "64"]
    commands = [shlex.split(command)[1:] for command in runnable()]
    commands = [[*c, *small] if c[-1].startswith("examples/") else c for c in commands]

    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert len(commands) > 10
    assert {"out.json", "report.html", "runs", "recording.json.gz"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_is_python(path: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        ast.parse(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_the_documents_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []


def anchors_of(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_a_place_in_a_document_lead_there(path: Path) -> None:
    text = path.read_text().replace("https://github.com/neusight/neusight/blob/main/", "")
    links = re.findall(r"\]\(([\w./]*)#([^)]+)\)", text)

    targets = [(path.parent / name if name else path, anchor) for name, anchor in links]
    assert [place for place in targets if place[1] not in anchors_of(place[0])] == []


def test_the_first_screen_of_the_readme_says_what_it_is_and_what_comes_out() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:40]

    words = "\n".join(screen)
    assert "pip install" in words
    assert "neusight run --gpu H100" in words
    assert "where the time goes" in words
    assert "what to change" in words


def test_files_that_troubleshooting_names_are_there() -> None:
    named = re.findall(r"`(examples/[\w./]+)`", (ROOT / "TROUBLESHOOTING.md").read_text())

    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
