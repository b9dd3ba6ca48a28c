"""The private names of torch that the sources use, read from their syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from places import ROOT

_FLOORS = {
    "predictors": "neusight.predictors",
    "neusight_hooks": "neusight",
    "integrations": "neusight.integrations",
}
#: Packages whose strings may name attributes of torch (elsewhere they are parts of names of
#: kernels, keys of JSON and the like).
_PATCHING = ("neusight.fake_cuda", "neusight.recording", "neusight.stubs")
_PRIVATE = re.compile(r"_(?!_)\w+")
_DOTTED = re.compile(r"torch(\.\w+)+")
_ASSIGNED = (ast.Assign, ast.AnnAssign, ast.NamedExpr)


@dataclass
class Uses:
    """What the modules of one package use."""

    #: Dotted private names that could be resolved, each with a place.
    dotted: dict[str, str] = field(default_factory=dict)
    #: Private attributes of objects that could not be resolved, and private names in strings.
    loose: dict[str, str] = field(default_factory=dict)
    #: All identifiers, also those inside of strings that are dotted names.
    identifiers: set[str] = field(default_factory=set)


def packages() -> set[str]:
    """Those of the sources, of at most three parts."""
    return {_package(_module(path)) for path in _files()}


@cache
def uses_by_package() -> dict[str, Uses]:
    """By package."""
    own: set[str] = set()
    found: dict[str, Uses] = {}
    for path in _files():  # one tree at a time: Python's collector looks through all that are kept
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        own.update(_defined(nodes))
        module = _module(path)
        _collect(nodes, module, found.setdefault(_package(module), Uses()))
    for uses in found.values():
        uses.loose = {name: place for name, place in uses.loose.items() if name not in own}
    return found


def _files() -> Iterator[Path]:
    for floor in _FLOORS:
        yield from sorted((ROOT / floor).rglob("*.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([_FLOORS[parts[0]], *parts[1:]])


def _package(module: str) -> str:
    return ".".join(module.split(".")[:-1][:3])


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a file defines: those of its own private attributes are not torch's."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("self", "cls"):
            yield from [node.attr] if isinstance(node.ctx, ast.Store) else []


def _collect(nodes: Sequence[ast.AST], module: str, uses: Uses) -> None:
    names = _aliases(nodes)
    may_patch = module.startswith(_PATCHING)
    for node in nodes:
        place = f"{module}:{getattr(node, 'lineno', 0)}"
        for dotted in _dotted_names(node, names):
            if _is_private(dotted):
                uses.dotted.setdefault(dotted, place)
        if isinstance(node, ast.Attribute):
            uses.identifiers.add(node.attr)
            if _PRIVATE.fullmatch(node.attr) and _resolved(node, names) is None:
                uses.loose.setdefault(node.attr, place)
        elif isinstance(node, ast.alias):
            uses.identifiers.update(node.name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[\w.]+", node.value):
                uses.identifiers.update(node.value.split("."))
            if may_patch and _PRIVATE.fullmatch(node.value):
                uses.loose.setdefault(node.value, place)


def _is_private(dotted: str) -> bool:
    is_op = dotted.startswith("torch.ops.")  # those have schemas and a registry of their own
    return not is_op and any(_PRIVATE.fullmatch(part) for part in dotted.split("."))


def _aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """What names of the file stand for, where that is torch or something of it."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    assigned = [node for node in nodes if isinstance(node, _ASSIGNED)] if names else []
    for _ in range(2):  # an alias of an alias
        for node in assigned:
            target, value = _assigned(node)
            dotted = value and _resolved(value, names)
            if target and dotted:
                names.setdefault(target, dotted)
    return names


def _is_torch(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"


def _assigned(node: ast.AST) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        target = node.target
    else:
        return "", None
    return (target.id, node.value) if isinstance(target, ast.Name) else ("", None)


def _dotted_names(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_torch(alias.name))
    elif isinstance(node, ast.ImportFrom) and _is_torch(node.module):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if _DOTTED.fullmatch(node.value):
            yield node.value
    elif isinstance(node, ast.expr):
        dotted = _resolved(node, names)
        if dotted:
            yield dotted
    if isinstance(node, ast.Call):  # patches.set(torch._C, "_name", ...), hasattr(...) and others
        for owner, name in zip(node.args, node.args[1:], strict=False):
            dotted, text = _resolved(owner, names), _text(name)
            if dotted and re.fullmatch(r"[A-Za-z_][\w.]*", text):
                yield f"{dotted}.{text}"


def _resolved(node: ast.AST, names: dict[str, str]) -> str | None:
    """The dotted name of torch that an expression stands for."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, names)
        return owner and f"{owner}.{node.attr}"
    if isinstance(node, ast.Call) and node.args:
        function = ast.unparse(node.func)
        if function in ("import_module", "importlib.import_module", "sys.modules.get"):
            return _text(node.args[0]) if _is_torch(_text(node.args[0])) else None
        if function == "getattr" and len(node.args) > 1 and _text(node.args[1]):
            owner = _resolved(node.args[0], names)
            return owner and f"{owner}.{_text(node.args[1])}"
    if isinstance(node, ast.Subscript):
        key = _text(node.slice)
        if ast.unparse(node.value) == "sys.modules":
            return key if _is_torch(key) else None
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "vars" and key:
            owner = _resolved(node.value.args[0], names)
            return owner and f"{owner}.{key}"
    return None


def _text(node: ast.AST) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""  # type: ignore[attr-defined]  # checked
