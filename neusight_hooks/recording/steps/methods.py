"""Methods of a module that call its parts, such as `model.sample()`: one call is one step."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

#: Frames above the call of a module in which its method is looked for.
_MAX_FRAMES = 200

_FOREIGN = ("torch.", "neusight.")


class MethodCall:
    """A call of a method, from outside of any module, that calls parts of its module.

    `end` is the position at which it returned, None while it runs: its frame holds an object that
    dies with it. Where `drafts`, it has another model generate instead, which is a part of the next
    call of its own module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        frame: FrameType,
        begin: int,
        position: Callable[[], int],
        *,
        drafts: bool = False,
    ) -> None:
        self.drafts = drafts
        self.module = weakref.ref(module)
        self.name = f"{type(module).__name__}.{frame.f_code.co_name}"
        self.end: int | None = None
        #: Ops that were recorded before it.
        self.begin = begin
        #: Ends of modules that it called, each with what was called.
        self.called: list[tuple[int, int]] = []
        lives_as_long = _HeldByFrame()
        frame.f_trace = lives_as_long
        self._reference = weakref.ref(lives_as_long, lambda _: self._returned(position()))

    def _returned(self, position: int) -> None:
        self.end = position

    def shift(self, count: int) -> None:
        """All positions are less by `count`: what lay before was taken away."""
        if self.end is not None:
            self.end -= count
        self.called = [(end - count, turn) for end, turn in self.called]

    @staticmethod
    def find(module: torch.nn.Module, begin: int, position: Callable[[], int]) -> MethodCall | None:
        """The outermost method that is running whose module contains the one that is called. None
        where there is none, where the module calls itself as `generate` does, which makes each
        such call a step, and under a debugger. Where a method of another module calls that
        `generate`, it is that method, which drafts."""
        found: tuple[torch.nn.Module, FrameType] | None = None
        frame: FrameType | None = sys._getframe(1)
        generates = False
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            owner = None if _is_foreign(frame) else _first_argument(frame)
            if owner is module:
                found, generates = None, True
            elif isinstance(owner, torch.nn.Module):
                contains = any(part is module for part in owner.modules())
                if contains and generates:
                    return None
                if contains or generates:
                    found = owner, frame
                if generates:
                    break
            frame = frame.f_back
        if found is None or sys.gettrace() is not None or not _is_free(found[1]):
            return None
        return MethodCall(*found, begin, position, drafts=generates)


class _HeldByFrame:
    """What a frame holds as its trace function, which Python calls under a debugger alone."""

    def __call__(self, *args: Any) -> None:
        return None


def _is_free(frame: FrameType) -> bool:
    return frame.f_trace is None or isinstance(frame.f_trace, _HeldByFrame)


def _is_foreign(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_FOREIGN)


def _first_argument(frame: FrameType) -> object:
    """The value of a function's first parameter, `self` of a method; None where it has none."""
    code = frame.f_code
    if not code.co_argcount or not code.co_flags & inspect.CO_NEWLOCALS:
        return None
    values = frame.f_locals
    first = values.get(code.co_varnames[0])
    if sys.version_info < (3, 13):
        values.clear()  # a copy, which would keep the program's tensors alive
    return first
