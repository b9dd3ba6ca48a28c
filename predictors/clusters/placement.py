"""Where the ranks of a group lie: on how many nodes, and how many of them on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from neusight.predictors.clusters.topology import Level, Topology
from neusight.predictors.errors import TopologyError
from neusight.predictors.kernel import CollectiveSize


class GroupPlacement(NamedTuple):
    """A group on a topology: the outermost level that it spans, and what lies below networks.

    `num_islands` is how many sets of GPUs joined without a network it touches, `least` and `most`
    how many of its ranks lie on one, `inside` the level that joins those, `network` the outermost
    network between islands (None where there is one island), and `cards` how many network cards the
    ranks of the emptiest island have.
    """

    num_islands: int
    least: int
    most: int
    inside: Level
    network: Level | None
    cards: float
    cards_of_one: float


def placement_of(
    size: CollectiveSize, topology: Topology, *, is_stated: bool = True
) -> GroupPlacement:
    """How a group lies on a topology; TopologyError where no level joins it, or its nodes hold more
    ranks than the topology's have GPUs. One not stated has nodes of as many as there are.
    """
    if not is_stated and size.gpus_per_node > topology.gpus_per_node:
        topology = _with_larger_nodes(topology, size.gpus_per_node)
    return _placed(size._replace(num_bytes=0), topology)


def _with_larger_nodes(topology: Topology, gpus_per_node: int) -> Topology:
    """The same with nodes of that many, joined as those of before."""
    levels = list(topology.levels)
    last = len(topology.inside) - 1
    if last >= 0:
        levels[last] = replace(levels[last], ranks=max(levels[last].ranks, gpus_per_node))
    return replace(topology, gpus_per_node=gpus_per_node, levels=tuple(levels))


def require_joined(topology: Topology, world_size: int, ranks_per_node: int) -> None:
    """TopologyError where the topology does not hold, or not join, that many ranks."""
    everyone = f"0..{world_size - 1}" if world_size > 1 else "0"
    size = CollectiveSize(0, world_size, 1, everyone, ranks_per_node)
    placement_of(size, topology)


@cache
def _placed(size: CollectiveSize, topology: Topology) -> GroupPlacement:
    per_node = size.gpus_per_node or topology.gpus_per_node
    topology.require_space(per_node)
    island = topology.inside[-1] if topology.inside else None
    reach = (island.ranks or size.world_size) if island is not None else 1
    counts = _counts(size, topology, per_node, reach)
    is_one = len(counts) == 1
    network = None if is_one else _network_between(size, topology, per_node)
    inside = _level_within(size, topology, per_node) if is_one else _level_of(max(counts), topology)
    cards = topology.network.nics_per_node if topology.network is not None else 0
    each = cards / topology.gpus_per_node
    most_cards = cards * max(1.0, reach / topology.gpus_per_node)
    return GroupPlacement(
        len(counts), min(counts), max(counts),
        inside, network,
        min(most_cards, max(1.0, min(counts) * each)), max(1.0, each),
    )  # fmt: skip


def _counts(size: CollectiveSize, topology: Topology, per_node: int, reach: int) -> list[int]:
    """Ranks on each island of `reach` GPUs that the group touches."""
    if not size.ranks:
        nodes = min(size.world_size, max(1, size.num_nodes))
        largest = -(-size.world_size // nodes)
        if reach < min(largest, topology.gpus_per_node):
            islands = nodes * -(-largest // reach)
        else:
            islands = -(-nodes // max(1, reach // max(topology.gpus_per_node, largest)))
        share, more = divmod(size.world_size, islands)
        return [share + 1] * more + [share] * (islands - more)
    counts: dict[int, int] = {}
    for rank in ranks_from(size.ranks):
        island = _island(rank, topology, per_node, reach)
        counts[island] = counts.get(island, 0) + 1
    return list(counts.values())


def _island(rank: int, topology: Topology, per_node: int, reach: int) -> int:
    """The number of the set of `reach` GPUs, joined with each other, that holds a rank."""
    node, local = divmod(rank, per_node)
    if reach < topology.gpus_per_node:
        of_node = -(-topology.gpus_per_node // reach)
        return node * of_node + local // reach
    return node // (reach // topology.gpus_per_node)


def _level_within(size: CollectiveSize, topology: Topology, per_node: int) -> Level:
    """The innermost level without a network that joins a group of one island."""
    able = (
        level
        for level in topology.inside
        if len(_counts(size, topology, per_node, level.ranks or size.world_size)) == 1
    )
    return next(able, topology.levels[0])


def _level_of(num_ranks: int, topology: Topology) -> Level:
    able = (level for level in topology.inside if not level.ranks or level.ranks >= num_ranks)
    return next(able, topology.levels[0])


def _network_between(size: CollectiveSize, topology: Topology, per_node: int) -> Level:
    for level in topology.levels:
        if level.kind != "network":
            continue
        if not level.ranks or len(_counts(size, topology, per_node, level.ranks)) == 1:
            return level
    last = topology.levels[-1]
    raise TopologyError(
        f"A group of {size.world_size} ranks{f' ({size.ranks})' if size.ranks else ''} reaches "
        f"beyond the {last.ranks} GPUs that level '{last.kind}' of topology {topology.name} joins, "
        "and there is no level above it. Add one to its file, or say --network-gbps."
    )


@cache
def ranks_from(text: str) -> tuple[int, ...]:
    """The ranks that a text such as "0..24/8" stands for.

    >>> ranks_from("0..24/8"), ranks_from("3,5,6"), ranks_from("0..3")
    ((0, 8, 16, 24), (3, 5, 6), (0, 1, 2, 3))
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, rest = part.partition("..")
        last, _, step = rest.partition("/")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(found)


def ranges_text(ranks: Iterable[int]) -> str:
    """Ranks as ranges.

    >>> ranges_text([0, 1, 2, 5, 8, 9])
    '0..2,5,8,9'
    """
    runs = groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0])
    texts = [[rank for _, rank in run] for _, run in runs]
    return ",".join(
        f"{one[0]}..{one[-1]}" if len(one) > 2 else ",".join(map(str, one)) for one in texts
    )
