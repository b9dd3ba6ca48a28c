"""How long a collective takes: a floor that grows with the ranks, and bytes over the link.

Constants fitted on a sample of data/modern's nccl-tests rows on NVSwitch (1,440 rows, 6 GPUs):
10-25 % per GPU and collective, with the floor of each GPU known.
"""

from __future__ import annotations

import math

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize, Kernel, KernelClass
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.network import card_gbps, network_us
from neusight.predictors.physics.physical_time import PhysicalTime, smooth_maximum
from neusight.predictors.physics.roofline import sent_bytes

__all__ = ["collective_timing", "link_bandwidth_gbps"]

#: Ranks at which `GPU.link_floor_us` is stated.
_FLOOR_RANKS = 8

#: The floor of two ranks as a share of that of eight.
_PAIR_FLOOR_SHARE = 0.55

#: Floor of a collective as a share of all_reduce's; what was not measured is a prior.
_FLOOR_SHARES = {
    "all_reduce": 1.0,
    "all_gather": 0.75,
    "reduce_scatter": 0.73,
    "all_to_all": 0.78,
    "broadcast": 0.65,
    "reduce": 0.65,
    "send_recv": 0.5,
}

#: Share of the link that a long message's rings reach.
_LINK_SHARE = 0.66

#: What the start of the pipeline adds to longer messages, as a multiple of all_reduce's floor: they
#: leave the protocols of the lowest latency (LL, LL128).
_PIPELINE_SHARE = 4.7
#: The same where a rank has one neighbour only (data/modern send_recv on A100 and H100), and the
#: link's share then.
_DIRECT_PIPELINE_SHARE = 0.6
_DIRECT_LINK_SHARE = 0.85
_DIRECT = frozenset({"send_recv"})

#: Over PCIe, and beyond two ranks of GPUs bridged in pairs, all share the host's bridges: this
#: share of the host link for two, less in proportion for more. Hosts differ by 10 times.
_PCIE_SHARE = 0.5

#: Half width of the 80 % interval: on switched NVLink, and where the host decides.
_SPREAD = 0.25
_HOST_SPREAD = 0.6


def link_bandwidth_gbps(gpu: GPU, *, world_size: int) -> float:
    """Bandwidth that a rank of a host gets, one direction, 1e9 bytes per second."""
    paired = "pair" in gpu.link_kind and world_size > 2
    if gpu.link_gbps and not paired and "PCIe" not in gpu.link_kind:
        return gpu.link_gbps * _LINK_SHARE
    return (gpu.pcie_gbps or _DEFAULT_PCIE_GBPS) * _PCIE_SHARE * 2.0 / max(2, world_size)


#: PCIe 3.0 x16, one direction, where a GPU names no link at all.
_DEFAULT_PCIE_GBPS = 16.0


def collective_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """The time of one collective on every rank, once all have arrived.

    With one rank nothing crosses a link: the floor of a copy.
    """
    size = kernel.size
    assert isinstance(size, CollectiveSize)
    if size.world_size <= 1:
        copy_us = 2.0 * size.num_bytes / (gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization)
        return PhysicalTime(time_us=gpu.floor_us + copy_us, bound="communication", spread=_SPREAD)
    if size.num_nodes > 1:
        time_us = _between_hosts_us(kernel.name, size, gpu)
    else:
        time_us = _inside_us(kernel.name, size.world_size, size.num_bytes, gpu)
    launch = geometry_of(
        KernelClass.COLLECTIVE, gpu, num_ctas=_NCCL_CHANNELS, threads_per_cta=_NCCL_THREADS
    )
    return PhysicalTime(
        time_us=time_us,
        bound="communication",
        spread=_SPREAD if _is_switched(size, gpu) else _HOST_SPREAD,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def _inside_us(name: str, world_size: int, num_bytes: float, gpu: GPU) -> float:
    """A collective on one host."""
    growth = _growth(world_size)
    floor_us = gpu.link_floor_us * growth * _FLOOR_SHARES.get(name, 1.0)
    bandwidth = link_bandwidth_gbps(gpu, world_size=world_size)
    is_direct = name in _DIRECT
    if is_direct:
        bandwidth *= _DIRECT_LINK_SHARE / _LINK_SHARE
    wire_us = sent_bytes(name, num_bytes, world_size) / (bandwidth * 1e3)
    share = _DIRECT_PIPELINE_SHARE if is_direct else _PIPELINE_SHARE
    pipeline_us = share * gpu.link_floor_us * growth
    start_us = pipeline_us * wire_us / (wire_us + pipeline_us)
    return smooth_maximum(floor_us, wire_us) + start_us


def _between_hosts_us(name: str, size: CollectiveSize, gpu: GPU) -> float:
    return network_us(
        name,
        size.num_bytes,
        world_size=size.world_size,
        num_nodes=size.num_nodes,
        link_gbps=link_bandwidth_gbps(gpu, world_size=size.world_size // size.num_nodes),
        network_gbps=card_gbps(gpu),
        inside=lambda kind, ranks, num_bytes: _inside_us(kind, ranks, num_bytes, gpu),
    )


def _growth(world_size: int) -> float:
    """The floor over that of eight ranks: linear in the ranks of one host up to eight, then in
    their logarithm (trees)."""
    reach = min(world_size, _FLOOR_RANKS) - 2
    growth = _PAIR_FLOOR_SHARE + (1 - _PAIR_FLOOR_SHARE) * reach / (_FLOOR_RANKS - 2)
    if world_size > _FLOOR_RANKS:
        growth *= 1.0 + 0.25 * math.log2(world_size / _FLOOR_RANKS)
    return growth


def _is_switched(size: CollectiveSize, gpu: GPU) -> bool:
    """Whether all ranks meet over NVLink on one host, and not in pairs."""
    is_linked = size.num_nodes == 1 and gpu.link_kind.startswith("NVLink") and gpu.link_gbps > 0
    return is_linked and "pair" not in gpu.link_kind


#: CTAs and threads of an NCCL kernel on NVLink (NCCL 2.2x defaults).
_NCCL_CHANNELS = 24
_NCCL_THREADS = 512
