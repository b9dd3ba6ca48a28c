"""Collectives between nodes: rings, trees and two levels, over the network cards of those that take
part.

NCCL's rings enter and leave a node once through each of its cards, so a group of whole nodes has
all their cards; a group that takes one GPU of each node, as data parallelism across tensor
parallelism does, has one. Shares and latencies are the topology's: priors until it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from neusight.predictors.physics.roofline import sent_bytes

__all__ = ["Crossing", "Inside", "network_us"]

#: What a collective of a kind takes inside one node: kind, ranks, bytes of a rank's full buffer.
Inside = Callable[[str, int, float], float]

#: What a step inside a node adds over NVLink, by NCCL's tuning table (2.7 to 14 µs a crossing).
_STEP_US = 0.6

#: The share of a ring's bandwidth that a tree reaches, by NCCL's tuning table.
_TREE_SHARE = 0.92

#: What the shorter of two overlapping levels adds to the longer one, as a share of it.
_EXPOSED_SHARE = 0.3

#: Nodes up to which the crossings of a level follow each other; beyond, trees shorten them.
_RING_NODES = 8

#: Kinds that are done inside nodes first, and between them with what is left.
_TWO_LEVELS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Crossing:
    """A group of ranks on several nodes, and what carries it.

    `least` and `most` ranks of a node take part. `link_gbps` is what a rank reaches inside its
    node, `cards_gbps` what the cards of the emptiest node reach together, `card_gbps` those that
    one GPU has, one direction each, 1e9 bytes per second. `base_us` is added once, `hop_us` for
    each crossing. `reduces`: the switches add up, so that an all-reduce crosses once.
    """

    num_ranks: int
    num_nodes: int
    least: int
    most: int
    link_gbps: float
    cards_gbps: float
    card_gbps: float
    base_us: float
    hop_us: float
    inside: Inside
    reduces: bool = False

    @property
    def bus_gbps(self) -> float:
        """What the rings of the group reach: its cards, and between its GPUs their link."""
        return min(self.link_gbps, self.cards_gbps) if self.most > 1 else self.cards_gbps


def network_us(kind: str, num_bytes: float, group: Crossing) -> float:
    """The time of a collective over several nodes, µs: the least of what NCCL may do.

    `num_bytes` are a rank's full buffer.
    """
    if kind == "send_recv":
        return group.base_us + num_bytes / (group.card_gbps * 1e3)
    if kind == "all_to_all":
        return _exchange_us(num_bytes, group)
    ways = [_ring_us(kind, num_bytes, group)]
    if kind == "all_reduce":
        ways.append(_tree_us(num_bytes, group))
    if kind in _TWO_LEVELS and group.least > 1:
        ways.append(_two_levels_us(kind, num_bytes, group))
    if kind == "all_reduce" and group.reduces:
        ways.append(_switches_us(num_bytes, group))
    return min(ways)


def _exchange_us(num_bytes: float, group: Crossing) -> float:
    """Shares for ranks of other nodes through the cards, the others inside, both at once."""
    remote = num_bytes * (group.num_ranks - group.least) / group.num_ranks
    own = num_bytes * (group.most - 1) / group.num_ranks
    rounds = 2.0 * math.log2(group.num_nodes)
    rate = group.cards_gbps / group.least
    outside_us = group.base_us + rounds * group.hop_us + remote / (rate * 1e3)
    return max(outside_us, own / (group.link_gbps * 1e3))


def _ring_us(kind: str, num_bytes: float, group: Crossing) -> float:
    """All ranks in rings that cross each border once."""
    passes = 2.0 if kind == "all_reduce" else 1.0
    crossings = passes * group.num_nodes
    steps = max(0.0, passes * (group.num_ranks - 1) - crossings)
    wire = sent_bytes(kind, num_bytes, group.num_ranks)
    bus_gbps = group.bus_gbps
    latency_us = group.base_us + steps * _STEP_US + crossings * group.hop_us
    return latency_us + wire / (bus_gbps * 1e3)


def _tree_us(num_bytes: float, group: Crossing) -> float:
    """Up a tree of nodes and down again, as few crossings as there can be."""
    depth_us = 2.0 * ((group.most - 1) * _STEP_US + 2.0 * math.log2(group.num_nodes) * group.hop_us)
    return group.base_us + depth_us + 2.0 * num_bytes / (group.bus_gbps * _TREE_SHARE * 1e3)


def _two_levels_us(kind: str, num_bytes: float, group: Crossing) -> float:
    """Inside nodes, and each rank with those of the same place on the others, at once."""
    crossings = (2.0 if kind == "all_reduce" else 1.0) * (group.num_nodes - 1)
    if group.num_nodes > _RING_NODES:
        crossings *= (_RING_NODES + math.log2(group.num_nodes)) / group.num_nodes
    wire = sent_bytes(kind, num_bytes / group.least, group.num_nodes)
    return _joined(kind, num_bytes, group, crossings, wire)


def _switches_us(num_bytes: float, group: Crossing) -> float:
    """Inside nodes, and through switches that add up: what is left crosses once each way."""
    crossings = 2.0 * math.log2(group.num_nodes)
    return _joined("all_reduce", num_bytes, group, crossings, num_bytes / group.least)


def _joined(kind: str, num_bytes: float, group: Crossing, crossings: float, wire: float) -> float:
    """The level inside nodes and `wire` bytes of each rank between them, overlapped."""
    parts = ("reduce_scatter", "all_gather") if kind == "all_reduce" else (kind,)
    inner_us = sum(group.inside(part, group.most, num_bytes) for part in parts if group.most > 1)
    card_gbps = group.cards_gbps / group.least
    outer_us = group.base_us + crossings * group.hop_us + wire / (card_gbps * 1e3)
    return max(inner_us, outer_us) + _EXPOSED_SHARE * min(inner_us, outer_us)
