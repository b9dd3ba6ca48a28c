"""What a collective takes from the kernels that run beside it: SMs, and bandwidth of the DRAM.

NCCL's kernels hold an SM a channel (`channels`), from the first to the last moment, waiting
included; what they send is read and what they receive is written. A memory-bound kernel beside one
is 1.1 to 1.3 times as long on H100 by that; in a public profile of H800s under expert
communication it was 1.05 to 1.35 times. Other kernels slow no collective: its CTAs stay on their
SMs, and memory shared fairly leaves it the little that it needs. Collectives slow each other
(`sharing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import COPY_ENGINE_KERNELS, CollectiveSize, Kernel, KernelClass
from neusight.predictors.physics.communication.collective import channels_of
from neusight.predictors.physics.physical_time import Bound
from neusight.predictors.physics.roofline import wire_bytes

#: A collective leaves at least this share of SMs and bandwidth.
_LEAST_LEFT = 0.5

#: Passes over the DRAM of what a rank sends: it is read here, and as much is written.
_DRAM_PASSES = 2.0


@dataclass(frozen=True)
class Contention:
    """The shares of a GPU's SMs and of its DRAM's bandwidth that are left beside a collective."""

    sms_left: float = 1.0
    bandwidth_left: float = 1.0


def contention_of(collective: Kernel, time_us: float, gpu: GPU) -> Contention:
    """What is left beside a collective that moves its bytes in `time_us`.

    >>> from neusight.predictors.gpu import find_gpu
    >>> beside = Kernel.collective("all_reduce", 2**26, 8)
    >>> round(1 / contention_of(beside, 400.0, find_gpu("H100")).sms_left, 2)
    1.14
    """
    size = collective.size
    assert isinstance(size, CollectiveSize)
    if size.world_size <= 1 or time_us <= 0.0:
        return Contention()
    held = channels_of(collective, gpu) / gpu.num_sms
    bandwidth = gpu.bandwidth_gbps * gpu.bandwidth_utilization
    taken = _DRAM_PASSES * wire_bytes(collective) / (time_us * 1e3) / bandwidth
    return Contention(max(_LEAST_LEFT, 1.0 - held), max(_LEAST_LEFT, 1.0 - taken))


def slowdown(kernel: Kernel, bound: Bound, beside: Contention) -> float:
    """How many times as long a kernel takes while that is all it has, by what bounds it: copy
    engines and launches need neither."""
    if kernel.kernel_class is KernelClass.COLLECTIVE or kernel.name in COPY_ENGINE_KERNELS:
        return 1.0
    if bound == "compute":
        return 1.0 / beside.sms_left
    return 1.0 / beside.bandwidth_left if bound == "memory" else 1.0
