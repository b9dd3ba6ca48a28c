"""Collectives between nodes: rings and trees, over the network cards of those that take part.

What NCCL's tuning model chooses from (ncclTopoTuneModel in src/graph/tuning.cc, NCCL 2.27): an
algorithm and a protocol, of which each has a latency for each step and a share of the bandwidth;
the least of their sums is taken, as NCCL does. NCCL's rings enter and leave a node once through
each of its cards, so a group of whole nodes has all their cards; a group that takes one GPU of each
node, as data parallelism across tensor parallelism does, has one. Bandwidths, base and the latency
of a crossing are the topology's: priors until it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from neusight.predictors.physics.roofline import sent_bytes

#: What a collective of a kind takes inside one node: kind, ranks, bytes of a rank's full buffer.
Inside = Callable[[str, int, float], float]


class _Protocol(NamedTuple):
    """What a step takes inside a node over NVLink and over PCIe, µs, what a crossing and the start
    take beyond LL's in a ring (`hop_us` and `base_us` of a topology), and the share of the
    bandwidth."""

    step_us: float
    pcie_step_us: float
    hop_us: float
    base_us: float
    share: float


#: NCCL's table: inside 0.6, 1.9 and 3.4 µs a step (PCIe 1.0, 2.5, 5.7), a crossing 2.7, 4.0 and
#: 14.0, at the start 6.6, 14.0 and 8.4; of the bandwidth a quarter, 120/128, and all of it.
_RING = (
    _Protocol(0.6, 1.0, 0.0, 0.0, 0.25),  # LL
    _Protocol(1.9, 2.5, 1.3, 7.4, 0.92),  # LL128
    _Protocol(3.4, 5.7, 11.3, 1.8, 1.0),  # Simple
)
#: Trees: inside 0.6, 1.25 and 4.0 (PCIe 1.0, 1.9, 4.0), a crossing 5.0, 8.5 and 14, at the start
#: 6.8, 14.0 and 0; 0.92 of the bandwidth, of that 1/3.8, 120/128 and all.
_TREE = (
    _Protocol(0.6, 1.0, 2.3, 0.2, 0.92 / 3.8),
    _Protocol(1.25, 1.9, 5.8, 7.4, 0.92 * 120 / 128),
    _Protocol(4.0, 4.0, 11.3, -6.6, 0.92),
)
#: Of these LL and LL128, by their place.
_LL, _LL128 = 0, 1
#: Switches that add up inside nodes, with a tree between them (NVLSTree): the latency inside, of a
#: crossing beyond LL's, and the share of the bandwidth, of which more than two nodes get half.
_SWITCH_TREE_US = 25.0
_SWITCH_TREE_HOP_US = 11.3
_SWITCH_TREE_SHARE = 5 / 6

#: The share of its bandwidth that LL128 reaches where a GPU sends what it received over its own
#: card, one GPU of each node.
_ALONE_SHARE = 0.7

#: What the shorter of two overlapping levels adds to the longer one, as a share of it.
_EXPOSED_SHARE = 0.3


@dataclass(frozen=True)
class Crossing:
    """A group of ranks on several nodes, and what carries it.

    `least` and `most` ranks of a node take part. `link_gbps` is what a rank reaches inside its
    node, `cards_gbps` what the cards of the emptiest node reach together, `card_gbps` those that
    one GPU has, one direction each, 1e9 bytes per second. `base_us` is added once, `hop_us` for
    each crossing. `reduces`: the network's switches add up, so that an all-reduce crosses once;
    `adds_inside`: those inside nodes do. `ll_gbps` is the most that protocol LL reaches,
    `has_ll128` whether LL128 is used (NVLink inside nodes, from V100 on), `is_pcie` that nodes have
    no NVLink.
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
    adds_inside: bool = False
    ll_gbps: float = 20.4
    has_ll128: bool = True
    is_pcie: bool = False

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
    ways = [_ring_us(kind, num_bytes, group, at) for at in _protocols(group)]
    if kind == "all_reduce":
        ways += [_tree_us(num_bytes, group, at) for at in _protocols(group)]
        if group.adds_inside and group.least > 1:
            ways.append(_switch_tree_us(num_bytes, group))
        if group.reduces:
            ways.append(_switches_us(num_bytes, group))
    return min(ways)


def _protocols(group: Crossing) -> list[int]:
    return [at for at in range(len(_RING)) if at != _LL128 or group.has_ll128]


def _reached_gbps(group: Crossing, table: tuple[_Protocol, ...], at: int) -> float:
    share = table[at].share
    if at == _LL:
        return min(group.ll_gbps, share * group.bus_gbps)
    return (_ALONE_SHARE if at == _LL128 and group.most == 1 else share) * group.bus_gbps


def _latency_us(group: Crossing, protocol: _Protocol, steps: float, crossings: float) -> float:
    step_us = protocol.pcie_step_us if group.is_pcie else protocol.step_us
    hop_us = group.hop_us + protocol.hop_us
    return max(0.0, group.base_us + protocol.base_us) + steps * step_us + crossings * hop_us


def _exchange_us(num_bytes: float, group: Crossing) -> float:
    """Shares for ranks of other nodes through the cards, the others inside, both at once."""
    remote = num_bytes * (group.num_ranks - group.least) / group.num_ranks
    own = num_bytes * (group.most - 1) / group.num_ranks
    rounds = 2.0 * math.log2(group.num_nodes)
    rate = group.cards_gbps / group.least
    outside_us = group.base_us + rounds * group.hop_us + remote / (rate * 1e3)
    return max(outside_us, own / (group.link_gbps * 1e3))


def _ring_us(kind: str, num_bytes: float, group: Crossing, at: int) -> float:
    """All ranks in rings that cross each border once."""
    passes = 2.0 if kind == "all_reduce" else 1.0
    crossings = 2.0 * group.num_nodes if kind == "all_reduce" else group.num_nodes - 1.0
    steps = max(0.0, passes * (group.num_ranks - 1) - crossings)
    wire = sent_bytes(kind, num_bytes, group.num_ranks)
    wire_us = wire / (_reached_gbps(group, _RING, at) * 1e3)
    return _latency_us(group, _RING[at], steps, crossings) + wire_us


def _tree_us(num_bytes: float, group: Crossing, at: int) -> float:
    """Up a tree of nodes and down again, as few crossings as there can be."""
    wire_us = 2.0 * num_bytes / (_reached_gbps(group, _TREE, at) * 1e3)
    crossings = 2.0 * math.log2(group.num_nodes)
    return _latency_us(group, _TREE[at], 2.0 * (group.most - 1), crossings) + wire_us


def _switch_tree_us(num_bytes: float, group: Crossing) -> float:
    """Added up in the switches of each node, and in a tree of nodes; never faster than inside."""
    crossings = 2.0 * math.log2(group.num_nodes)
    latency_us = _SWITCH_TREE_US + crossings * (group.hop_us + _SWITCH_TREE_HOP_US)
    cards_gbps = group.cards_gbps if group.num_nodes <= 2 else group.cards_gbps / 2
    reached = _SWITCH_TREE_SHARE * min(group.link_gbps, cards_gbps)
    inner_us = group.inside("all_reduce", group.most, num_bytes)
    return group.base_us + latency_us + max(inner_us, num_bytes / (reached * 1e3))


def _switches_us(num_bytes: float, group: Crossing) -> float:
    """Inside nodes, and through switches that add up, overlapped: what is left crosses once each
    way."""
    inner_us = 0.0
    if group.most > 1:
        parts = ("reduce_scatter", "all_gather")
        inner_us = sum(group.inside(part, group.most, num_bytes) for part in parts)
    crossings = 2.0 * math.log2(group.num_nodes)
    card_gbps = group.cards_gbps / group.least
    wire_us = num_bytes / group.least / (card_gbps * 1e3)
    outer_us = group.base_us + crossings * group.hop_us + wire_us
    return max(inner_us, outer_us) + _EXPOSED_SHARE * min(inner_us, outer_us)
