"""A host as a user states it: "cloud", "plain,ghz=3.2", "ghz=4.4,torch=2.1,launch=2.6"."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.timeline.host import (
    HOST_NAMES,
    HOSTS,
    PROFILED,
    HostProfile,
    host_of,
    profiled_host_of,
)

__all__ = ["HOST_HELP", "require_host", "stated_host"]

#: What the option says of itself.
HOST_HELP = (
    f"the host: {', '.join(HOST_NAMES)} (slowed by a profiler), with or without ingredients: "
    "ghz=3.4 (clock of the core that runs the program), torch=2.1 (whose dispatcher), launch=2.6 "
    "(us of a kernel launch, which driver and machine decide); as cloud,ghz=3.4. Default: what "
    "machines with that GPU usually have"
)

#: Clocks and launches outside these are slips of the hand.
_LIMITS = {"ghz": (0.3, 10.0), "launch": (0.1, 1000.0)}
_RELEASE = re.compile(r"(\d)\.(\d{1,2})(\.\d+)?")


def require_host(text: str) -> None:
    """OptionError where a text states no host.

    >>> require_host("cloud,ghz=3.4")
    """
    _parts(text)


def stated_host(text: str, gpu: GPU) -> HostProfile:
    """The host that a text states, beside that GPU. Its costs follow the clock; what the text does
    not state is as in the host that it names, or in the usual one of the GPU. OptionError.

    >>> from neusight.predictors.gpu import find_gpu
    >>> h100 = find_gpu("H100")
    >>> stated_host("plain,ghz=1.85", h100).op_us == 2 * stated_host("plain", h100).op_us
    True
    """
    name, figures, torch = _parts(text)
    if name == PROFILED.name:
        base = profiled_host_of(gpu)
    else:
        base = HOSTS[name] if name else host_of(gpu)
    made = base
    if "ghz" in figures:
        made = replace(made.scaled(base.ghz / figures["ghz"], name=made.name), ghz=figures["ghz"])
        # Who states the clock knows the machine: what is left is torch, driver and memory.
        made = replace(made, fastest=_KNOWN_FASTEST, slowest=_KNOWN_SLOWEST)
    if torch:
        made = made.as_torch(torch)
    if "launch" in figures:
        made = replace(made, launch_us=figures["launch"])
    _, comma, ingredients = text.partition(",") if name else ("", ",", text)
    return replace(made, name=f"{name or base.name}{comma}{ingredients}") if comma else base


#: Shares of the costs between which 80 % of hosts of a stated clock lie. A prior: of the seven of
#: data/kernelbench, whose factors are 1 to 2.6, no clock is known.
_KNOWN_FASTEST = 0.75
_KNOWN_SLOWEST = 1.5


def _parts(text: str) -> tuple[str, dict[str, float], str]:
    """The name ("": the GPU's usual host), figures by ingredient, and the version of torch."""
    first, *others = [part.strip() for part in text.split(",")]
    if "=" in first:
        first, others = "", [first, *others]
    elif first not in HOST_NAMES:
        raise OptionError(
            f"unknown host {first!r}; known: {', '.join(HOST_NAMES)}, each also with ingredients, as "
            "cloud,ghz=3.4,torch=2.1,launch=2.6"
        )
    figures: dict[str, float] = {}
    torch = ""
    for part in others:
        name, _, value = part.partition("=")
        if name == "torch" and not torch and _RELEASE.fullmatch(value):
            torch = value
        elif name in _LIMITS and name not in figures:
            figures[name] = _figure(text, name, value)
        else:
            raise OptionError(
                f"--host is {text!r}: {part!r} is none of ghz=3.4, torch=2.1, launch=2.6, each once"
            )
    return first, figures, torch


def _figure(text: str, name: str, value: str) -> float:
    least, most = _LIMITS[name]
    try:
        figure = float(value)
    except ValueError:
        figure = math.nan
    if not least <= figure <= most:
        raise OptionError(
            f"--host is {text!r}: {name} must be a number from {least:g} to {most:g}, as ghz=3.4"
        )
    return figure
