"""A guarded script may write where packages and systems keep what they can make again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neusight.integrations.program.guard.writable_folders import (
    allowed_folders,
    caches_of_packages,
)
from neusight.integrations.program.program import Program


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, with the work in a folder of its own below."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def folders(*arguments: str, target: str = "train.py") -> list[str]:
    words = Program(target, arguments).possible_paths
    with caches_of_packages(words) as caches:
        return allowed_folders(caches)


def test_devices_and_caches_may_be_written(home: Path) -> None:
    found = folders()

    assert {"/dev", "/proc/self", str(home / ".cache")} <= set(found)
    assert not any(Path.cwd().is_relative_to(folder) for folder in found)


@pytest.mark.parametrize(
    "arguments",
    [("{}/set",), ("--data={}/set",), ("--data", "~/.cache/set"), ("{}",)],
)
def test_a_folder_with_an_argument_in_it_may_not(arguments: tuple[str, ...], home: Path) -> None:
    cache = str(home / ".cache")

    assert cache not in folders(*(word.format(cache) for word in arguments))
    assert cache in folders("no\0path", "--set=3")


def test_nor_one_with_the_script_in_it(home: Path) -> None:
    (home / ".cache").mkdir()
    (home / ".cache" / "train.py").touch()
    (home / "work" / "link.py").symlink_to(home / ".cache" / "train.py")

    assert str(home / ".cache") not in folders(target="link.py")


def test_caches_are_there_while_it_is_open(home: Path) -> None:
    (home / ".triton").mkdir()

    with caches_of_packages(["train.py"]):
        (home / ".cache" / "file").touch()
        assert (home / ".cache").stat().st_mode & 0o777 == 0o700

    assert sorted(path.name for path in home.iterdir()) == [".cache", ".triton", "work"]


def test_a_file_into_which_output_goes_may_be_opened_again(home: Path) -> None:
    kept = os.dup(1)
    target = os.open(home / "work" / "out.txt", os.O_WRONLY | os.O_CREAT)
    try:
        os.dup2(target, 1)
        found = folders()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(target)

    assert "/proc/self/fd/1" in found
