"""Whether the stub of a package has what the code that looks for it imports from it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

#: Handlers of these take a failed import for a package that is not installed.
_ABSENCE = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")

#: Modules whose functions show whether a package is installed.
_QUERIES = ("importlib.util", "importlib.metadata", "pkgutil")

#: What every stub has besides the names of its table.
_ALWAYS = ("__version__", "*")

#: Module and name (empty for `import module`) of an import.
_Import = tuple[str, str]


def is_optional(frame: FrameType, between: Iterable[str]) -> bool:
    """Whether the code of this frame goes on where the package is absent: it queries for it, or
    handles the failure of its import. `between` are the modules that the query went through."""
    if any(name in _QUERIES or name.startswith("importlib.metadata.") for name in between):
        return True
    tree = _tree(frame.f_code.co_filename)
    return tree is not None and any(
        statement.lineno <= frame.f_lineno <= (statement.end_lineno or statement.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and _handles_absence(node)
        for statement in node.body
    )


def lacks_what_is_imported(
    package: str, frame: FrameType, modules: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether a module of the asking package, or the asking file where it is in no package, imports
    at its top level what `modules` do not have. A part that fails to import leaves such a package
    divided: one of its modules takes the stub for installed, another for absent."""
    return any(
        not _has(modules, module, name)
        for path in _files_of(frame)
        for module, name in _imports_of(path, package)
    )


def _has(modules: Mapping[str, Mapping[str, Any]], module: str, name: str) -> bool:
    held = modules.get(module)
    if held is None:
        return False
    is_held = name in held or f"{module}.{name}" in modules or "__getattr__" in held
    return not name or name in _ALWAYS or is_held


def _files_of(frame: FrameType) -> tuple[str, ...]:
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    folders = getattr(sys.modules.get(top), "__path__", None)
    return _files_in(tuple(folders)) if folders else (frame.f_code.co_filename,)


@cache
def _files_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(path) for folder in folders for path in sorted(Path(folder).rglob("*.py")))


@cache
def _imports_of(path: str, package: str) -> tuple[_Import, ...]:
    """What a file imports of the package when it is itself imported."""
    try:
        if package not in Path(path).read_text(encoding="utf-8", errors="ignore"):
            return ()
    except OSError:  # code that has no file: a notebook's, or text that was executed
        return ()
    tree = _tree(path)
    found = () if tree is None else _imports_in(tree.body)
    return tuple(item for item in found if item[0].partition(".")[0] == package)


@cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_text(encoding="utf-8", errors="ignore"))
    except (OSError, SyntaxError, ValueError):
        return None


def _imports_in(statements: Iterable[ast.stmt]) -> Iterator[_Import]:
    """Not those in functions, which run where the program calls them."""
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            yield from ((statement.module or "", alias.name) for alias in statement.names)
        elif isinstance(statement, ast.Try):
            handlers = [item for handler in statement.handlers for item in handler.body]
            # `except ImportError:` with another import names another place of the same thing
            yield from tuple(_imports_in(handlers)) or _imports_in(statement.body)
            yield from _imports_in((*statement.orelse, *statement.finalbody))
        elif isinstance(statement, ast.If):
            yield from () if _is_for_types(statement.test) else _imports_in(statement.body)
            yield from _imports_in(statement.orelse)
        elif isinstance(statement, ast.With | ast.ClassDef):
            yield from _imports_in(statement.body)


def _handles_absence(node: ast.Try) -> bool:
    caught = [handler.type for handler in node.handlers]
    return None in caught or any(
        isinstance(part, ast.Name) and part.id in _ABSENCE
        for item in caught
        for part in (item.elts if isinstance(item, ast.Tuple) else (item,))
    )


def _is_for_types(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
