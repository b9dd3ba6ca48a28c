"""What needs the other processes themselves: an error names it, where a program would wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import UnansweredRankError
from neusight.recording.call_stack import call_site

#: Functions of a module, and what is said of them.
_REFUSED = {
    "torch.distributed.rpc": (
        ("init_rpc",),
        "calls functions of other processes, which are not run; a forecast covers collectives, "
        "sends and receives",
    ),
    "torch.distributed._symmetric_memory": (
        ("empty", "rendezvous"),
        "reads and writes the memory of other GPUs, which are not there; forecast the program with "
        "the collectives that this replaces",
    ),
}


def install_refusals(patches: Patches) -> None:
    """RPC and symmetric memory end at their first call with UnansweredRankError."""
    for module_name in _REFUSED:
        when_imported(patches, module_name, partial(_refuse, patches))


def _refuse(patches: Patches, module: Any) -> None:
    names, words = _REFUSED[module.__name__]
    for name in names:
        if hasattr(module, name):
            patches.set(module, name, _refusal(f"{module.__name__}.{name}", words))


def _refusal(name: str, words: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise UnansweredRankError(f"{name} at {call_site()} {words}")

    return refused
