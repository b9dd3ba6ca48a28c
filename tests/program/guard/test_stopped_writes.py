"""An error that the guard made is told from the user's own, whatever library put it in words."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from neusight.integrations.program.guard.stopped_writes import explanation


def refused(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.parametrize(
    "words",
    [
        "[Errno 13] Failed to open local file '{}'. Detail: [errno 13] Permission denied",
        "[enforce fail at inline_container.cc:603] . open file failed because of errno 13 on "
        "fopen: Permission denied, file path: {}",
        "Unable to synchronously create file (unable to open file: name = '{}', errno = 13, "
        "error message = 'Permission denied', flags = 13)",
        'cannot write "{}" (os error 13)',
    ],
    ids=["arrow", "torch", "hdf5", "rust"],
)
def test_a_librarys_own_words_are_understood(words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"

    said = explanation(RuntimeError(words.format(path)), "train.py:12")

    assert said == (
        f"train.py:12 wrote to {path} past neusight's overlay, which was stopped to keep your "
        "files safe; --allow-writes lets it"
    )


def test_a_path_may_be_hidden() -> None:
    for error in (
        RuntimeError("I/O error: Permission denied (os error 13)"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        sqlite3.OperationalError("unable to open database file"),
    ):
        assert "to a file that the error does not name" in explanation(error, "train.py:1")


def test_the_cause_of_an_error_counts(tmp_path: Path) -> None:
    error = RuntimeError("could not save")
    error.__cause__ = refused(tmp_path / "file")

    assert str(tmp_path / "file") in explanation(error, "train.py:1")


def test_a_program_that_was_started_may_have_been_stopped() -> None:
    error = subprocess.CalledProcessError(1, ["rm", "-r", "runs"])

    assert "train.py:1 started 'rm': if it says 'Permission denied'" in explanation(
        error, "train.py:1"
    )


def test_other_errors_are_the_scripts_own() -> None:
    loop = ValueError("shapes do not match")
    loop.__context__ = loop

    for error in (loop, FileNotFoundError(errno.ENOENT, "No such file", "x")):
        assert explanation(error, "train.py:1") == ""


def test_what_the_user_may_not_write_either_is_no_matter_of_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    assert explanation(refused(tmp_path / "folder" / "file"), "train.py:1") == ""
