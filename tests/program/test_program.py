"""A program: its words, and the files that it is made of."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from neusight.integrations.program.program import (
    Program,
    digest_of_files,
    own_files,
    program_of,
)


@pytest.mark.parametrize(
    "program",
    [Program("a b.py", ("--x", "1")), Program("pkg.train", (), is_module=True)],
)
def test_its_words_name_it_again(program: Program) -> None:
    assert program_of(program.words) == program


def test_its_own_files_lie_in_the_folder_and_belong_to_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "own_model": tmp_path / "model.py",
        "installed": tmp_path / "site-packages" / "installed.py",
        "elsewhere": tmp_path.parent / "elsewhere.py",
        "neusight.extra": tmp_path / "neusight.py",
    }
    for name, path in places.items():
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)

    found = own_files(tmp_path, [*places, "builtins", "not.loaded"])

    assert found == {tmp_path / "model.py"}


def test_a_digest_of_files_is_of_what_they_hold(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(text)

    digests = [digest_of_files([tmp_path / name]) for name in "abc"]

    assert digests[0] == digests[1] != digests[2]
    assert digest_of_files([tmp_path / "a", tmp_path / "gone"]) == digests[0]
