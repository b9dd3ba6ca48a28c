"""A case of coverage, and how it came out."""

from __future__ import annotations

import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from neusight.predictors.errors import NeusightError

#: ok: as on a GPU. difference: it ran, and a shape, dtype or stride is another one. refused: a
#: documented limit, with a message that names it. failed: anything else. skipped: it could not be
#: tried here (a package is absent, a download is needed, the CPU cannot run it either).
Status = Literal["ok", "difference", "refused", "failed", "skipped"]

STATUSES: tuple[Status, ...] = get_args(Status)

#: The longest reason that is kept, in characters.
LONGEST_REASON = 240


class CannotTry(Exception):
    """A whole kind, or one case, cannot be tried here; the text says what it needs."""


@dataclass(frozen=True)
class Outcome:
    """How a case came out; a reason for all that are not ok. `version` is what was tried: of torch,
    of a package, or the commit of a repository."""

    status: Status
    reason: str = ""
    version: str = ""


@dataclass(frozen=True)
class Case:
    """Something to try. `run` is called in a process that is not the driver's: one that runs many
    cases and is started again when it dies, or one for this case alone. Its children are ended
    with it after `limit_s`. An exception that it lets through becomes an outcome (`outcome_of`)."""

    name: str
    run: Callable[[], Outcome]
    is_alone: bool = False
    limit_s: float = 60.0
    is_sampled: bool = False


def outcome_of(error: BaseException, *, version: str = "") -> Outcome:
    """What an exception says of its case: neusight's own errors are refusals."""
    if isinstance(error, CannotTry):
        return Outcome("skipped", plain(str(error)), version)
    status: Status = "refused" if isinstance(error, NeusightError) else "failed"
    return Outcome(status, plain(f"{type(error).__name__}: {error}"), version)


def plain(text: str) -> str:
    """A message as a table keeps it: one line, nothing of this machine or of this run."""
    for folder in _folders():
        text = text.replace(folder, "…")
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1].rstrip() + "…"


def _folders() -> list[str]:
    root = Path(__file__).resolve().parents[2]
    found = {
        *(str(root), str(Path.home()), tempfile.gettempdir(), sys.prefix, sys.base_prefix),
        *(path for path in sys.path if path.endswith("site-packages")),
        sysconfig.get_paths()["stdlib"],
    }
    return sorted((path for path in found if len(path) > 1), key=len, reverse=True)
