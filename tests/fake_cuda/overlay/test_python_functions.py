"""A folder that the kernel refuses to rename on one disk is copied, and the old one removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from neusight.fake_cuda.overlay.python_functions import install_folder_renames
from neusight.fake_cuda.patching import Patches


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which the kernel renames files only, as overlayfs without redirects."""
    true = os.rename

    def rename(src: Any, dst: Any, **folders: Any) -> None:
        if os.path.isdir(src):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
        true(src, dst, **folders)

    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to("file")
    return tmp_path


def test_a_folder_is_copied_with_its_links(refused: Path) -> None:
    patches = Patches()
    install_folder_renames(patches)
    with patches.undo:
        (refused / "b").mkdir()
        os.rename(refused / "a", refused / "b")
        os.rename(refused / "b" / "file", refused / "file")

    assert not (refused / "a").exists()
    assert os.readlink(refused / "b" / "link") == "file"
    assert (refused / "file").read_text() == "x"


def test_a_full_folder_and_another_disk_are_refused_as_ever(refused: Path) -> None:
    patches = Patches()
    install_folder_renames(patches)
    with patches.undo:
        with pytest.raises(OSError, match="cross-device"):
            os.rename(refused / "a", "/dev/shm/neusight-renamed")
        (refused / "b").mkdir()
        (refused / "b" / "full").touch()
        with pytest.raises(OSError, match="not empty"):
            os.rename(refused / "a", refused / "b")

    assert (refused / "a" / "file").read_text() == "x"
