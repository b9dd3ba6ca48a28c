"""Topologies by name, as users know systems; from files; and networks in a few words."""

from __future__ import annotations

import difflib
import math
from dataclasses import replace
from functools import cache

from neusight.predictors.clusters.topology import Level, Topology, read_topology
from neusight.predictors.errors import OptionError, TopologyError
from neusight.predictors.files import packaged_documents


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
    direction, for the ranks of a node; "50" alone is one card. "50x8:ecmp" is Ethernet whose
    switches choose a path by a hash: beyond the hosts of one switch it is slower. Its other figures
    are priors. OptionError for what is none.

    >>> with_cards("12.5x4", find_topology("dgx-h100"), 8).levels[-1].nics_per_node
    4
    >>> [level.ranks for level in with_cards("12.5x4:ecmp", find_topology("dgx-h100"), 8).levels]
    [8, 64, 0]
    """
    numbers, _, routing = text.partition(":")
    rate, _, count = numbers.partition("x")
    try:
        gbps, cards = float(rate), int(count) if count else 1
    except ValueError:
        gbps, cards = 0.0, 0
    is_a_network = 0.0 < gbps < math.inf and 0 < cards <= _MOST_CARDS * ranks_per_node
    if not is_a_network or text.endswith(":") or routing not in ("", _ECMP):
        raise OptionError(f"--network-gbps is {text!r}; it must be like 50, 50x8 or 50x8:ecmp")
    of_a_node = -(-cards * base.gpus_per_node // ranks_per_node)  # of all that a node has
    network = Level("network", gbps, nics_per_node=of_a_node)
    if not routing:
        return base.with_network(network)
    of_a_switch = base.gpus_per_node * max(1, _HOST_PORTS // of_a_node)
    return base.with_network(
        *([replace(network, ranks=of_a_switch)] if of_a_switch > base.inside[-1].ranks else []),
        replace(network, oversubscription=_COLLISIONS),
    )


#: Flows of equal hashes share a path while others lie idle: "compared to baseline ECMP without QP
#: scaling, we observed that E-ECMP along with QP scaling showed performance improvement of up to 40
#: % for the AllReduce collective" (A RoCE network for distributed AI training at scale, 2024).
_ECMP, _COLLISIONS = "ecmp", 1.4
#: Ports of a switch that lead to hosts: half of 64, as many lead on.
_HOST_PORTS = 32

#: Network cards of a GPU: more are a slip of the hand (p5.48xlarge has 4).
_MOST_CARDS = 64


@cache
def _packaged() -> tuple[Topology, ...]:
    documents = packaged_documents("topologies")
    found = [Topology.from_json(document, source=name) for name, document in documents]
    return tuple(sorted(found, key=lambda item: item.name))
