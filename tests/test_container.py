"""The recipe for machines without Linux x86-64; its lines agree with package and documents."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from neusight.compatibility.releases import _PYTHONS, CONTAINER_BUILD, CONTAINER_RUN, TESTED_TORCH
from places import ROOT

#: Of an image that is built and run, those that the recipe uses.
WORDS = {"FROM", "ARG", "RUN", "COPY", "WORKDIR", "ENTRYPOINT", "CMD"}
DOCKER = """#!/bin/sh
if [ "$1" = build ]; then echo "$@" >> "$LOG"; echo sha256:0123; else printf '%s\\n' "$@"; fi
"""


@pytest.fixture(scope="module")
def recipe() -> list[tuple[str, str]]:
    """Instruction and the rest of each line of the Dockerfile."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.strip()]
    split = (line.partition(" ") for line in lines if not line.startswith("#"))
    return [(word, rest) for word, _, rest in split]


def values(recipe: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for name, rest in recipe if name == word]


def test_the_recipe_has_a_known_instruction_in_every_line(recipe: list[tuple[str, str]]) -> None:
    assert {word for word, _ in recipe} == WORDS
    assert recipe[0][0] == "FROM"


def test_its_python_and_torch_are_tried_ones(recipe: list[tuple[str, str]]) -> None:
    [image] = values(recipe, "FROM")
    [torch] = values(recipe, "ARG")
    found = re.fullmatch(r"python:(\d+)\.(\d+)-slim", image)

    assert found is not None
    python = int(found[1]), int(found[2])
    assert _PYTHONS[0] <= python <= _PYTHONS[1]
    assert TESTED_TORCH[torch.removeprefix("TORCH=")] <= python


def test_it_installs_what_it_copies_and_checks_it(recipe: list[tuple[str, str]]) -> None:
    [copied] = values(recipe, "COPY")
    runs = values(recipe, "RUN")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    source, target = copied.split()
    assert source == "."
    assert runs[-2].endswith(f" {target}")
    assert runs[-1] == "neusight doctor"
    assert not {"predictors", "neusight_hooks", "integrations", "README.md"} & set(ignored)


def test_the_image_is_the_command_neusight(recipe: list[tuple[str, str]]) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")

    [entry] = values(recipe, "ENTRYPOINT")
    assert f"{json.loads(entry)[0]} = " in config["options.entry_points"]["console_scripts"]


def test_the_readme_and_the_recipe_have_the_commands_that_messages_name() -> None:
    readme, recipe = (ROOT / "README.md").read_text(), (ROOT / "Dockerfile").read_text()

    assert f"\n    {CONTAINER_BUILD}\n    {CONTAINER_RUN}\n" in readme
    assert f"#     {CONTAINER_BUILD}\n#     {CONTAINER_RUN}\n" in recipe


def test_a_shell_gives_docker_the_checkout_the_folder_and_the_script(tmp_path: Path) -> None:
    docker, folder, log = tmp_path / "docker", tmp_path / "my scripts", tmp_path / "log"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    folder.mkdir()

    ran = subprocess.run(
        ["sh", "-c", f"{CONTAINER_BUILD} && {CONTAINER_RUN}"],
        cwd=folder,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "PWD": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines()[1:] == [
        *("run", "--rm", "--platform", "linux/amd64", "-v", f"{folder}:/work"),
        *("neusight", "run", "--gpu", "H100", "train.py"),
    ]
    assert log.read_text() == "build --platform linux/amd64 -t neusight .\n"
