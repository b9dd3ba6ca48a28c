"""Folders that overlayfs cannot rename where an ordinary user mounted it: copied, as `mv` does."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from typing import Any

from neusight.fake_cuda.patching import Patches

__all__ = ["install_folder_renames"]


def install_folder_renames(patches: Patches) -> None:
    """os.rename and os.replace of a folder that was there before work in a copy-on-write view."""
    for name in ("rename", "replace"):
        patches.set(os, name, _renaming(getattr(os, name)))


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    # Without the `redirect_dir` that only root may use, EXDEV stands for what is not implemented
    # (Documentation/filesystems/overlayfs.rst, "renaming directories").
    def rename(src: Any, dst: Any, **folders: Any) -> None:
        try:
            original(src, dst, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not _is_folder_of_one_disk(src, dst):
                raise
            if os.path.isdir(dst):
                os.rmdir(dst)
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return rename


def _is_folder_of_one_disk(src: Any, dst: Any) -> bool:
    if os.path.islink(src) or not os.path.isdir(src):
        return False
    above = os.path.dirname(os.path.abspath(os.fspath(dst)))
    return os.stat(src).st_dev == os.stat(above).st_dev
