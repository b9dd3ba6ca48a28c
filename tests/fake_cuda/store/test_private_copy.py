"""Private copies: content, mode and times; what is too large, and a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from neusight.fake_cuda.store.private_copy import MAX_COPY_BYTES, copy_privately


def copied(source: Path, target: Path, *, empty: bool = False) -> None:
    copy_privately(SimpleNamespace(**vars(os)), "as given", str(source), str(target), empty=empty)


def test_a_copy_has_content_mode_and_times(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content" * 1000)
    source.chmod(0o640)
    os.utime(source, ns=(10**18, 10**18))

    copied(source, target)

    assert target.read_bytes() == source.read_bytes()
    assert (target.stat().st_mode, target.stat().st_mtime_ns) == (source.stat().st_mode, 10**18)


def test_what_is_overwritten_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"content")

    copied(tmp_path / "source", tmp_path / "target", empty=True)

    assert (tmp_path / "target").read_bytes() == b""


def test_a_file_too_large_to_copy_is_refused_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(MAX_COPY_BYTES + 1)  # takes no room

    def cannot_share(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "ioctl", cannot_share)

    with pytest.raises(OSError, match=r"1\.0 GiB.*--allow-writes") as caught:
        copied(tmp_path / "huge", tmp_path / "target")

    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, "as given")
    assert not (tmp_path / "target").exists()


def test_a_full_disk_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"content")

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "sendfile", full)
    monkeypatch.setattr(fcntl, "ioctl", full)

    with pytest.raises(OSError, match=r"No space left.*TMPDIR.*--allow-writes"):
        copied(tmp_path / "source", tmp_path / "target")

    assert not (tmp_path / "target").exists()
