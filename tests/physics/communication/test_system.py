"""The system that a GPU is in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.gpu import GPU, find_gpu, gpus
from neusight.predictors.physics.communication.system import system_of


def test_what_is_stated_counts() -> None:
    p4d = find_topology("p4d")

    assert system_of(replace(find_gpu("H100"), topology=p4d)) is p4d


def test_a_gpu_keeps_its_topology_in_json() -> None:
    gpu = replace(find_gpu("H100"), topology=find_topology("p4d"))

    assert GPU.from_json(gpu.to_json()) == gpu
    assert gpu.fingerprint != find_gpu("H100").fingerprint


@pytest.mark.parametrize("name", gpus())
def test_every_gpu_has_one_that_joins_any_number(name: str) -> None:
    system = system_of(find_gpu(name))

    assert system.network is not None
    assert system.network.ranks == 0
    assert system.gpus_per_node <= 8


def test_an_unstated_network_has_a_wider_interval() -> None:
    stated, usual = find_topology("dgx-h100").network, system_of(find_gpu("H100")).network

    assert stated is not None
    assert usual is not None
    assert usual.spread > stated.spread


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("H800-SXM5-80GB", ["switch"]),
        ("A100-PCIE-80GB", ["switch", "pcie"]),
        ("L40S", ["pcie", "pcie", "pcie"]),
        ("T4", ["pcie"]),
        ("RTX-4090", ["pcie"]),
        ("MI300X", ["mesh"]),
    ],
)
def test_what_a_gpu_has_says_what_joins_it(name: str, kinds: list[str]) -> None:
    assert [level.kind for level in system_of(find_gpu(name)).inside] == kinds


def test_hosts_of_pcie_3_have_one_network_card_and_others_one_a_gpu() -> None:
    older, newer = (system_of(find_gpu(name)).network for name in ("P100", "L4"))

    assert older is not None
    assert newer is not None
    assert (older.nics_per_node, newer.nics_per_node) == (1, 8)
