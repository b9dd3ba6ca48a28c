"""What a collective takes from the kernels that run beside it: SMs, and bandwidth of the DRAM.

NCCL's kernels hold an SM a channel (`channels`), from the first to the last moment, waiting
included; what they send is read and what they receive is written. A memory-bound kernel beside one
is 1.1 to 1.3 times as long on H100 by that; in a public profile of H800s under expert
communication it was 1.05 to 1.35 times. That other kernels slow no collective, because memory
shared fairly leaves it the little that it needs, is a prior. Collectives slow each other
(`sharing`).

Measured on H100 beside a copy on 1 to 32 CTAs, each on an SM (`beside_a_copy` of
benchmarks/measured/h100, of which no constant was read): a product of 8192 x 8192 x 8192 takes 1.07
to 1.88 times as long, here 1.01 to 1.95; attention 1.01 to 1.33, here 1.01 to 1.32; a layer norm
1.01 to 1.28, here 1.01 to 1.32. An elementwise kernel takes 1.00 to 1.15 times as long, by what the
copy takes of the DRAM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    COPY_ENGINE_KERNELS,
    CollectiveSize,
    Kernel,
    KernelClass,
    size_of,
)
from neusight.predictors.physics.communication.channels import has_clusters
from neusight.predictors.physics.communication.collective import channels_of
from neusight.predictors.physics.gemm import CONSTANTS
from neusight.predictors.physics.physical_time import Bound
from neusight.predictors.physics.roofline import wire_bytes

#: A collective leaves at least this share of SMs and bandwidth.
_LEAST_LEFT = 0.5

#: Passes over the DRAM of what a rank sends: it is read here, and as much is written.
_DRAM_PASSES = 2.0

#: What comes in tiles, one a CTA: fewer SMs need more waves. What reads rows waits for its SMs,
#: even where the bytes that it moves are most of its time.
_OF_TILES = frozenset({KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION})
_OF_ROWS = frozenset({KernelClass.NORMALIZATION, KernelClass.SOFTMAX, KernelClass.REDUCTION})


@dataclass(frozen=True)
class Contention:
    """The shares of a GPU's SMs and of its DRAM's bandwidth that are left beside a collective, and
    of the SMs that are left with a neighbour, for clusters of two CTAs."""

    sms_left: float = 1.0
    bandwidth_left: float = 1.0
    pairs_left: float = 1.0


def contention_of(
    collective: Kernel, time_us: float, gpu: GPU, *, in_clusters: bool = True
) -> Contention:
    """What is left beside a collective that moves its bytes in `time_us`; its CTAs lie beside each
    other where they are `in_clusters`, else each on another pair of SMs.

    >>> from neusight.predictors.gpu import find_gpu
    >>> beside = Kernel.collective("all_reduce", 2**26, 8)
    >>> round(1 / contention_of(beside, 400.0, find_gpu("H100")).sms_left, 2)
    1.14
    """
    if size_of(collective, CollectiveSize).world_size <= 1 or time_us <= 0.0:
        return Contention()
    bandwidth = gpu.bandwidth_gbps * gpu.bandwidth_utilization
    taken = _DRAM_PASSES * wire_bytes(collective) / (time_us * 1e3) / bandwidth
    return without_sms(channels_of(collective, gpu), gpu, taken=taken, in_clusters=in_clusters)


def without_sms(num_ctas: int, gpu: GPU, *, taken: float, in_clusters: bool) -> Contention:
    """What CTAs leave that hold an SM each, and `taken` of the bandwidth.

    >>> from neusight.predictors.gpu import find_gpu
    >>> left = without_sms(33, find_gpu("H100"), taken=0.0, in_clusters=False)
    >>> left.sms_left, left.pairs_left
    (0.75, 0.5)
    """
    sms_left = max(_LEAST_LEFT, 1.0 - num_ctas / gpu.num_sms)
    in_pairs = num_ctas if in_clusters or not has_clusters(gpu) else 2 * num_ctas
    pairs_left = max(_LEAST_LEFT, 1.0 - in_pairs / gpu.num_sms)
    return Contention(sms_left, max(_LEAST_LEFT, 1.0 - taken), pairs_left)


def slowdown(kernel: Kernel, bound: Bound, beside: Contention, *, num_waves: float) -> float:
    """How many times as long a kernel takes while that is all it has, by what bounds it and how
    many waves of CTAs it is: one full wave becomes two. Copy engines and launches need neither.

    >>> beside = Contention(sms_left=0.75, pairs_left=0.75)
    >>> product = Kernel.gemm(4096, 4096, 4096)
    >>> [round(slowdown(product, "compute", beside, num_waves=n), 2) for n in (0.5, 1.0, 40.0)]
    [1.0, 1.43, 1.34]
    """
    if kernel.kernel_class is KernelClass.COLLECTIVE or kernel.name in COPY_ENGINE_KERNELS:
        return 1.0
    if bound == "memory":
        is_of_rows = kernel.kernel_class in _OF_ROWS
        return 1.0 / min(beside.bandwidth_left, beside.sms_left if is_of_rows else 1.0)
    if bound != "compute":
        return 1.0
    is_product = kernel.kernel_class is KernelClass.GEMM
    left = beside.pairs_left if is_product else beside.sms_left
    if kernel.kernel_class not in _OF_TILES:
        return 1.0 / left
    return _effective(num_waves / left) / _effective(num_waves)


def _effective(num_waves: float) -> float:
    return max(1.0, num_waves + CONSTANTS.tail_cost * (math.ceil(num_waves) - num_waves))
