"""What is said of the network."""

from __future__ import annotations

from dataclasses import replace

from neusight.output.system import network_text, unstated_network
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel

H100 = find_gpu("H100")
INSIDE = Kernel.collective("all_reduce", 1024, 8, ranks="0..7", gpus_per_node=8)
BETWEEN = Kernel.collective("all_reduce", 1024, 2, num_nodes=2, ranks="0,8", gpus_per_node=8)
ALONE = Kernel.collective("all_reduce", 1024, 1)


def test_only_what_leaves_a_node_needs_a_network() -> None:
    assert unstated_network([INSIDE, ALONE, Kernel.gemm(8, 8, 8)], H100) == ""
    assert "--network-gbps" in unstated_network([INSIDE, BETWEEN], H100)
    assert unstated_network([BETWEEN], replace(H100, topology=find_topology("p4d"))) == ""


def test_a_box_without_a_network_says_so() -> None:
    assert network_text(find_topology("pcie-l40s")) == "no network"
