"""The system that a GPU is in: the one that is stated, else what is usual for its kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from neusight.predictors.clusters.named import reference_by_name
from neusight.predictors.clusters.topology import Level, Topology
from neusight.predictors.gpu import GPU

__all__ = ["PCIE_BASE_US", "PCIE_STEP_US", "is_bridged", "system_of"]

#: GPUs of a node where nobody says.
_GPUS_PER_NODE = 8

#: One direction of a network card, 1e9 bytes per second, one a GPU: 400 Gb/s (DGX H100 and B200
#: datasheets), on Ampere 200 Gb/s (DGX A100 datasheet). An L40S or an older GPU seldom has one of
#: its own; it is taken to have.
_CARD_GBPS = 50.0
_AMPERE_CARD_GBPS = 25.0
_AMPERE = (8, 0)

#: Half width of the 80 % interval between nodes where nobody said which network there is.
_UNSTATED_SPREAD = 0.9

#: Over PCIe, fitted on every other size of data/modern's nccl-tests of L40S (2, 4 and 8 GPUs; 37 %
#: off before, 13 % on the sizes left out): what a collective costs at least, and each step of it;
#: the share of the link that two GPUs reach directly; and what each of 4 and of 8 reaches through
#: the host's memory, 1e9 bytes per second over PCIe 4 x16 (8 lie on two sockets).
PCIE_BASE_US = 6.5
PCIE_STEP_US = 0.9
_PCIE_PAIR_SHARE = 0.6
_HOST_GBPS = 4.75
_SOCKETS_GBPS = 1.23
_HOST_RANKS = 4
_PCIE4_GBPS = 32.0
#: Servers whose GPUs are bridged in pairs reach each other directly over PCIe too: the share of the
#: link of four A100 (data/modern, vidur; H100's come out 3 to 6 % off with it).
_BRIDGED_SHARE = 0.72
#: PCIe 3.0 x16, one direction, where a GPU names no link at all.
_DEFAULT_PCIE_GBPS = 16.0
#: Half width of the 80 % interval over PCIe where the box is not known: hosts differ by 10 times.
_PCIE_SPREAD = 0.6


def system_of(gpu: GPU) -> Topology:
    """How the GPU is joined with others: as stated, else as in its reference system.

    >>> from neusight.predictors.gpu import find_gpu
    >>> system_of(find_gpu("H100")).name
    'dgx-h100'
    """
    return gpu.topology if gpu.topology is not None else _reference_of(gpu)


@cache
def _reference_of(gpu: GPU) -> Topology:
    known = reference_by_name(gpu.model)
    base = known or Topology(f"usual of {gpu.name}", _GPUS_PER_NODE, _inside(gpu))
    cards = base.gpus_per_node
    card_gbps = _AMPERE_CARD_GBPS if gpu.compute_capability == _AMPERE else _CARD_GBPS
    network = base.network or Level("network", card_gbps, nics_per_node=cards)
    return base.with_network(replace(network, spread=_UNSTATED_SPREAD))


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
    newer = pcie / _PCIE4_GBPS
    staged = (
        _over_pcie(_HOST_GBPS * newer, _HOST_RANKS, 1.0),
        _over_pcie(_SOCKETS_GBPS * newer, _GPUS_PER_NODE, 1.0),
    )
    if "GeForce" in gpu.driver_name:  # its driver has no direct transfers
        return staged
    return _over_pcie(pcie, 2, _PCIE_PAIR_SHARE), *staged


def _over_pcie(gbps: float, ranks: int, share: float) -> Level:
    return Level(
        "pcie", gbps, ranks=ranks, share=share, base_us=PCIE_BASE_US, hop_us=PCIE_STEP_US,
        spread=_PCIE_SPREAD,
    )  # fmt: skip
