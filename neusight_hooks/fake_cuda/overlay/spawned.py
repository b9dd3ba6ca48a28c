"""Processes that multiprocessing starts anew (spawn, forkserver): they share the run's store."""

from __future__ import annotations

import contextlib
import multiprocessing.util
from typing import Any

from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files
from neusight.fake_cuda.overlay.writers import install_writers
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.store.store import Store

__all__ = ["attach", "install_spawned"]

#: Parts of the programs with which multiprocessing starts a process that runs the script's code.
_STARTS = ("spawn_main", "forkserver")


def install_spawned(patches: Patches, overlay: Overlay) -> None:
    """Processes started from now on attach to the store before they do anything else."""
    util: Any = multiprocessing.util
    original = util.spawnv_passfds

    def spawn(path: Any, arguments: Any, descriptors: Any) -> Any:
        words = [word.decode() if isinstance(word, bytes) else word for word in arguments]
        place = words.index("-c") + 1 if "-c" in words else len(words)
        if place < len(words) and any(start in words[place] for start in _STARTS):
            folder = overlay.store.folder
            words[place] = f"from {__name__} import attach; attach({folder!r}); {words[place]}"
        return original(path, words, descriptors)

    patches.set(util, "spawnv_passfds", spawn)
    temporary_folder = util.get_temp_dir

    def get_temp_dir() -> Any:
        """multiprocessing keeps its folder, and removes it itself when the process ends."""
        folder = temporary_folder()
        overlay.store.note_lost(overlay.visible(folder))
        return folder

    patches.set(util, "get_temp_dir", get_temp_dir)


def attach(folder: str) -> None:
    """This process, and those that it starts, use the store in `folder` as long as they live."""
    with contextlib.suppress(FileNotFoundError):  # the run is over
        overlay = Overlay(Store(folder))
        patches = Patches()
        install_files(patches, overlay)
        install_writers(patches, overlay)
        install_spawned(patches, overlay)
