"""Attributes and functions replaced for the time of a forecast, and put back in reverse order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

_ABSENT = object()
#: What modules keep by name (`from os import remove`).
_KEPT = (FunctionType, BuiltinFunctionType, type)
_ANSWERS = "_neusight_answers"
#: Where what a module or a class is called begins, if it is torch's.
_TORCH = "torch"


class _Answer(NamedTuple):
    """What a function does instead, and its own code."""

    given: Callable[..., Any]
    before: CodeType


class _Change(NamedTuple):
    """An attribute that was replaced."""

    owner: Any
    name: str
    before: object
    value: object

    def take_back(self) -> None:
        """What undoing it does, too."""
        if self.before is _ABSENT:
            _remove(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Patches:
    """A stack of what is replaced; `restore` undoes it, also where the old value was None.

    How to undo a change is recorded before it is made, mostly as one call of a builtin: whatever
    interrupts, and wherever, each change is either not made or undone.
    """

    def __init__(self) -> None:
        #: What undoes all changes; leaving it does what `restore` does.
        self.undo = ExitStack()
        #: Functions that others stand for now, each with that other.
        self.replaced: list[tuple[Any, Any]] = []
        self._answered: set[str] = set()
        self._changes: list[_Change] = []
        #: How many blocks see torch as it was: modules load each other.
        self._num_as_it_was = 0
        self._switching = threading.Lock()
        #: How many names each module has before the first function or class is replaced.
        self._num_names: dict[str, int] | None = None

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replaces `owner.name`. An inherited attribute is shadowed, and unshadowed at restore."""
        old = vars(owner).get(name, _ABSENT)
        if self._num_names is None and isinstance(old, _KEPT) and isinstance(value, _KEPT):
            self._num_names = {name: len(names) for name, names in _names_of_modules()}
            self.undo.callback(self._put_back_in_modules)
        if old is _ABSENT:
            self.undo.callback(_remove, owner, name)
        else:
            self.undo.callback(setattr, owner, name, old)
            if isinstance(old, FunctionType | BuiltinFunctionType) and callable(value):
                self.replaced.append((old, value))
        setattr(owner, name, value)
        self._changes.append(_Change(owner, name, old, value))

    @contextmanager
    def torch_as_it_was(self) -> Iterator[None]:
        """Inside, torch's own attributes and functions are as before, for code of torch that asks
        them or keeps them in tables where it is loaded."""
        with self._switching:
            self._num_as_it_was += 1
            changes = [change for change in self._changes if _is_of_torch(change.owner)]
            if self._num_as_it_was == 1:
                for change in reversed(changes):
                    change.take_back()
        try:
            yield
        finally:
            with self._switching:
                self._num_as_it_was -= 1
                if self._num_as_it_was == 0:
                    for change in changes:
                        setattr(change.owner, change.name, change.value)

    def replace_code(
        self, owner: Any, name: str, replacement: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Replaces what the function `owner.name` does, also for those who imported it before.

        The function object stays and its code is exchanged; what is no plain function (a class, a
        builtin) is replaced as an attribute. Returns what it did before. An answer that an earlier
        forecast could not take back is taken over, and what was before it comes back.
        """
        function = vars(owner).get(name, _ABSENT)
        if not isinstance(function, FunctionType) or function.__code__.co_freevars:
            original = getattr(owner, name, replacement)
            self.set(owner, name, replacement)
            return cast("Callable[..., Any]", original)
        key = f"{function.__module__}.{function.__qualname__}"
        if key in self._answered:
            raise KeyError(f"{key} is answered already")
        self._answered.add(key)
        self.undo.callback(_forget_if_empty, function.__globals__)
        answers: dict[str, _Answer] = function.__globals__.setdefault(_ANSWERS, {})
        code = answers[key].before if key in answers else function.__code__
        original = FunctionType(code, function.__globals__, name, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        self.undo.callback(answers.pop, key, None)
        self.undo.callback(setattr, function, "__code__", code)
        answers[key] = _Answer(replacement, code)
        function.__code__ = _asking(name, key)
        self._changes.append(_Change(function, "__code__", code, function.__code__))
        return original

    def _put_back_in_modules(self) -> None:
        """Modules that were imported meanwhile, and kept by name what stood there, get what stands
        there from now on: else it would serve them in a later forecast, too."""
        originals: dict[object, object] = {}
        for change in self._changes:
            if isinstance(change.value, _KEPT) and isinstance(change.before, _KEPT):
                # One value may stand for several: the name distinguishes them.
                originals[id(change.value), change.name] = change.before
                originals.setdefault(id(change.value), change.before)
        num_names = self._num_names or {}
        for module, names in _names_of_modules():
            if module != "__main__" and num_names.get(module) == len(names):
                continue
            for name, value in list(names.items()):
                if id(value) in originals:
                    names[name] = originals.get((id(value), name), originals[id(value)])

    def put(self, table: MutableMapping[Any, Any], key: object, value: object) -> None:
        """Sets `table[key]`; at restore it is as before, or gone."""
        if key in table:
            self.undo.callback(table.__setitem__, key, table[key])
        else:
            self.undo.callback(table.pop, key, None)
        table[key] = value

    def on_restore(self, undo: Callable[[], object]) -> None:
        """Adds something of one's own to undo."""
        self.undo.callback(undo)

    def restore(self) -> None:
        """Puts everything back, last change first; goes on past a failure, and raises it then."""
        self.undo.close()


def _names_of_modules() -> list[tuple[str, dict[str, Any]]]:
    """The modules but for neusight's own, with what they hold."""
    return [
        (name, _own_names(module))
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not name.startswith("neusight.")
    ]


#: What a module holds, whatever its class makes of `__dict__`.
_own_names: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__


def _asking(name: str, key: str) -> CodeType:
    """The code of a function that looks its answer up, in its own module."""
    namespace: dict[str, Any] = {}
    answer = f"{_ANSWERS}[{key!r}][0]"
    exec(f"def {name}(*args, **kwargs): return {answer}(*args, **kwargs)", namespace)
    code: CodeType = namespace[name].__code__
    return code


def _is_of_torch(owner: Any) -> bool:
    name = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", "")
    return isinstance(name, str) and name.partition(".")[0] == _TORCH


def _remove(owner: Any, name: str) -> None:
    if name in vars(owner):
        delattr(owner, name)


def _forget_if_empty(module: dict[str, Any]) -> None:
    if not module.get(_ANSWERS):
        module.pop(_ANSWERS, None)
