"""What is to be done with a module as soon as it is there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from neusight.compatibility.torch_internals import require_module
from neusight.fake_cuda.patching import Patches


def when_imported(patches: Patches, name: str, patch: Callable[[Any], None]) -> None:
    """Calls `patch` with the module `name`: now if it is loaded, else when it gets loaded.

    UnsupportedTorchError then, where a module of torch lacks a name that neusight relies on.
    """

    def checked(module: Any) -> None:
        require_module(name)
        patch(module)

    if name in sys.modules:
        checked(sys.modules[name])
        return
    finder = _Finder(name, checked)

    def undo() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    patches.on_restore(undo)
    sys.meta_path.insert(0, finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, patch = spec.loader, self._patch
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
