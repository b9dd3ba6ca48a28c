"""Files of ours: nothing of the user's is replaced, widened or followed that should not be."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neusight.predictors.files import write_atomically

# -- writing ---------------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file may grow longer, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_file_has_the_mode_that_open_would_give_it(tmp_path: Path) -> None:
    with umask(0o027):
        write_atomically(tmp_path / "deep" / "new.json", b"1")

    assert (tmp_path / "deep" / "new.json").read_bytes() == b"1"
    assert mode_of(tmp_path / "deep" / "new.json") == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o666, 0o400])
def test_the_mode_of_a_file_that_is_there_is_kept(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "private.json"
    path.write_bytes(b"old")
    path.chmod(mode)

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert mode_of(path) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_of_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)

    write_atomically(path, b"new")

    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed_and_stays_a_link(is_there: bool, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.json"
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"old")
    link = tmp_path / "link.json"
    link.symlink_to(Path("elsewhere") / "real.json")

    write_atomically(link, b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_links_planted_under_predictable_names_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    out = tmp_path / "out"
    out.mkdir()
    for name in (f".a.json.{os.getpid()}", ".a.json.partial", f"a.{os.getpid()}"):
        (out / name).symlink_to(victim)

    write_atomically(out / "a.json", b"new")

    assert victim.read_bytes() == b"precious"
    assert (out / "a.json").read_bytes() == b"new"
    assert not (out / "a.json").is_symlink()


def test_a_device_stays_a_device() -> None:
    write_atomically("/dev/null", b"gone")

    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_device_is_an_error_and_stays() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_atomically("/dev/full", b"x")

    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_named_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()

    write_atomically(pipe, b"through")
    reader.join()

    assert heard == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("is_file", [True, False])
def test_standard_output_is_written_between_what_is_printed(is_file: bool, tmp_path: Path) -> None:
    program = (
        "from neusight.predictors.files import write_atomically\n"
        "print('before'); write_atomically('/dev/stdout', b'data\\n'); print('after')\n"
    )
    path = tmp_path / "out.txt"

    with path.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=file if is_file else subprocess.PIPE, check=True
        )

    assert (path.read_bytes() if is_file else done.stdout) == b"before\ndata\nafter\n"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(b"old")

    with room_for(1000), pytest.raises(OSError, match=r"."):
        write_atomically(path, b"x" * 2000)

    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(b"old")

    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_a_folder_is_refused_and_stays(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, b"x")


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".json")

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
