"""Topologies by name, as users know systems; from files; and networks in a few words."""

from __future__ import annotations

import difflib
import json
import math
from functools import cache

from neusight.predictors.clusters.topology import Level, Topology, read_topology
from neusight.predictors.errors import OptionError, TopologyError


def find_topology(name: str | Topology) -> Topology:
    """The topology of that name, in any case; of a file where `name` ends in .json.

    A `Topology` is given back as it is. TopologyError names near misses, and what is wrong in a
    file.

    >>> find_topology("DGX-H100").gpus_per_node
    8
    """
    if isinstance(name, Topology):
        return name
    if name.endswith(".json"):
        return read_topology(name)
    known = {item.name: item for item in _packaged()}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise TopologyError(
        f"Unknown topology {name!r}.{hint} `neusight gpus --topologies` lists all; a file's name "
        "ends in .json."
    )


def topologies() -> list[str]:
    """Names of all topologies, sorted.

    >>> "gb200-nvl72" in topologies()
    True
    """
    return [item.name for item in _packaged()]


def reference_by_name(gpu_name: str) -> Topology | None:
    """The system that a GPU of that name is usually in, if one is known."""
    return next((item for item in _packaged() if gpu_name in item.reference_of), None)


def with_cards(text: str, base: Topology, ranks_per_node: int) -> Topology:
    """The topology with the network that "50x8" says: 8 cards of 50e9 bytes per second, one
    direction, for the ranks of a node; "50" alone is one card. Its other figures are priors.
    OptionError for what is none.

    >>> with_cards("12.5x4", find_topology("dgx-h100"), 8).levels[-1].nics_per_node
    4
    """
    rate, _, count = text.partition("x")
    try:
        gbps, cards = float(rate), int(count) if count else 1
    except ValueError:
        gbps, cards = 0.0, 0
    if not 0.0 < gbps < math.inf or not 0 < cards <= _MOST_CARDS * ranks_per_node:
        raise OptionError(f"--network-gbps is {text!r}; it must be like 50 or 50x8")
    of_a_node = -(-cards * base.gpus_per_node // ranks_per_node)  # of all that a node has
    return base.with_network(Level("network", gbps, nics_per_node=of_a_node))


#: Network cards of a GPU: more are a slip of the hand (p5.48xlarge has 4).
_MOST_CARDS = 64


@cache
def _packaged() -> tuple[Topology, ...]:
    from importlib.resources import files

    folder = files("neusight.predictors") / "topologies"
    found = [
        Topology.from_json(json.loads(item.read_text(encoding="utf-8")), source=item.name)
        for item in folder.iterdir()
        if item.name.endswith(".json")
    ]
    return tuple(sorted(found, key=lambda item: item.name))
