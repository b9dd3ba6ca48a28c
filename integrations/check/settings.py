"""A project's settings for checks: [tool.neusight] of its pyproject.toml."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from neusight.integrations.program.options import STATED, STATED_OF_BATCH, STATED_OF_RANKS
from neusight.predictors.errors import OptionError
from neusight.predictors.files import is_count, read_bytes, shown

#: Default file of baselines.
DEFAULT_BASELINE = "neusight.json"

#: Largest pyproject.toml that is read, bytes.
_MOST_BYTES = 2**20

#: Parts of a dotted name: the time that Python's reader takes grows with their square.
_MOST_PARTS = 64

#: What may be stated of all programs, or of one case.
_STATED = (*STATED, *STATED_OF_BATCH, *STATED_OF_RANKS)

_NAMES = tuple(sorted(("baseline", "cases", "gpu", "tolerance", *_STATED)))

#: What may be stated as a number as well.
_COUNTS = ("gpus_per_node", "ranks", "samples", "steps", "tokens", "world_size")


@dataclass(frozen=True)
class CaseSettings:
    """One case of the project: its command line, and what is stated of its options alone."""

    command: tuple[str, ...]
    stated: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """The project's choices; `cases` are by name, `tolerance` is as it was written, `stated` what
    is stated of the options of programs.

    [tool.neusight]
    gpu = "H100"                      # or several: ["H100", "L40S"]
    baseline = "neusight.json"
    [tool.neusight.tolerance]
    step_latency = "1 %"
    [tool.neusight.cases]
    small = "train.py --size small"
    large = { command = "train.py", steps = 3, calibration = "h100.json" }
    pipeline = { command = "train_pp.py", world_size = 8, ranks = "all-distinct" }
    """

    gpus: tuple[str, ...] = ()
    baseline: str = DEFAULT_BASELINE
    cases: Mapping[str, CaseSettings] = field(default_factory=dict)
    tolerance: Mapping[str, object] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)


def read_settings(folder: Path) -> Settings:
    """The settings of the pyproject.toml in `folder`; OptionError names an invalid setting."""
    path = folder / "pyproject.toml"
    table = _table(path)
    _require_known(table, _NAMES, "", path)
    gpu = table.get("gpu", [])
    return Settings(
        gpus=tuple(_texts([gpu] if isinstance(gpu, str) else gpu, "gpu", path)),
        baseline=_text(table.get("baseline", DEFAULT_BASELINE), "baseline", path),
        cases={
            name: _case(value, f"cases.{name}", path)
            for name, value in _mapping(table.get("cases", {}), "cases", path).items()
        },
        tolerance=_mapping(table.get("tolerance", {}), "tolerance", path),
        stated=_stated(table, "", path),
    )


def _table(path: Path) -> dict[str, Any]:
    try:
        text = read_bytes(path, most=_MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{path} cannot be read: {reason}.") from error
    if "neusight" not in text:
        return {}
    try:
        document = _toml(text)
    except RecursionError:
        raise OptionError(f"{path} is nested too deep to be settings.") from None
    except ValueError as error:
        raise OptionError(f"{path} is no TOML: {error}.") from error
    tools = document.get("tool", {})
    return _mapping(tools.get("neusight", {}) if isinstance(tools, dict) else {}, "", path)


def _toml(text: str) -> dict[str, Any]:
    if any(line.partition("=")[0].count(".") > _MOST_PARTS for line in text.splitlines()):
        raise ValueError(f"a name has more than {_MOST_PARTS} parts")
    for name in ("tomllib", "tomli"):  # in Python since 3.11; before, pytest installs tomli
        try:
            reader = import_module(name)
        except ModuleNotFoundError:
            continue
        parsed: dict[str, Any] = reader.loads(text)
        return parsed
    raise OptionError(
        "Python 3.10 has no reader for pyproject.toml: pip install tomli, or give the settings on "
        "the command line from a folder without that file."
    )


def _case(value: Any, name: str, path: Path) -> CaseSettings:
    """A command line, or a table with one and with options."""
    if not isinstance(value, dict):
        return CaseSettings(_command(value, name, path))
    _require_known(value, ("command", *_STATED), name, path)
    command = _command(value.get("command"), f"{name}.command", path)
    return CaseSettings(command, _stated(value, f"{name}.", path))


def _require_known(table: Mapping[str, Any], known: Sequence[str], name: str, path: Path) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise OptionError(
            f"{path} has an unknown setting {shown(unknown[0])} in [{_full(name)}]; known: "
            f"{', '.join(known)}."
        )


def _stated(table: Mapping[str, Any], inside: str, path: Path) -> dict[str, str]:
    """The options of programs that are stated, as text by name."""
    stated = {name: table[name] for name in _STATED if name in table}
    return {
        name: str(value)
        if name in _COUNTS and is_count(value)
        else _text(value, f"{inside}{name}", path)
        for name, value in stated.items()
    }


def _mapping(value: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{path}: [{_full(name)}] must be a table, not {shown(value)}.")
    return value


def _text(value: Any, name: str, path: Path) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{path}: {_full(name)} is {shown(value)}; it must be a text.")
    return value


def _texts(value: Any, name: str, path: Path) -> list[str]:
    if not isinstance(value, list):
        raise OptionError(f"{path}: {_full(name)} is {shown(value)}; it must be a text or several.")
    return [_text(item, name, path) for item in value]


def _command(value: Any, name: str, path: Path) -> tuple[str, ...]:
    words = _texts(value, name, path) if isinstance(value, list) else None
    if words is None:
        try:
            words = shlex.split(_text(value, name, path))
        except ValueError as error:
            raise OptionError(f"{path}: {_full(name)} is {shown(value)}: {error}.") from error
    if not words or words == ["-m"]:
        raise OptionError(f"{path}: {_full(name)} names no script.")
    return tuple(words)


def _full(name: str) -> str:
    return f"tool.neusight.{name}".rstrip(".")
