"""What changes in a folder after it was first touched is named, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neusight.fake_cuda.store import folder_watch
from neusight.fake_cuda.store.folder_watch import FolderWatch


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cat same", ""),
        ("echo more >> longer", "longer"),
        ("rm gone", "gone"),
        ("mkdir added", "added"),
        ("cp -p same new; mv new same", "same"),
        ("echo x > folder/log", ""),  # a folder's files are not its own
        ("mkdir __pycache__; touch old.pyc", ""),
        ("mkdir later; echo x > later/log", "later later/log"),  # it was touched, and empty
        ("echo more >> longer; rm gone", "gone longer"),
    ],
)
def test_what_differs_was_added_or_is_gone_is_named(
    line: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("same", "longer", "gone"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    watch = FolderWatch()
    monkeypatch.setattr(os, "scandir", None)  # it keeps the true functions
    watch.touch(str(tmp_path))
    watch.touch(str(tmp_path / "later"))

    subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    watch.touch(str(tmp_path))  # the first touch counts

    changed = watch.changes()
    assert [os.path.relpath(path, tmp_path) for path in changed] == named.split()
    assert watch.changes(changed) == []


@pytest.mark.parametrize(("limit", "named"), [("MAX_FOLDERS", []), ("MAX_ENTRIES", ["1/new"])])
def test_folders_and_entries_are_bounded(
    limit: str, named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, limit, 1)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    watch = FolderWatch()
    for folder in (tmp_path / "0", tmp_path, tmp_path / "1"):
        watch.touch(str(folder))

    (tmp_path / "new").touch()
    (tmp_path / "1" / "new").touch()

    assert [os.path.relpath(path, tmp_path) for path in watch.changes()] == named
