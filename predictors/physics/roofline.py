"""The bounds no kernel beats: FLOPs over peak and bytes over bandwidth."""

from __future__ import annotations

from math import prod

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    HOST_COPIES,
    PEER_COPY,
    CollectiveSize,
    ConvolutionSize,
    Kernel,
    KernelClass,
    size_of,
)

#: Classes whose arithmetic runs on matrix units where the GPU has them.
MATRIX_CLASSES = frozenset({KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION})

#: Share of each rank's buffer that crosses its link, by collective, as (numerator of n, constant):
#: ring algorithms (Thakur et al. 2005, "Optimization of Collective Communication Operations in
#: MPICH"; nccl-tests, PERFORMANCE.md).
_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


#: Footprint, in units of the L2, at which half of the traffic reaches DRAM (fitted on data/modern
#: static fp8 quantisation and adds of 6 GPUs).
L2_REACH = 0.75


def flop_roofline_us(kernel: Kernel, gpu: GPU) -> float:
    """FLOPs over datasheet peak, µs; Winograd convolutions count what they leave.

    UnsupportedKernelError where the GPU has no such unit.
    """
    if kernel.flops == 0:
        return 0.0
    matrix = kernel.kernel_class in MATRIX_CLASSES
    flops = kernel.flops / _least_saving(kernel, gpu)
    return flops / gpu.peak_flops(kernel.compute, matrix=matrix) * 1e6


def _least_saving(kernel: Kernel, gpu: GPU) -> float:
    """How many times fewer multiplications than a direct convolution's may be made: by Winograd's
    F(2, r) in each dimension whose r taps lie side by side, 2r/(r + 1) (Winograd 1980; 2.25 for
    3 x 3). cuDNN has it for FP32 on ordinary cores, MIOpen for all dtypes."""
    size = kernel.size
    if not isinstance(size, ConvolutionSize) or kernel.variant == "dilated":
        return 1.0
    if gpu.vendor == "nvidia" and (kernel.compute != "fp32" or gpu.has_matrix_unit("fp32")):
        return 1.0
    taps = [
        edge for edge, step in zip(size.kernel, size.stride, strict=True) if edge > 1 and step == 1
    ]
    return prod(2.0 * edge / (edge + 1.0) for edge in taps)


def is_winograd(kernel: Kernel, gpu: GPU) -> bool:
    """Whether cuDNN would use Winograd's algorithm: 3 x 3, stride 1, FP32 on ordinary cores."""
    size = kernel.size
    return (
        isinstance(size, ConvolutionSize)
        and size.kernel == (3, 3)
        and size.stride == (1, 1)
        and size.groups == 1
        and kernel.compute == "fp32"
        and gpu.vendor == "nvidia"
        and not gpu.has_matrix_unit("fp32")
    )


#: Instructions that an SM starts a clock from this compute capability on: of four warps, for
#: integers and floating point alike.
_ISSUED = 128
_FOUR_SCHEDULERS_SINCE = (7, 0)


def instructions_per_second(gpu: GPU) -> float:
    """How many instructions of threads a GPU starts."""
    if gpu.vendor != "nvidia" or gpu.compute_capability < _FOUR_SCHEDULERS_SINCE:
        return gpu.peak_flops("fp32") / 2.0
    return _ISSUED * gpu.num_sms * gpu.clock_hz


def memory_roofline_us(kernel: Kernel, gpu: GPU) -> float:
    """Compulsory bytes over the bandwidth of what carries them (DRAM, link, host link), µs."""
    if isinstance(kernel.size, CollectiveSize):
        link = gpu.link_gbps or gpu.pcie_gbps
        sent = wire_bytes(kernel)
        if kernel.name == "all_reduce" and switches_add_up(gpu):
            sent = min(sent, float(kernel.size.num_bytes))
        return sent / (link * 1e3) if link else 0.0
    if kernel.name in HOST_COPIES:
        num_bytes = max(kernel.bytes_read, kernel.bytes_written)
        return num_bytes / (gpu.pcie_gbps * 1e3) if gpu.pcie_gbps else 0.0
    if kernel.name == PEER_COPY:
        link = gpu.link_gbps or gpu.pcie_gbps
        return max(kernel.bytes_read, kernel.bytes_written) / (link * 1e3) if link else 0.0
    return kernel.num_bytes / (gpu.bandwidth_gbps * 1e3)


def switches_add_up(gpu: GPU) -> bool:
    """Whether the switches of its link can reduce (NVLink 4 and 5: NVLS), so that what is reduced
    crosses the link of each GPU once."""
    is_nvlink = gpu.link_kind.startswith("NVLink") and "pair" not in gpu.link_kind
    return is_nvlink and gpu.nvidia_major in (9, 10)


def cold_share(footprint_bytes: float, gpu: GPU) -> float:
    """Share of the traffic that reaches DRAM, 0 to 1: the footprint against the L2, smoothly."""
    ratio = footprint_bytes / (L2_REACH * gpu.l2_bytes)
    squares = ratio * ratio
    return squares / (1.0 + squares)


def dram_us(num_bytes: float, gpu: GPU) -> float:
    """What moving so many bytes once takes of the DRAM, as far as they do not lie in the L2, µs."""
    return num_bytes * cold_share(num_bytes, gpu) / gpu.dram_bytes_per_us


def roofline_us(kernel: Kernel, gpu: GPU) -> float:
    """The shortest time the datasheet allows, µs: the larger of FLOPs/peak and bytes/bandwidth.

    >>> from neusight.predictors.gpu import find_gpu
    >>> round(roofline_us(Kernel.gemm(8192, 8192, 8192), find_gpu("A100")))
    3524
    """
    return max(flop_roofline_us(kernel, gpu), memory_roofline_us(kernel, gpu))


def wire_bytes(kernel: Kernel) -> float:
    """Bytes that each GPU sends over its link in a collective."""
    size = size_of(kernel, CollectiveSize)
    return sent_bytes(kernel.name, size.num_bytes, size.world_size)


def sent_bytes(kind: str, num_bytes: float, ranks: int) -> float:
    """Bytes that a rank sends in a collective of that kind on a buffer of `num_bytes`."""
    if ranks <= 1:
        return 0.0
    passes = _PASSES.get(kind)
    if passes is None:  # broadcast, reduce, send_recv: the buffer crosses once
        return float(num_bytes)
    return passes * (ranks - 1) / ranks * num_bytes
