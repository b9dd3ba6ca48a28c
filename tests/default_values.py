"""The numbers that functions and values of a package take where none are given."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from types import ModuleType
from typing import Any


def numbers_by_default(package: str) -> list[str]:
    """A function, method or class a line, with the numbers."""
    root = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, f"{package}.")]
    lines = []
    for name in [package, *names]:
        for owner, defaults in _owners(importlib.import_module(name)):
            numbers = {key: value for key, value in defaults.items() if type(value) in (int, float)}
            if numbers:
                shown = ", ".join(f"{key}={value!r}" for key, value in numbers.items())
                lines.append(f"{name.removeprefix(f'{package}.')}.{owner}: {shown}")
    return sorted(lines)


def _owners(module: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, item in vars(module).items():
        if getattr(item, "__module__", None) != module.__name__:
            continue
        if isinstance(item, type):
            yield name, _of_fields(item)
            for method, function in vars(item).items():
                if inspect.isfunction(function) and function.__qualname__.startswith(name):
                    if not method.startswith("__") or method == "__call__":
                        yield f"{name}.{method}", _of_parameters(function)
                    elif method == "__init__" and not is_dataclass(item):
                        yield f"{name}()", _of_parameters(function)
        elif inspect.isfunction(inspect.unwrap(item)):
            yield name, _of_parameters(inspect.unwrap(item))


def _of_fields(item: type) -> dict[str, Any]:
    if is_dataclass(item):
        return {each.name: each.default for each in fields(item) if each.default is not MISSING}
    return dict(getattr(item, "_field_defaults", {}))


def _of_parameters(function: Any) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
