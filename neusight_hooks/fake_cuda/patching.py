"""Attributes and functions replaced for the time of a forecast, and put back in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

__all__ = ["Patches"]

_ABSENT = object()
_ANSWERS = "_neusight_answers"


class Patches:
    """A stack of what was replaced; `restore` undoes it, also where the old value was None."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replaces `owner.name`. An inherited attribute is shadowed, and unshadowed at restore."""
        old = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        setattr(owner, name, value)
        self._undo.append(undo)

    def answer(self, owner: Any, name: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
        """Replaces what the function `owner.name` does, also for those who imported it before.

        The function object stays and its code is exchanged; what is no plain function (a class, a
        builtin) is replaced as an attribute. Returns what it did before.
        """
        function = vars(owner).get(name, _ABSENT)
        if not isinstance(function, FunctionType) or function.__code__.co_freevars:
            original = getattr(owner, name, replacement)
            self.set(owner, name, replacement)
            return cast("Callable[..., Any]", original)
        key = f"{function.__module__}.{function.__qualname__}"
        answers = function.__globals__.setdefault(_ANSWERS, {})
        if key in answers:
            raise KeyError(f"{key} is answered already")
        answers[key] = replacement
        original = FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        namespace: dict[str, Any] = {}
        exec(f"def {name}(*args, **kwargs): return {_ANSWERS}[{key!r}](*args, **kwargs)", namespace)
        function.__code__ = namespace[name].__code__

        def undo() -> None:
            function.__code__ = original.__code__
            answers.pop(key, None)
            if not answers:
                function.__globals__.pop(_ANSWERS, None)

        self._undo.append(undo)
        return original

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Adds something of one's own to undo."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Puts everything back, last change first; goes on past a failure and raises the first."""
        first: BaseException | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
