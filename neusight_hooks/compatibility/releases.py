"""Where forecasts are proven to run, and the nearest way to get there from anywhere else."""

from __future__ import annotations

import platform
import re
import sys

from neusight.predictors.errors import UnsupportedTorchError

#: Newest patch of each release of torch that was tried (PLATFORMS.md), and the first Python that
#: has wheels of it. Others must pass the self-check.
TESTED_TORCH = {
    "2.11.0": (3, 10),
    "2.12.1": (3, 10),
    "2.13.0": (3, 10),
    "2.15.0": (3, 11),
}
#: Pythons that were tried, first and last.
_PYTHONS = ((3, 10), (3, 13))

#: Stands above any release.
_UNKNOWN = (99, 0)

#: Where torch cannot be patched (macOS, Windows, arm64): builds a container in a clone of neusight,
#: and forecasts the script of the working directory in it.
CONTAINER_BUILD = "docker build --platform linux/amd64 -t neusight ."
CONTAINER_RUN = (
    'docker run --rm --platform linux/amd64 -v "${PWD}:/work" neusight run --gpu H100 train.py'
)


def refuse_platform() -> None:
    """UnsupportedTorchError, with a command that works there, but on Linux x86-64."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Linux", "x86_64"):
        return
    raise UnsupportedTorchError(
        f"neusight cannot forecast on {system} {machine}: taking the CUDA path without CUDA is "
        "proven on Linux x86-64 only. Docker provides one. In a clone of neusight: "
        f"{CONTAINER_BUILD}; then in the folder of train.py: {CONTAINER_RUN}"
    )


def refuse_torch(version: str, *, is_rocm: bool) -> None:
    """UnsupportedTorchError for a torch that is not worth a try."""
    if is_rocm:
        raise UnsupportedTorchError(
            f"torch {version} is a ROCm build, which neusight cannot patch; AMD GPUs are still "
            f"available as targets. {remedy_for_torch(version)}"
        )
    if _release(version) < _release(min(TESTED_TORCH, key=_release)):
        raise UnsupportedTorchError(
            f"torch {version} is older than what neusight can patch. {remedy_for_torch(version)}"
        )


def remedy_for_torch(version: str) -> str:
    """The nearest release that works here and the command that gets it, in two sentences."""
    problem = python_problem()
    if problem:
        return problem
    nearest = nearest_torch(version)
    if _release(version) == _release(nearest) and "+rocm" not in version:
        return (
            f"torch {nearest} works elsewhere, so this installation may be damaged. "
            f"pip install --force-reinstall --no-deps torch=={nearest}"
        )
    # `===`: a build with a label (2.13.0+rocm6.4) would count as 2.13.0, and stay.
    return f"The nearest release that works is {nearest}. pip install 'torch==={nearest}'"


def nearest_torch(version: str) -> str:
    """The tested release of this Python that is fewest minor versions away; of two, the newer."""
    major, minor = (*_release(version), 0)[:2]
    possible = [name for name, first in TESTED_TORCH.items() if first <= sys.version_info[:2]]
    possible = possible or ["2.13.0"]

    def distance(name: str) -> tuple[int, int]:
        other_major, other_minor = _release(name)
        return abs((other_major - major) * 100 + other_minor - minor), -other_minor

    return min(possible, key=distance)


def python_problem() -> str:
    """What to do about a Python that was never tried; empty where it was."""
    first, last = _PYTHONS
    here = sys.version_info[:2]
    if first <= here <= last:
        return ""
    nearest = ".".join(map(str, last if here > last else first))
    return (
        f"Python {here[0]}.{here[1]} was not tried; the nearest that works is {nearest}. "
        f"python{nearest} -m venv .venv && .venv/bin/pip install torch==2.13.0 -e ."
    )


def _release(version: str) -> tuple[int, int]:
    """(major, minor); a version that says nothing, as of a build from source, is taken for new."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else _UNKNOWN
