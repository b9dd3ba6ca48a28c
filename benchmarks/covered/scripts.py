"""Public scripts, each run unmodified by `neusight run`, at small sizes by its own flags.

A script lies in the folder of public programs (`NEUSIGHT_PROGRAMS`, `--programs`; else
`../shared/programs`), a checkout or an unpacked sdist each, or in an installed package. Nothing of
it belongs to this project.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import neusight.integrations
import neusight.predictors
from covered.cases import CannotTry, Case, Outcome, plain
from covered.script_list import SCRIPTS, Script, Source

#: The environment variable that names the folder of programs.
PROGRAMS_VARIABLE = "NEUSIGHT_PROGRAMS"

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "programs"

#: What a script may take with its forecast, seconds.
LIMIT_S = 900.0

#: No script reaches the network: what it would download is said to be missing.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled"}


def cases() -> Iterator[Case]:
    """A case for each script of the list."""
    for script in SCRIPTS:
        yield Case(script.name, partial(tried, script), is_alone=True, limit_s=LIMIT_S)


def tried(script: Script) -> Outcome:
    """Runs a script in a copy of its folder, with its tiny data, and judges what came of it."""
    for module in script.needs:
        if importlib.util.find_spec(module) is None:
            raise CannotTry(f"needs the package {module}")
    if script.cannot:
        raise CannotTry(script.cannot)
    with tempfile.TemporaryDirectory(prefix="public-script-") as place:
        folder = Path(place) / "program"
        version = _copied(script.source, folder)
        working = folder / script.inside
        working.mkdir(parents=True, exist_ok=True)
        for make in script.data:
            make(working)
        figures = Path(place) / "forecast.json"
        done = subprocess.run(
            command(script, figures),
            cwd=working,
            env={**os.environ, **_OFFLINE, **script.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return judged(script, done.returncode, done.stdout, figures, version)


def command(script: Script, figures: Path) -> list[str]:
    """The command line of a script's forecast."""
    neusight = [sys.executable, "-m", "neusight", "run", "--gpu", "H100", "--json", str(figures)]
    scripts = sysconfig.get_path("scripts")
    words = shlex.split(script.options) + shlex.split(script.command)
    return neusight + [word.replace("{bin}", scripts) for word in words]


def judged(script: Script, code: int, stated: str, figures: Path, version: str) -> Outcome:
    """Whether the script ran to a forecast of its author's step and batch, or met the limit that it
    is to meet."""
    if script.limit:
        if code != 0 and script.limit in " ".join(stated.split()):
            return Outcome("refused", script.limit, version)
        return Outcome("failed", plain(f"not refused ({code}): {_end(stated)}"), version)
    if code != 0:
        return Outcome("failed", plain(f"exit code {code}: {_end(stated)}"), version)
    if any(f'File "{folder}' in stated for folder in _own_folders()):
        return Outcome("failed", plain(f"a traceback of neusight: {_end(stated)}"), version)
    forecast = json.loads(figures.read_text())
    if not forecast["num_kernels"]:
        return Outcome("failed", "the forecast has no kernels", version)
    notes = [script.stub, _stubs(script), "" if script.meant else "no step of its own"]
    wrong = script.meant.differences(forecast) if script.meant else ""
    reason = plain("; ".join(filter(None, (wrong, *notes))))
    return Outcome("difference" if wrong else "ok", reason, version)


def _stubs(script: Script) -> str:
    """Says so where a script's torchvision is one for CUDA beside a torch for the CPU: it can only
    be imported over stubs of CUDA's libraries, which a user's installation does not need."""
    if "torchvision" not in script.needs or torch.version.cuda:
        return ""
    import torchvision

    stubbed = bool(getattr(torchvision.version, "cuda", None))
    return f"torchvision {torchvision.__version__} over stubs of CUDA's libraries" * stubbed


def _own_folders() -> list[str]:
    """Where neusight's code lies: the frames of a traceback that names it are a bug. Packages may
    log tracebacks of their own (bitsandbytes, for the CUDA libraries that it misses)."""
    rooms = (neusight, neusight.predictors, neusight.integrations)
    return [str(Path(str(room.__file__)).parent) for room in rooms]


def _copied(source: Source, folder: Path) -> str:
    """Copies a program to a folder; its version."""
    if not source.folder:
        folder.mkdir()
        return source.version
    programs = Path(os.environ.get(PROGRAMS_VARIABLE) or _BESIDE)
    found = programs / source.folder
    if not found.is_dir():
        raise CannotTry(f"needs {source.folder} ({source.address}) in the folder of programs")
    shutil.copytree(found, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    noted = found / "COMMIT"
    commit = noted.read_text().strip() if noted.is_file() else source.version
    return f"{source.address} {commit[: len(source.version)]}"


def _end(stated: str) -> str:
    """The last words that tell why."""
    lines = [line for line in stated.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or [""])[-1]
