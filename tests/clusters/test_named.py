"""Topologies by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neusight.predictors.clusters.named import (
    find_topology,
    reference_by_name,
    topologies,
    with_cards,
)
from neusight.predictors.clusters.topology import Level
from neusight.predictors.errors import OptionError, TopologyError
from neusight.predictors.gpu import find_gpu, gpus
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.collective import collective_timing

KNOWN = "a3-mega dgx-a100 dgx-h100 gb200-nvl72 hgx-b200 mi300x ndv4 ndv5 p4d p5.48xlarge pcie-l40s"


def test_systems_have_the_names_that_users_know() -> None:
    assert topologies() == KNOWN.split()


def test_a_name_counts_in_any_case_and_a_value_is_itself() -> None:
    found = find_topology("GB200-NVL72")

    assert found.levels[0] == Level("switch", 900.0, ranks=72)
    assert find_topology(found) is found


def test_a_near_miss_is_named() -> None:
    with pytest.raises(TopologyError, match=r"Did you mean 'p5.48xlarge'.*--topologies"):
        find_topology("p5.48large")


def test_a_file_is_read(tmp_path: Path) -> None:
    find_topology("p4d").save(tmp_path / "mine.json")

    assert find_topology(str(tmp_path / "mine.json")) == find_topology("p4d")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"none\.json"):
        find_topology(str(tmp_path / "none.json"))


def test_references_name_gpus_that_are_known_each_once() -> None:
    named = [gpu for name in topologies() for gpu in find_topology(name).reference_of]

    assert len(named) == len(set(named))
    assert set(named) <= set(gpus())
    assert reference_by_name("A100-SXM4-80GB") == find_topology("dgx-a100")
    assert reference_by_name("T4") is None


@pytest.mark.parametrize(
    ("text", "ranks_per_node", "cards"),
    [("50x8", 8, 8), ("50", 8, 1), ("12.5x4", 8, 4), ("12.5x4", 4, 8), ("12.5x1", 2, 4)],
)
def test_a_network_in_words_is_for_the_ranks_of_a_node(
    text: str, ranks_per_node: int, cards: int
) -> None:
    """Where four of eight GPUs run, four cards are one for each: eight for a whole node."""
    network = with_cards(text, find_topology("dgx-h100"), ranks_per_node).network

    assert network is not None
    assert (network.nics_per_node, network.gbps) == (cards, float(text.partition("x")[0]))


def test_paths_chosen_by_hashes_are_slower_beyond_the_hosts_of_a_switch() -> None:
    """32 ports lead to hosts: 8 hosts of 4 cards, 64 GPUs."""
    topology = with_cards("12.5x4:ecmp", find_topology("dgx-a100"), 8)
    gpu = replace(find_gpu("A100-SXM4-80GB"), topology=topology)

    def time_us(ranks: int) -> float:
        kernel = Kernel.collective("all_reduce", 2**30, ranks, num_nodes=ranks // 8)
        return collective_timing(kernel, gpu).time_us

    assert time_us(128) / time_us(64) == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "fast",
        "0x8",
        "-1",
        "nan",
        "inf",
        "50x0",
        "50x1e9",
        "1x2x3",
        ":ecmp",
        "50:",
        "50:rdma",
    ],
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="it must be like 50, 50x8 or 50x8:ecmp"):
        with_cards(text, find_topology("dgx-h100"), 8)
