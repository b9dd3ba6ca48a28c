"""Folders that packages keep for themselves: rebuilt where they are missing, so left alone."""

from __future__ import annotations

import os

#: Variables that say where a package keeps its cache.
_VARIABLES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "PYTHONPYCACHEPREFIX",
)

#: Where they are without such a variable.
_USUAL = ("~/.cache", "~/.triton", "~/.nv", "~/.config/matplotlib", "~/.ipython")


def cache_folders() -> list[str]:
    """Absolute, real paths of the caches' folders, whether they exist or not; none that holds the
    working directory (TORCH_HOME=.), where the user's own files are."""
    here = os.path.realpath(os.curdir) + "/"
    stated = [os.environ[name] for name in _VARIABLES if os.environ.get(name)]
    usual = [os.path.expanduser(path) for path in _USUAL]
    found = {os.path.realpath(path) for path in (*stated, *usual)} - {"/"}
    return sorted(path for path in found if not here.startswith(path + "/"))
