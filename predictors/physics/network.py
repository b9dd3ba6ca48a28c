"""Collectives between hosts: rings, trees and two levels, over the network cards of those that take
part.

NCCL's rings enter and leave a host once through each of its cards, so a group of whole hosts has
all their cards; a group that takes one GPU of each host, as data parallelism across tensor
parallelism does, has one. The constants are priors: a network is a cluster's, and nobody measured
this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from neusight.predictors.gpu import GPU
from neusight.predictors.physics.roofline import sent_bytes

__all__ = ["Inside", "card_gbps", "network_us"]

#: What a collective of a kind takes inside one host: kind, ranks, bytes of a rank's full buffer.
Inside = Callable[[str, int, float], float]

#: One direction of a network card, 1e9 bytes per second, one a GPU: 400 Gb/s (DGX H100 and B200
#: datasheets), on Ampere 200 Gb/s (DGX A100 datasheet). An L40S or an older GPU seldom has one of
#: its own; it is taken to have.
_CARD_GBPS = 50.0
_AMPERE_CARD_GBPS = 25.0
_AMPERE = (8, 0)

#: The share of its cards that a ring reaches, and what the network adds to a collective: once, for
#: each crossing between hosts, and for each step inside one (NCCL's tuning table has 2.7 to 14 us
#: a crossing by protocol, and 0.6 us a step over NVLink).
_SHARE = 0.8
_BASE_US = 10.0
_CROSSING_US = 5.0
_STEP_US = 0.6

#: The share of a ring's bandwidth that a tree reaches, by NCCL's tuning table.
_TREE_SHARE = 0.92

#: What the shorter of two overlapping levels adds to the longer one, as a share of it.
_EXPOSED_SHARE = 0.3

#: Hosts up to which the crossings of a level follow each other; beyond, trees shorten them.
_RING_HOSTS = 8

#: Kinds that are done inside hosts first, and between them with what is left.
_TWO_LEVELS = ("all_reduce", "all_gather", "reduce_scatter")


def card_gbps(gpu: GPU) -> float:
    """One direction of the network that a GPU has to itself, 1e9 bytes per second."""
    if gpu.network_gbps:
        return gpu.network_gbps
    return _AMPERE_CARD_GBPS if gpu.compute_capability == _AMPERE else _CARD_GBPS


def network_us(
    kind: str,
    num_bytes: float,
    *,
    world_size: int,
    num_nodes: int,
    link_gbps: float,
    network_gbps: float,
    inside: Inside,
) -> float:
    """The time of a collective over several hosts, µs: the least of what NCCL may do.

    `num_bytes` are a rank's full buffer, `link_gbps` what a rank reaches inside its host, and
    `network_gbps` one direction of one card (1e9 bytes per second each).
    """
    local = max(1, world_size // num_nodes)
    cards_gbps = network_gbps * _SHARE * local
    hosts = math.log2(num_nodes)
    if kind == "send_recv":
        return _BASE_US + num_bytes / (network_gbps * _SHARE * 1e3)
    if kind == "all_to_all":
        remote = num_bytes * (world_size - local) / world_size
        own = num_bytes * (local - 1) / world_size
        outside_us = _BASE_US + 2.0 * _CROSSING_US * hosts + remote * local / (cards_gbps * 1e3)
        return max(outside_us, own / (link_gbps * 1e3))
    bus_gbps = min(link_gbps, cards_gbps)
    passes = 2.0 if kind == "all_reduce" else 1.0
    crossings = passes * num_nodes
    steps = max(0.0, passes * (world_size - 1) - crossings)
    ring_us = _BASE_US + steps * _STEP_US + crossings * _CROSSING_US
    ways = [ring_us + sent_bytes(kind, num_bytes, world_size) / (bus_gbps * 1e3)]
    if kind == "all_reduce":
        depth_us = 2.0 * ((local - 1) * _STEP_US + 2.0 * hosts * _CROSSING_US)
        ways.append(_BASE_US + depth_us + 2.0 * num_bytes / (bus_gbps * _TREE_SHARE * 1e3))
    if kind in _TWO_LEVELS and local > 1:
        ways.append(_two_levels_us(kind, num_bytes, local, num_nodes, cards_gbps / local, inside))
    return min(ways)


def _two_levels_us(
    kind: str, num_bytes: float, local: int, num_nodes: int, card: float, inside: Inside
) -> float:
    """Inside hosts, and each rank with those of the same place on the others, at once."""
    if kind == "all_reduce":
        inner_us = inside("reduce_scatter", local, num_bytes) + inside(
            "all_gather", local, num_bytes
        )
    else:
        inner_us = inside(kind, local, num_bytes)
    crossings = (2.0 if kind == "all_reduce" else 1.0) * (num_nodes - 1)
    if num_nodes > _RING_HOSTS:
        crossings *= (_RING_HOSTS + math.log2(num_nodes)) / num_nodes
    wire = sent_bytes(kind, num_bytes / local, num_nodes)
    outer_us = _BASE_US + crossings * _CROSSING_US + wire / (card * 1e3)
    return max(inner_us, outer_us) + _EXPOSED_SHARE * min(inner_us, outer_us)
