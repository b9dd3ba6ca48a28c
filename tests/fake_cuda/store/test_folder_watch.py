"""What changes in a folder after it was first touched is named, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neusight.fake_cuda.store.folder_watch import FolderWatch


def test_what_differs_was_added_or_is_gone_is_named(tmp_path: Path) -> None:
    for name in ("same", "longer", "gone", "replaced"):
        (tmp_path / name).write_text(name)
    watch = FolderWatch()
    watch.touch(str(tmp_path))

    (tmp_path / "longer").write_text("longer than before")
    (tmp_path / "gone").unlink()
    (tmp_path / "added").mkdir()
    (tmp_path / "new").write_text("replaced")
    os.utime(tmp_path / "new", ns=(0, (tmp_path / "replaced").stat().st_mtime_ns))
    (tmp_path / "new").replace(tmp_path / "replaced")

    assert [Path(path).name for path in watch.changes()] == ["added", "gone", "longer", "replaced"]


def test_an_untouched_folder_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    watch = FolderWatch()

    watch.touch(str(tmp_path))
    (tmp_path / "file").read_text()

    assert watch.changes() == []


def test_the_first_touch_counts(tmp_path: Path) -> None:
    watch = FolderWatch()
    watch.touch(str(tmp_path))
    (tmp_path / "file").write_text("x")
    watch.touch(str(tmp_path))

    assert watch.changes() == [str(tmp_path / "file")]
    assert watch.changes({str(tmp_path / "file")}) == []


def test_a_folder_that_was_not_there_is_empty(tmp_path: Path) -> None:
    watch = FolderWatch()
    watch.touch(str(tmp_path / "runs"))

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log").write_text("x")

    assert watch.changes() == [str(tmp_path / "runs" / "log")]


def test_files_inside_a_watched_folders_folder_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    watch = FolderWatch()
    watch.touch(str(tmp_path))

    (tmp_path / "runs" / "log").write_text("x")

    assert watch.changes() == []


def test_what_python_compiles_is_no_change(tmp_path: Path) -> None:
    watch = FolderWatch()
    watch.touch(str(tmp_path))

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "old.pyc").touch()

    assert watch.changes() == []


def test_folders_and_entries_are_bounded(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    few, large = FolderWatch(max_folders=1), FolderWatch(limit=2)
    for watch in (few, large):
        for folder in (tmp_path / "0", tmp_path, tmp_path / "1"):
            watch.touch(str(folder))

    (tmp_path / "new").touch()
    (tmp_path / "1" / "new").touch()

    assert few.changes() == []  # only the first folder is remembered
    assert large.changes() == [str(tmp_path / "1" / "new")]  # the middle one has too many entries


def test_it_keeps_the_true_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = FolderWatch()
    monkeypatch.setattr(os, "scandir", None)

    watch.touch(str(tmp_path))
    (tmp_path / "file").touch()

    assert watch.changes() == [str(tmp_path / "file")]
