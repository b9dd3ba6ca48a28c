"""Topologies as values and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neusight.predictors.clusters.named import find_topology, topologies
from neusight.predictors.clusters.topology import Curve, Level, Topology, read_topology
from neusight.predictors.errors import TopologyError

SWITCH = Level("switch", 450.0, ranks=8)
NETWORK = Level("network", 50.0, nics_per_node=8)
PLAIN = Topology("mine", 8, (SWITCH, NETWORK))


@pytest.mark.parametrize("name", topologies())
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    found = find_topology(name)
    file = tmp_path / "cluster.json"

    found.save(file)

    assert read_topology(file) == found
    assert read_topology(file).sources == found.sources


def test_measurements_are_kept(tmp_path: Path) -> None:
    curve = Curve("all_reduce", 16, 2, ((1024, 30.0), (2**20, 90.5)))
    measured = Topology("mine", 8, (SWITCH, NETWORK), measured=(curve,))

    measured.save(tmp_path / "cluster.json")

    assert read_topology(tmp_path / "cluster.json").measured == (curve,)


def test_every_topology_names_where_its_figures_come_from() -> None:
    for name in topologies():
        found = find_topology(name)
        assert {level.kind for level in found.levels} - {"network"} <= set(found.sources)
        assert "network" in found.sources


@pytest.mark.parametrize(
    ("levels", "reported"),
    [
        ((), "must have a level"),
        ((NETWORK, SWITCH), "than those below"),
        ((SWITCH, SWITCH), "than those below"),
        ((Level("switch", 450.0), NETWORK), "than those below"),
        ((Level("network", 50.0),), "nics_per_node"),
        ((SWITCH, replace(NETWORK, ranks=64), Level("switch", 450.0)), "outside a network"),
    ],
)
def test_levels_that_do_not_fit_are_refused(levels: tuple[Level, ...], reported: str) -> None:
    with pytest.raises(TopologyError, match=reported):
        Topology("mine", 8, levels)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"levels": "fast"}, "must be a list"),
        ({"levels": [{"kind": "wire", "gbps": 1}]}, "kind' is 'wire'.*one of 'switch'"),
        ({"levels": [{"kind": "switch"}]}, "levels\\[0\\].gbps' is missing"),
        ({"levels": [{"kind": "switch", "gbps": -1}]}, "gbps' is -1"),
        ({"levels": [{"kind": "switch", "gbps": 1, "ranks": 10**12}]}, "at most"),
        ({"levels": [{"kind": "switch", "gbps": 1, "share": 2}]}, "share' is 2"),
        ({"levels": [{"kind": "switch", "gbps": 1, "speed": 2}]}, "no such field"),
        ({"levels": [{"kind": "network", "gbps": 1}]}, "nics_per_node"),
        ({"gpus_per_node": 0}, "a GPU in each node"),
        ({"gpus_per_node": 10**12}, "gpus_per_node' is .* at most"),
        ({"gpus_per_node": 2.5}, "whole number"),
        ({"speed": 1}, "no such field"),
        ({"measured": [{"op": "x", "ranks": 2, "nodes": 3, "points": [[1, 1.0]]}]}, "ranks"),
        ({"measured": [{"op": "x", "ranks": 2, "nodes": 1, "points": []}]}, "points"),
        ({"measured": [{"op": "x", "ranks": 2, "nodes": 1, "points": [[2, 1], [1, 1]]}]}, "order"),
    ],
)  # fmt: skip
def test_a_bad_file_says_what_is_wrong(
    change: dict[str, Any], reported: str, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({**PLAIN.to_json(), **change}))

    with pytest.raises(TopologyError, match=reported) as caught:
        read_topology(file)

    assert str(file) in str(caught.value)


def test_too_many_ranks_for_a_node_are_refused_with_what_to_say() -> None:
    with pytest.raises(TopologyError, match=r"16 ranks on each node.*--gpus-per-node 8"):
        PLAIN.require_space(16)


def test_another_network_leaves_the_rest_and_no_measurement() -> None:
    curve = Curve("all_reduce", 16, 2, ((1024, 30.0),))
    other = Level("network", 12.5, nics_per_node=4)

    changed = Topology("mine", 8, (SWITCH, NETWORK), measured=(curve,)).with_network(other)

    assert changed == Topology("mine", 8, (SWITCH, other))
