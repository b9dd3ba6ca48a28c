"""What a killed run left is removed at the next start; what another run uses is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neusight.fake_cuda.store.leftovers import (
    MADE,
    OWNER,
    TRANSPARENT,
    own,
    remove_leftovers,
)


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def store(parent: Path, pid: int, *made: Path) -> Path:
    """A store of a process that made these files and folders."""
    folder = parent / "neusight-abc"
    (folder / "files").mkdir(parents=True)
    (folder / OWNER).write_text(str(pid))
    for path in made:
        status, mark = path.lstat(), Path(f"{folder}/{MADE}{path}")
        for above in reversed([one for one in mark.parents if not one.exists()]):
            above.mkdir()
            above.chmod(TRANSPARENT)
        if path.is_dir():
            mark.mkdir(mode=0o700, exist_ok=True)
        else:
            mark.write_text(f"{status.st_dev} {status.st_ino}")
    return folder


def test_a_dead_owners_store_goes_and_with_it_the_files_it_made(
    tmp_path: Path, dead_pid: int
) -> None:
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    names = ("new", "replaced", "kept", "runs/log", "half")
    for name in names:
        (home / name).write_text(name)
    made = [home / name for name in ("new", "replaced", "runs", "runs/log", "half")]
    folder = store(tmp_path, dead_pid, *made)
    (home / "replaced").rename(home / "moved aside")
    (home / "replaced").write_text("the user's")
    Path(f"{folder}/{MADE}{home}/half").write_text("12")

    assert remove_leftovers(str(tmp_path)) == [str(folder)]

    assert not folder.exists()
    left = sorted(path.name for path in home.iterdir())
    assert left == ["half", "kept", "moved aside", "replaced"]


def test_a_folder_with_other_files_in_it_stays(tmp_path: Path, dead_pid: int) -> None:
    (tmp_path / "runs").mkdir()
    store(tmp_path, dead_pid, tmp_path / "runs")
    (tmp_path / "runs" / "another's").touch()

    remove_leftovers(str(tmp_path))

    assert (tmp_path / "runs" / "another's").exists()


def test_a_store_in_use_stays(tmp_path: Path, dead_pid: int) -> None:
    living = store(tmp_path / "living", os.getpid())
    locked = store(tmp_path / "locked", dead_pid)
    descriptor = own(str(locked))
    (locked / OWNER).write_text(str(dead_pid))  # of another container: its number says nothing
    try:
        for folder in (living, locked):
            assert remove_leftovers(str(folder.parent)) == []
            assert folder.exists()
    finally:
        os.close(descriptor)

    assert remove_leftovers(str(locked.parent)) == [str(locked)]


def test_a_link_to_a_store_that_is_gone_goes_too(tmp_path: Path, dead_pid: int) -> None:
    folder = store(tmp_path, dead_pid)
    (tmp_path / "neusight-link").symlink_to(folder / "files")
    (tmp_path / "neusight-other").symlink_to(tmp_path / "nowhere")

    remove_leftovers(str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["neusight-other"]


def test_what_is_no_store_stays(tmp_path: Path, dead_pid: int) -> None:
    (tmp_path / "neusight-file").touch()
    (tmp_path / "neusight-empty").mkdir()
    (tmp_path / "neusight-odd").mkdir()
    (tmp_path / "neusight-odd" / OWNER).write_text("nobody")
    other = tmp_path / "other"
    real = store(other, dead_pid)
    (tmp_path / "neusight-link").symlink_to(real)

    assert remove_leftovers(str(tmp_path)) == []
    assert remove_leftovers(str(tmp_path / "not there")) == []

    assert len(list(tmp_path.iterdir())) == 5
    assert real.exists()


def test_a_file_that_was_written_again_after_the_run_was_killed_stays(
    tmp_path: Path, dead_pid: int
) -> None:
    (tmp_path / "model.pt").write_text("invented")
    folder = store(tmp_path, dead_pid, tmp_path / "model.pt")
    with (tmp_path / "model.pt").open("w") as file:  # the same file, as `torch.save` opens it
        file.write("real training's")
    later = Path(f"{folder}/{MADE}{tmp_path}/model.pt").stat().st_mtime_ns + 2 * 10**9
    os.utime(tmp_path / "model.pt", ns=(later, later))

    remove_leftovers(str(tmp_path))

    assert (tmp_path / "model.pt").read_text() == "real training's"


def test_what_a_killed_run_was_about_to_make_goes_too(tmp_path: Path, dead_pid: int) -> None:
    (tmp_path / "new").touch()
    folder = store(tmp_path, dead_pid, tmp_path / "new")
    for name in ("new", "not made"):
        Path(f"{folder}/{MADE}{tmp_path}/{name}").write_text("0 0")

    assert remove_leftovers(str(tmp_path)) == [str(folder)]
    assert list(tmp_path.iterdir()) == []
