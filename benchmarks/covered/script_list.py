"""Which public scripts are run, from which commit, by which command: the list in scripts.toml."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from covered import script_data
from covered.script_data import Maker

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it


@dataclass(frozen=True)
class Source:
    """Where scripts come from: a folder of the programs with its commit or release; an installed
    package where there is none."""

    folder: str
    address: str
    version: str


@dataclass(frozen=True)
class Meant:
    """The step that a script's author means, as a pattern of the words that say what it is, and
    its batch: 0 where the author counts none, None where a count depends on a tokenizer."""

    step: str
    samples: int | None = 0
    tokens: int | None = 0

    def differences(self, forecast: dict[str, Any]) -> str:
        """What a forecast has another way, in words."""
        stated = str(forecast["step_is"])
        found = [] if re.fullmatch(self.step, stated) else [f"the step is {stated!r}"]
        for name in ("samples", "tokens"):
            wanted, counted = getattr(self, name), forecast[f"{name}_per_step"]
            if wanted is not None and wanted != (counted or 0):
                found.append(f"{counted} {name} a step, meant are {wanted or 'none'}")
        return "; ".join(found)


@dataclass(frozen=True)
class Script:
    """A public script and how it is run. `command` is what follows `neusight run --gpu H100` and
    `options`, in the folder `inside`. `limit` is what it says where it meets a documented limit;
    `cannot` why it runs nowhere here, on a CPU either; `stub` what a user has and this did not."""

    name: str
    source: Source
    command: str
    inside: str = ""
    options: str = ""
    data: tuple[Maker, ...] = ()
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: str = ""
    cannot: str = ""
    stub: str = ""
    meant: Meant | None = None


def _scripts() -> tuple[Script, ...]:
    text = Path(__file__).with_name("scripts.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    return tuple(
        _script(group, row, document) for group in document["groups"] for row in group["scripts"]
    )


def _script(group: dict[str, Any], row: dict[str, Any], document: dict[str, Any]) -> Script:
    fields = {name: value for name, value in group.items() if name not in ("scripts", "common")}
    fields |= row
    fields["source"] = Source(**{"folder": "", **group["source"]})
    fields["command"] = row["command"].replace("{common}", group.get("common", ""))
    entries = [*group.get("data", ()), *row.get("data", ())]
    fields["data"] = tuple(maker for entry in entries for maker in _makers(entry, document))
    fields["needs"] = tuple(fields.get("needs", ()))
    path = os.environ.get("PATH", "")
    environment = fields.get("environment", {})
    fields["environment"] = {name: v.replace("{PATH}", path) for name, v in environment.items()}
    if step := fields.pop("step", None):
        counts = {name: step.get(name, 0) for name in ("samples", "tokens")}
        counts = {name: None if count == "any" else count for name, count in counts.items()}
        fields["meant"] = Meant(step["is"], **counts)
    return Script(**fields)


def _makers(entry: dict[str, Any], document: dict[str, Any]) -> list[Maker]:
    """What writes the files of an entry of `data`: its first key names the maker."""
    (name, path), *options = entry.items()
    given = dict(options)
    if name == "python":
        code = document["code"][path].replace("FOLDER", given.get("folder", ""))
        return [partial(script_data.python, code=code)]
    if "content_of" in given:
        given["content"] = document["code"][given.pop("content_of")]
    if "rows" in given:
        given["rows"] = document["rows"][given["rows"]] * given.pop("repeat")
    paths = [path.format(index) for index in range(given.pop("times", 1))]
    return [partial(getattr(script_data, name), path=path, **given) for path in paths]


SCRIPTS = _scripts()
