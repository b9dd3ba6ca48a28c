"""What the documents have people type works as written."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from neusight.integrations.cli.main import _parser, _split, _understood
from places import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")])
#: A command in a block of its own, or between backquotes.
_IN_BLOCK = re.compile(r"^(?:    |\t)?(?:\$ )?(?:.*&& )?(neusight [^#\n]*)$", re.MULTILINE)
_IN_LINE = re.compile(r"`(neusight [a-z][^`]*)`")
#: What stands for the reader's own: `neusight run --gpu GPU …`, `--steps N`.
_PLACEHOLDER = re.compile(r"\b(GPU|FORECAST|REAL|FILE|DIR|NAME|DATA|SCRIPT|N)\b|…|\.\.\.")


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
    own, program = _understood(shlex.split(command)[1:])

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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_is_python(path: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        ast.parse(block)


#: Hosts that the project's files may name, and why. It has none of its own yet.
HOSTS = {
    "arxiv.org": "papers",
    "cdnjs.cloudflare.com": "what the profiler plugin's page asks for, and is served locally",
    "docs.kernel.org": "documentation of Landlock",
    "download.pytorch.org": "wheels of torch for the CPU",
    "github.com/astra-sim/astra-sim": "a simulator that reads our execution traces",
    "github.com/facebookresearch/detectron2": "a program that was tried",
    "goo.gl": "the licence of a bundled script",
    "keepachangelog.com": "the changelog's format",
    "no-color.org": "the variable NO_COLOR",
    "polymer.github.io": "the licence of a bundled script",
    "semver.org": "version numbers",
    "www.apache.org": "the licence",
    "www.gstatic.com": "what the profiler plugin's page asks for, and is served locally",
    "www.w3.org": "names of XML's standards",
}
#: Names that no network resolves: what tests and examples connect to.
LOCAL_HOSTS = re.compile(r"127\.0\.0\.1|localhost|a|[\w.-]*\{.*")
#: Links as Markdown has them: inline, also of pictures, and by a reference.
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def anchors_of(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_a_file_and_a_heading_of_the_checkout(path: Path) -> None:
    text = path.read_text()
    links = [inline or reference for inline, reference in _LINK.findall(text)]
    local = [link for link in links if not link.startswith(("http:", "https:"))]

    dead = []
    for link in local:
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        is_there = target.exists() and ROOT in (target.resolve(), *target.resolve().parents)
        if not is_there or (anchor and anchor not in anchors_of(target)):
            dead.append(link)

    assert dead == []
    if path == ROOT / "README.md":
        assert len(local) > 25


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_references_of_links_are_defined(path: Path) -> None:
    text = re.sub(r"^(?: {4}|```).*$", "", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    defined = set(re.findall(r"^\[([^\]]+)\]: \S+$", text, re.MULTILINE))

    used = set(re.findall(r"(?<![\]\w])\[([A-Z][\w. ]+)\](?![(:\[\w])", text))

    assert used <= defined


def test_every_address_is_of_a_host_that_is_known() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    unknown = {}
    for name in listed.stdout.splitlines():
        if name == "tests/test_documents.py" or name.endswith((".png", ".npz", ".gz")):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for address in re.findall(r"https?://([^\s\"'<>)\]`,;]+)", text):
            host = address.partition("/")[0].partition(":")[0]
            if LOCAL_HOSTS.fullmatch(host):
                continue
            if not any(f"{address}/".startswith(f"{known}/") for known in HOSTS):
                unknown[address] = name

    assert unknown == {}


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
