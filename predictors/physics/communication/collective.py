"""How long a collective takes: a floor that grows with the ranks, and bytes over what joins them.

Constants fitted on a sample of data/modern's nccl-tests rows on NVSwitch (1,440 rows, 6 GPUs):
10-25 % per GPU and collective, with the floor of each GPU known.
"""

from __future__ import annotations

import math
from dataclasses import replace

from neusight.predictors.clusters.placement import GroupPlacement
from neusight.predictors.clusters.topology import Level
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, CollectiveSize, Kernel, KernelClass, size_of
from neusight.predictors.physics.communication.channels import CHANNEL_THREADS, num_channels
from neusight.predictors.physics.communication.measured import (
    curve_of,
    measured_spread,
    measured_us,
)
from neusight.predictors.physics.communication.network import Crossing, network_us
from neusight.predictors.physics.communication.system import place_of, system_of
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.physical_time import PhysicalTime, smooth_maximum
from neusight.predictors.physics.roofline import sent_bytes, switches_add_up

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

#: Switches of NVLink 4 and 5 add up (NVLS), so that a rank's buffer crosses its link once, at this
#: share of it, from so many ranks on, by major compute capability. Of H100 and H200 the share that
#: the bus bandwidths of data/achievable show (all_reduce of 8 GiB on 5 to 8 GPUs, 0.575 to 0.60);
#: of Blackwell that of data/modern's nccl-tests of B200 on 8, every other size (8 GiB reach 0.53).
#: Other collectives, and fewer ranks, were measured no faster than rings.
_NVLS = {9: (5, 0.585), 10: (6, 0.50)}
#: Bytes of an element from which on they can (PTX ISA, multimem.ld_reduce: f16, bf16, f32 and
#: wider, integers of 32 bits): rows of int8 are as slow as rings.
_NVLS_ITEM_BYTES = 2

#: What protocol LL reaches between two nodes and between more, 1e9 bytes per second, before Hopper
#: and from it on, and the GPUs on which LL128 is used (NCCL 2.27, src/graph/tuning.cc: llMaxBws,
#: protoEnable).
_LL_GBPS = {False: (22.5, 19.0), True: (45.0, 35.0)}
_HOPPER = (9, 0)
_LL128_CAPABILITIES = frozenset({(7, 0), (8, 0), (9, 0), (10, 0), (12, 0)})

#: Half width of the 80 % interval on switched NVLink.
_SPREAD = 0.25

#: The barrier of the ranks before and after they read each other's memory, µs. A prior; published
#: figures of such an all-reduce of 8 KiB are 5 to 8 µs.
_BARRIER_US = 5.0
#: The same of that kind, and of none that was measured.
_DIRECT_SPREAD = 0.4


def inside_gbps(gpu: GPU, level: Level, *, world_size: int) -> float:
    """Bandwidth that a rank gets of a level inside nodes, one direction, 1e9 bytes per second."""
    if level.kind == "pcie":
        return level.gbps * level.share
    if level.kind == "mesh":  # a link to each of the others
        return level.gbps * max(1, world_size - 1) * _LINK_SHARE
    rate = min(level.gbps, gpu.link_gbps) if gpu.link_gbps else level.gbps
    return rate * _LINK_SHARE


def collective_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """The time of one collective on every rank, once all have arrived.

    With one rank nothing crosses a link: the floor of a copy. TopologyError where no level of the
    GPU's topology joins the group.
    """
    size = size_of(kernel, CollectiveSize)
    if size.world_size <= 1:
        copy_us = 2.0 * size.num_bytes / gpu.dram_bytes_per_us
        return PhysicalTime(time_us=gpu.floor_us + copy_us, bound="communication", spread=_SPREAD)
    if kernel.variant in ("one_shot", "two_shot"):
        reads_us = direct_us(size, gpu, in_two=kernel.variant == "two_shot")
        if math.isfinite(reads_us):
            return PhysicalTime(time_us=reads_us, bound="communication", spread=_DIRECT_SPREAD)
    at_most_us = math.inf
    place = place_of(size, gpu)
    curve = curve_of(kernel.name, size, place, system_of(gpu))
    if curve is None:
        time_us, level = physical_us(kernel.name, size, gpu, place), place.network or place.inside
        spread = _SPREAD if level.kind == "switch" else level.spread
        if _is_added_up(kernel):
            at_most_us = _in_switches_us(size, gpu, place)
    else:
        time_us = measured_us(
            curve,
            size.num_bytes,
            lambda moved: physical_us(kernel.name, size._replace(num_bytes=moved), gpu, place),
        )
        spread = measured_spread(curve, size.num_bytes)
    launch = geometry_of(
        KernelClass.COLLECTIVE, gpu,
        num_ctas=channels_of(kernel, gpu), threads_per_cta=CHANNEL_THREADS,
    )  # fmt: skip
    return PhysicalTime(
        time_us=time_us,
        bound="communication",
        spread=spread,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
        at_most_us=at_most_us,
    )


def direct_us(size: CollectiveSize, gpu: GPU, *, in_two: bool) -> float:
    """An all-reduce in which each rank reads what all others hold, or (`in_two`) its part of it and
    then the other parts of the sum; infinite where NVLink does not join the ranks."""
    if not reads_peers(gpu) or size.num_nodes > 1:
        return math.inf
    others_us = (size.world_size - 1) * size.num_bytes / (gpu.link_gbps * 1e3)
    return 2.0 * (_BARRIER_US + others_us / size.world_size) if in_two else _BARRIER_US + others_us


def reads_peers(gpu: GPU) -> bool:
    """Whether GPUs of a host are joined so that their kernels read each other's memory."""
    return system_of(gpu).levels[0].kind != "pcie" and gpu.link_gbps > 0


def channels_of(kernel: Kernel, gpu: GPU) -> int:
    """How many channels, and so SMs, the kernel of a collective holds.

    >>> from neusight.predictors.gpu import find_gpu
    >>> [channels_of(Kernel.collective(name, 2**28, 8), find_gpu("H100"))
    ...  for name in ("all_gather", "all_reduce")]
    [24, 16]
    """
    size = size_of(kernel, CollectiveSize)
    place = place_of(size, gpu)
    in_switches = _is_added_up(kernel) and math.isfinite(_in_switches_us(size, gpu, place))
    return num_channels(kernel.name, size, gpu, place, adds_in_switches=in_switches)


def _is_added_up(kernel: Kernel) -> bool:
    return kernel.name == "all_reduce" and DTYPE_BYTES[kernel.dtype] >= _NVLS_ITEM_BYTES


def physical_us(name: str, size: CollectiveSize, gpu: GPU, place: GroupPlacement) -> float:
    """The time of a collective of a group that lies so, µs, whatever was measured of it."""
    if place.network is None:
        return _inside_us(name, size.world_size, size.num_bytes, gpu, place.inside)
    return _between_us(name, size, gpu, place, place.network)


def _inside_us(name: str, world_size: int, num_bytes: float, gpu: GPU, level: Level) -> float:
    bandwidth = inside_gbps(gpu, level, world_size=world_size)
    wire_us = sent_bytes(name, num_bytes, world_size) / (bandwidth * 1e3)
    if level.kind == "pcie":
        steps = (2 if name == "all_reduce" else 1) * (world_size - 1)
        return level.base_us + steps * level.hop_us + wire_us
    growth = _growth(world_size)
    floor_us = gpu.link_floor_us * growth * _FLOOR_SHARES.get(name, 1.0)
    is_direct = name == "send_recv"
    if is_direct:
        wire_us *= _LINK_SHARE / _DIRECT_LINK_SHARE
    share = _DIRECT_PIPELINE_SHARE if is_direct else _PIPELINE_SHARE
    pipeline_us = share * gpu.link_floor_us * growth
    start_us = pipeline_us * wire_us / (wire_us + pipeline_us)
    return smooth_maximum(floor_us, wire_us) + start_us


def _in_switches_us(size: CollectiveSize, gpu: GPU, place: GroupPlacement) -> float:
    """An all-reduce in the switches that join the ranks; infinite where they do not add up."""
    level = place.inside
    least, share = _NVLS.get(gpu.compute_capability[0], (0, 0.0))
    is_able = switches_add_up(gpu) and level.kind == "switch" and level.ranks >= least
    if not is_able or place.network is not None or size.world_size < least:
        return math.inf
    rate = inside_gbps(gpu, level, world_size=size.world_size) * share / _LINK_SHARE
    start_us = _PIPELINE_SHARE * gpu.link_floor_us * _growth(size.world_size)
    return start_us + size.num_bytes / (rate * 1e3)


def _between_us(
    name: str, size: CollectiveSize, gpu: GPU, place: GroupPlacement, network: Level
) -> float:
    reached = network.gbps * network.share / network.oversubscription
    inside = place.inside
    group = Crossing(
        num_ranks=size.world_size,
        num_nodes=place.num_islands,
        least=place.least,
        most=place.most,
        link_gbps=inside_gbps(gpu, inside, world_size=place.most),
        cards_gbps=reached * place.cards,
        card_gbps=reached * place.cards_of_one,
        base_us=network.base_us,
        hop_us=network.hop_us,
        inside=lambda kind, ranks, moved: _inside_us(kind, ranks, moved, gpu, inside),
        reduces=network.sharp,
    )
    return network_us(name, size.num_bytes, _with_protocols(group, gpu, inside))


def _with_protocols(group: Crossing, gpu: GPU, inside: Level) -> Crossing:
    """The same with what NCCL may use on such GPUs, joined so inside nodes."""
    is_pcie = inside.kind == "pcie"
    return replace(
        group,
        adds_inside=switches_add_up(gpu) and inside.kind == "switch" and group.most > 1,
        ll_gbps=_LL_GBPS[gpu.compute_capability >= _HOPPER][group.num_nodes > 2],
        has_ll128=not is_pcie and gpu.compute_capability in _LL128_CAPABILITIES,
        is_pcie=is_pcie,
    )


def _growth(world_size: int) -> float:
    """The floor over that of eight ranks: linear in the ranks of one host up to eight, then in
    their logarithm (trees)."""
    reach = min(world_size, _FLOOR_RANKS) - 2
    growth = _PAIR_FLOOR_SHARE + (1 - _PAIR_FLOOR_SHARE) * reach / (_FLOOR_RANKS - 2)
    if world_size > _FLOOR_RANKS:
        growth *= 1.0 + 0.25 * math.log2(world_size / _FLOOR_RANKS)
    return growth
