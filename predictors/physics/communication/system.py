"""The system that a GPU is in: the one that is stated, else what is usual for its kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from neusight.predictors.clusters.named import reference_by_name
from neusight.predictors.clusters.placement import GroupPlacement, placement_of
from neusight.predictors.clusters.topology import Level, Topology
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize

#: GPUs of a node where it is not stated.
_GPUS_PER_NODE = 8

#: One direction of a network card, 1e9 bytes per second, one a GPU: 400 Gb/s (DGX H100 and B200
#: datasheets), on Ampere 200 Gb/s (DGX A100 datasheet). An L40S or an older GPU seldom has one of
#: its own; it is taken to have.
_CARD_GBPS = 50.0
_AMPERE_CARD_GBPS = 25.0
_AMPERE = (8, 0)

#: Half width of the 80 % interval between nodes where it was not stated which network there is.
_UNSTATED_SPREAD = 0.9

#: What a collective over PCIe costs at least, and each step of it, µs: fitted on every other size
#: of data/modern's nccl-tests of L40S (2, 4 and 8 GPUs; 13 % on the sizes left out).
PCIE_BASE_US = 6.5
PCIE_STEP_US = 0.9
#: The share of its PCIe link that a rank reaches in a host not measured, through bridges or
#: the host's memory: 5.9 of 16e9 bytes per second on M40 (data/deepbench), whether 2, 4 or 8 GPUs
#: take part. GTX TITAN X and P100 in other hosts come out 0 to 6 % off with it; TITAN X Pascal
#: reaches 0.76, 0.70 and 0.55, and eight L40S on two sockets 0.04 (topology pcie-l40s).
_PCIE_SHARE = 0.37
#: Servers whose GPUs are bridged in pairs reach each other directly over PCIe too: the share of the
#: link of four A100 (data/modern, vidur; H100's come out 3 to 6 % off with it).
_BRIDGED_SHARE = 0.72
#: PCIe 3.0 x16, one direction, where a GPU names no link at all.
_DEFAULT_PCIE_GBPS = 16.0
#: PCIe up to 3.0, whose hosts have one network card, of 56 Gb/s (FDR InfiniBand), and the share of
#: it that 16 and 32 M40 reach (data/deepbench; GTX TITAN X the same, P100 0.45, TITAN X Pascal
#: 0.77).
_OLDER_PCIE_GBPS = 16.0
_OLDER_CARD_GBPS = 7.0
_OLDER_CARD_SHARE = 0.58
#: Half width of the 80 % interval over PCIe where the box is not known: hosts differ by 10 times.
_PCIE_SPREAD = 0.6


def system_of(gpu: GPU) -> Topology:
    """How the GPU is joined with others: as stated, else as in its reference system.

    >>> from neusight.predictors.gpu import find_gpu
    >>> system_of(find_gpu("H100")).name
    'dgx-h100'
    """
    return gpu.topology if gpu.topology is not None else _reference_of(gpu)


def place_of(size: CollectiveSize, gpu: GPU) -> GroupPlacement:
    """How a group of such GPUs lies on their system; TopologyError as `placement_of`."""
    return placement_of(size, system_of(gpu), is_stated=gpu.topology is not None)


@cache
def _reference_of(gpu: GPU) -> Topology:
    known = reference_by_name(gpu.model)
    base = known or Topology(f"usual of {gpu.name}", _GPUS_PER_NODE, _inside(gpu))
    network = base.network or _usual_network(gpu, base)
    return base.with_network(replace(network, spread=_UNSTATED_SPREAD))


def _usual_network(gpu: GPU, base: Topology) -> Level:
    """A card a GPU; in hosts of PCIe 3 alone, one."""
    level, pcie = base.inside[-1], gpu.pcie_gbps or _DEFAULT_PCIE_GBPS
    if level.kind == "pcie" and len(base.inside) == 1 and pcie <= _OLDER_PCIE_GBPS:
        return Level("network", _OLDER_CARD_GBPS, nics_per_node=1, share=_OLDER_CARD_SHARE)
    card_gbps = _AMPERE_CARD_GBPS if gpu.compute_capability == _AMPERE else _CARD_GBPS
    return Level("network", card_gbps, nics_per_node=base.gpus_per_node)


def is_bridged(gpu: GPU) -> bool:
    """Whether its link joins it with one other GPU only."""
    return "pair" in gpu.link_kind


def _inside(gpu: GPU) -> tuple[Level, ...]:
    """The links of a node, by what the GPU has."""
    pcie = gpu.pcie_gbps or _DEFAULT_PCIE_GBPS
    if is_bridged(gpu):
        bridge = Level("switch", gpu.link_gbps, ranks=2)
        return bridge, _over_pcie(pcie, _GPUS_PER_NODE, _BRIDGED_SHARE)
    if gpu.link_gbps and "PCIe" not in gpu.link_kind:
        return (Level("switch", gpu.link_gbps, ranks=_GPUS_PER_NODE),)
    return (_over_pcie(pcie, _GPUS_PER_NODE, _PCIE_SHARE),)


def _over_pcie(gbps: float, ranks: int, share: float) -> Level:
    return Level(
        "pcie", gbps, ranks=ranks, share=share, base_us=PCIE_BASE_US, hop_us=PCIE_STEP_US,
        spread=_PCIE_SPREAD,
    )  # fmt: skip
