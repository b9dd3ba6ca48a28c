"""Every private name of torch that neusight relies on, where it is used, and what fails without it.

The table is torch_internals.csv, a line for each name and package that uses it. A new release of
torch is tried against it first: `neusight doctor`, or `python benchmarks/platforms.py --torch X`.
tests/compatibility/test_torch_internals.py compares it with the sources. Columns:

- `name`: dotted, from `torch`; an attribute that only instances have stands below their class.
- `package`: what uses it.
- `feature`: what needs it, a key of `FEATURES`.
- `check`: how its presence is checked. `attribute`: it is looked up; `module`: it is imported;
  `source`: the source text or stub file of its module mentions it (names that a CPU build lacks,
  and attributes set in `__init__`); `self-check`: neusight.fake_cuda.core proves it in a process
  of its own; `none`: releases differ, and the code that uses it asks first.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from neusight.compatibility.releases import remedy_for_torch
from neusight.predictors.errors import UnsupportedTorchError

#: What needs a name, and what happens where it is missing.
FEATURES = {
    "opening": "UnsupportedTorchError before a forecast begins",
    "compiling": "torch.compile is forecast as eager, with a warning",
    "compile cache": "graphs are compiled again in each process",
    "distributed": "UnsupportedTorchError when a process group is created",
    "first use": "UnsupportedTorchError where a program first needs it",
    "CUDA build": "a program that uses it gets torch's own error",
    "measuring": "`neusight measure` skips or fails that case",
    "optional": "nothing: the code that uses it asks first",
}
_TABLE = Path(__file__).with_suffix(".csv")
#: Where torch declares what its C++ part defines, in a CPU build too.
_STUBS = "_C/__init__.pyi"


@dataclass(frozen=True)
class TorchInternal:
    """A private name of torch, and a package of neusight that relies on it."""

    name: str
    package: str
    feature: str
    check: str


@lru_cache(maxsize=1)
def table() -> tuple[TorchInternal, ...]:
    """The table, sorted by name.

    >>> sorted({row.feature for row in table() if row.package == "neusight.recording"})
    ['first use', 'opening']
    """
    with _TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(TorchInternal(**row) for row in csv.DictReader(file))


def missing(feature: str | None = None) -> list[TorchInternal]:
    """What the table lists (for `feature`) and the installed torch does not have.

    Imports the modules in question; those of `compiling` take seconds.

    >>> missing("opening")
    []
    """
    return _absent(row for row in table() if feature in (None, row.feature))


def require(feature: str) -> None:
    """UnsupportedTorchError, with the names, where the installed torch lacks what it needs. Looks
    names up and reads no source text, so that it costs a millisecond."""
    rows = [row for row in table() if row.feature == feature and row.check != "source"]
    _require(rows, FEATURES[feature])


def require_module(module: str) -> None:
    """As `require`, for what the table lists of a module of torch that was just imported."""
    rows = [row for row in table() if row.check == "attribute" and _is_in_module(row.name, module)]
    _require(rows, FEATURES["first use"])


def _is_in_module(name: str, module: str) -> bool:
    """Whether the module itself has the name, or a class of it, and no module below it."""
    if not name.startswith(f"{module}."):
        return False
    first, _, rest = name[len(module) + 1 :].partition(".")
    return not rest or first.lstrip("_")[0].isupper()


def _require(rows: list[TorchInternal], consequence: str) -> None:
    absent = [row.name for row in _absent(rows)]
    if absent:
        raise _unsupported(absent, consequence)


def error_of_missing_name(error: BaseException) -> UnsupportedTorchError | None:
    """The error to raise instead of an AttributeError or ImportError whose cause is that a name of
    the table is missing; None for all other errors."""
    if not isinstance(error, (AttributeError, ImportError)):
        return None
    name = error.name if isinstance(error, AttributeError) else _imported_name(error)
    owner = error.obj if isinstance(error, AttributeError) else None
    rows = [row for row in table() if name in row.name.split(".")]
    absent = [row.name for row in _absent(rows) if owner is None or _is_of_torch(owner)]
    return _unsupported(absent, str(error)) if absent else None


def _unsupported(names: list[str], consequence: str) -> UnsupportedTorchError:
    import torch

    names = list(dict.fromkeys(names))
    others = f" and {len(names) - 1} more (`neusight doctor` lists them)" if names[1:] else ""
    return UnsupportedTorchError(
        f"torch {torch.__version__} has no {names[0]}{others}, which neusight relies on "
        f"({consequence}). {remedy_for_torch(torch.__version__)}"
    )


def _absent(rows: Iterable[TorchInternal]) -> list[TorchInternal]:
    found = {row.name: row for row in rows}  # each name once, whatever uses it
    return [row for row in found.values() if not _CHECKS[row.check](row.name)]


def _imported_name(error: ImportError) -> str:
    """What `from torch.x import name` did not find; "" for other failures of an import."""
    found = re.match(r"cannot import name '(\w+)' from", str(error))
    return found[1] if found else (error.name or "").rpartition(".")[2]


def _is_of_torch(owner: object) -> bool:
    """Whether this is a module, class or object of torch's."""
    name = "__name__" if isinstance(owner, ModuleType) else "__module__"
    home = getattr(owner, name, "")
    return isinstance(home, str) and home.partition(".")[0] == "torch"


# -- checks --------------------------------------------------------------------------------------


def _has_attribute(name: str) -> bool:
    try:
        module, path = _split(name)
        found: Any = module
        for index, part in enumerate(path):
            if hasattr(found, part):
                found = getattr(found, part)
            else:
                found = getattr(_example(module, path[:index]), part)
    except (AttributeError, ImportError, KeyError):
        return False
    return True


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _is_mentioned(name: str) -> bool:
    if name.startswith("torch._C."):
        [folder] = import_module("torch").__path__
        text = _read(Path(folder) / _STUBS)
    else:
        module, _ = _split(name)
        text = _read(Path(module.__file__ or ""))
    return re.search(rf"\b{name.rpartition('.')[2]}\b", text) is not None


@lru_cache(maxsize=32)
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _split(name: str) -> tuple[ModuleType, list[str]]:
    """The innermost module of a dotted name, imported, and what lies below it."""
    parts = name.split(".")
    module = import_module(parts[0])
    for index in range(1, len(parts)):
        inner = ".".join(parts[: index + 1])
        if inner not in sys.modules:
            is_module = hasattr(module, "__path__") and not hasattr(module, parts[index])
            if not is_module or find_spec(inner) is None:
                return module, parts[index:]
        module = import_module(inner)
    return module, []


def _example(module: ModuleType, path: list[str]) -> Any:
    """An instance of a class, for attributes that the class itself lacks."""
    return _EXAMPLES[".".join([module.__name__, *path])]()


_EXAMPLES: dict[str, Callable[[], Any]] = {
    "torch._ops.OpOverload": lambda: import_module("torch").ops.aten.add.Tensor,
    "torch._ops.OpOverloadPacket": lambda: import_module("torch").ops.aten.add,
}
_CHECKS: dict[str, Callable[[str], bool]] = {
    "attribute": _has_attribute,
    "module": _is_module,
    "source": _is_mentioned,
    "self-check": lambda name: True,  # neusight.fake_cuda.core.self_check raises
    "none": lambda name: True,
}
