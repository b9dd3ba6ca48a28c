"""What is said of the system that GPUs are joined in."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.predictors.clusters.placement import placement_of
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize, Kernel
from neusight.predictors.physics.communication.system import system_of


def unstated_network(kernels: Iterable[Kernel], gpu: GPU) -> str:
    """The note on collectives between nodes whose network was not stated; empty without any."""
    system = system_of(gpu)
    sizes = {kernel.size for kernel in kernels if isinstance(kernel.size, CollectiveSize)}
    placed = (placement_of(size, system, is_stated=False) for size in sizes if size.world_size > 1)
    if gpu.topology is not None or all(place.network is None for place in placed):
        return ""
    return (
        f"the network between nodes is not stated; assumed is that of {system.name} "
        f"({network_text(system)}), and what runs over it has a wide interval. Say --topology, or "
        "--network-gbps."
    )


def network_text(system: Topology) -> str:
    """The cards of a node.

    >>> from neusight.predictors.clusters.named import find_topology
    >>> network_text(find_topology("p4d"))
    '4 cards of 12.5 GB/s a node'
    """
    network = system.network
    if network is None:
        return "no network"
    return f"{network.nics_per_node} cards of {network.gbps:g} GB/s a node"
