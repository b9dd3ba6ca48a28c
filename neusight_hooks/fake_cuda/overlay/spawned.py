"""Processes that a program starts: they share the store of the run."""

from __future__ import annotations

import contextlib
import multiprocessing.util
from typing import Any

from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files
from neusight.fake_cuda.overlay.writers import install_writers
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.store.store import Store


def install_spawned(patches: Patches, overlay: Overlay) -> None:
    """multiprocessing keeps its folder, and removes it itself when the process ends."""
    util: Any = multiprocessing.util
    temporary_folder = util.get_temp_dir

    def get_temp_dir() -> Any:
        folder = temporary_folder()
        overlay.store.record_removed(overlay.visible(folder))
        return folder

    patches.set(util, "get_temp_dir", get_temp_dir)


def attach(folder: str) -> Patches:
    """This process uses the store in `folder` until what is returned is restored."""
    patches = Patches()
    with contextlib.suppress(FileNotFoundError):  # the run is over
        overlay = Overlay(Store(folder))
        install_files(patches, overlay)
        install_writers(patches, overlay)
        install_spawned(patches, overlay)
    return patches
