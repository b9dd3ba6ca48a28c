"""How many channels NCCL's kernel of a collective has: each is a CTA, which holds an SM.

As NCCL 2.18 to 2.27 print of themselves under NCCL_DEBUG=INFO, and as its source chooses.
"""

from __future__ import annotations

import math

from neusight.predictors.clusters.placement import GroupPlacement
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize

#: Inside a host over NVLink, two for each link of 25 GB/s, up to 24: "24 coll channels, 16 nvls
#: channels, 32 p2p channels" of 8 H100 (18 links) and 24 of A100 (12), 16 of H800 (8; NCCL issue
#: 892), 12 of V100 (6).
_LINK_GBPS = 25.0
_CHANNELS_A_LINK = 2
_MOST_CHANNELS = 24
#: An all-reduce that the switches add up: "NVLS should not need more than 16 channels to get peak
#: BW" (NCCL issue 1041).
_SWITCH_CHANNELS = 16
#: Over PCIe ("4 coll channels").
_PCIE_CHANNELS = 4
#: Between hosts, two for each network card that the group has (NCCL issue 1041: execution channels
#: are twice those that its search finds, one a card), and as many for a pair ("2 p2p channels per
#: peer", NCCL issue 1189).
_CHANNELS_A_CARD = 2
#: A pair inside a host over NVLink: "32 p2p channels per peer".
_PAIR_CHANNELS = 32

#: Threads of a channel's CTA, and the bytes that each of them has at least, or there are fewer
#: channels ("threadThresholds 8/8/64": protocol Simple).
CHANNEL_THREADS = 512
_LEAST_BYTES_A_THREAD = 64

#: NVIDIA's GPUs on which CTAs of a kernel may form clusters, whose SMs are neighbours, by major
#: compute capability. NCCL's do since 2.17 (`cgaClusterSize` of ncclConfig_t: 4, and 2 for
#: DistributedDataParallel, torch pull request 97394), which torch brings since 2.1 (NCCL 2.18.1).
_CLUSTER_MAJORS = (9, 10)
_CLUSTERS_SINCE = (2, 1)


def has_clusters(gpu: GPU) -> bool:
    """Whether large products have clusters of CTAs on this GPU.

    >>> from neusight.predictors.gpu import find_gpu
    >>> [has_clusters(find_gpu(name)) for name in ("A100", "H100")]
    [False, True]
    """
    return gpu.nvidia_major in _CLUSTER_MAJORS


def nccl_has_clusters(torch: tuple[int, int]) -> bool:
    """Whether the NCCL of a release of torch launches clusters, where the GPU has them.

    >>> [nccl_has_clusters(release) for release in ((2, 0), (2, 13))]
    [False, True]
    """
    return torch >= _CLUSTERS_SINCE


def num_channels(
    kind: str, size: CollectiveSize, gpu: GPU, place: GroupPlacement, *, adds_in_switches: bool
) -> int:
    """The channels of a collective of a group that lies so; `adds_in_switches`: by NVLS."""
    if place.network is not None:
        cards = place.cards_of_one if kind == "send_recv" else place.cards
        most = _CHANNELS_A_CARD * max(1, round(cards))
    elif place.inside.kind == "pcie":
        most = _PCIE_CHANNELS
    elif adds_in_switches:
        most = _SWITCH_CHANNELS
    elif kind == "send_recv":
        most = _PAIR_CHANNELS
    else:
        most = _CHANNELS_A_LINK * max(1, round(gpu.link_gbps / _LINK_GBPS))
    if kind != "send_recv":
        most = min(most, _MOST_CHANNELS)
    filled = math.ceil(size.num_bytes / (CHANNEL_THREADS * _LEAST_BYTES_A_THREAD))
    return max(1, min(most, filled))
