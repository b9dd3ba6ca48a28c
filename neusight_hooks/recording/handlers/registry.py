"""The functions that run ops in place of torch's fake kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neusight.recording.recorder import Handler

__all__ = ["HANDLERS", "Args", "Kwargs", "handles"]

#: What an op was called with.
Args = Sequence[Any]
Kwargs = Mapping[str, Any]

#: By the overload that they run.
HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers how an op whose result depends on values is run."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register
