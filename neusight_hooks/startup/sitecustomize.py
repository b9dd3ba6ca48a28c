"""Python imports this at its start where a recorded program started it: it joins the forecast."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _leave_path() -> None:
    """The program finds neither this folder nor this module, but the one that it hides."""
    here = os.path.dirname(__file__)  # noqa: PTH120  (every start of Python pays for imports)
    sys.path[:] = [path for path in sys.path if path != here]
    own = sys.modules.pop("sitecustomize")
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is None or hidden.loader is None:
        sys.modules["sitecustomize"] = own
        return
    module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(hidden)
    hidden.loader.exec_module(module)


def _join() -> None:
    """Another Python than the one of the forecast has another torch, and is left alone."""
    if os.environ.get("NEUSIGHT_PREFIX") != sys.prefix:
        return
    try:
        from neusight.child_process import join
    except ImportError:
        return
    join()


if __name__ == "sitecustomize":
    _leave_path()
    _join()
