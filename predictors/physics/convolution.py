"""How long a convolution takes: as an implicit GEMM, or directly with few channels a group.

Forward: M = output pixels, N = output channels, K = input channels x taps. Data gradient: M = input
pixels, K = output channels x taps. Weight gradient: M = output channels, N = input channels x taps,
K = output pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, ConvolutionSize, GemmSize, Kernel, KernelClass
from neusight.predictors.physics.gemm import columns, timings_of_problems
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.memory_bound import cold_share, smooth_maximum
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.roofline import is_winograd

__all__ = ["convolution_timings", "implicit_gemm"]

#: Time of an implicit GEMM over that of a plain one: address arithmetic and halo loads. A prior.
_IMPLICIT_FACTOR = 1.15

#: cuDNN's tensor core kernels want NHWC: for NCHW it transposes inside (one read and write of image
#: and result more); FP32 on ordinary cores has NCHW kernels of its own.
_TRANSPOSE_PASSES = 1.0

#: Channels a group up to which no GEMM is used (PyTorch's conv_depthwise2d and cuDNN's grouped
#: kernels run one thread an output), and the share of the ordinary cores' FLOP/s and the bytes per
#: clock and SM that those reach. Priors.
_DIRECT_CHANNELS = 4
_DIRECT_ALU_SHARE = 0.25
_DIRECT_BYTES = 8.0
_DIRECT_FLOOR_FACTOR = 1.5

#: Threads of their CTAs, one an output (conv_depthwise2d.cu).
_DIRECT_THREADS = 256

_CHANNEL_STEP = 8

#: What Winograd's algorithm gains of its 2.25 after its transforms (data/paper_fp32, 5 GPUs).
_WINOGRAD_SPEEDUP = 1.6

_SPREAD = 0.4


def implicit_gemm(size: ConvolutionSize) -> GemmSize:
    """The matrix product, a group each, that the convolution is.

    >>> implicit_gemm(ConvolutionSize(1, 64, 128, 1, (8, 8), (8, 8), (3, 3), (1, 1), "forward"))
    GemmSize(batch=1, m=64, n=128, k=576)
    """
    taps = prod(size.kernel)
    pixels = size.batch * prod(size.output)
    inputs = size.in_channels // size.groups
    outputs = size.out_channels // size.groups
    if size.direction == "forward":
        return GemmSize(size.groups, pixels, outputs, inputs * taps)
    if size.direction == "weight_gradient":
        return GemmSize(size.groups, outputs, inputs * taps, pixels)
    # Every output pixel meets every tap once, spread over the input pixels.
    strides = max(1, prod(size.stride))
    return GemmSize(
        size.groups, size.batch * prod(size.input), inputs, -(-outputs * taps // strides)
    )


def convolution_timings(
    kernels: Sequence[Kernel], gpu: GPU, *, sustained: bool
) -> list[PhysicalTime]:
    """The time of each convolution kernel, in order."""
    rows = []
    for kernel in kernels:
        size = kernel.size
        assert isinstance(size, ConvolutionSize)
        itemsize = DTYPE_BYTES[kernel.dtype]
        product = implicit_gemm(size)
        if gpu.has_matrix_unit(kernel.compute) and size.direction == "forward":
            product = product._replace(k=_padded_channels(size) * prod(size.kernel))
        if is_winograd(kernel, gpu):
            product = product._replace(k=math.ceil(product.k / _WINOGRAD_SPEEDUP))
        weights = size.out_channels * (size.in_channels // size.groups) * prod(size.kernel)
        weight_bytes = min(float(kernel.num_bytes), weights * itemsize)
        rows.append(
            (
                *product,
                itemsize,
                weight_bytes,
                kernel.num_bytes - weight_bytes,
            )
        )
    products = timings_of_problems(
        columns(rows),
        [kernel.compute for kernel in kernels],
        gpu,
        sustained=sustained,
        is_convolution=True,
    )
    return [
        _direct_timing(kernel, gpu) if _is_direct(kernel) else _with_extras(kernel, timing, gpu)
        for kernel, timing in zip(kernels, products, strict=True)
    ]


def _padded_channels(size: ConvolutionSize) -> int:
    """Input channels of a group as the tensor cores take them (cuDNN developer guide: padded to a
    multiple of 8 in 16 bit), which matters for images of three."""
    channels = size.in_channels // size.groups
    return -(-channels // _CHANNEL_STEP) * _CHANNEL_STEP


def _is_direct(kernel: Kernel) -> bool:
    size = kernel.size
    assert isinstance(size, ConvolutionSize)
    return size.groups > 1 and size.in_channels // size.groups <= _DIRECT_CHANNELS


def _with_extras(kernel: Kernel, timing: PhysicalTime, gpu: GPU) -> PhysicalTime:
    time_us = timing.time_us * _IMPLICIT_FACTOR
    if kernel.layout != "channels_last" and gpu.has_matrix_unit(kernel.compute):
        time_us += _TRANSPOSE_PASSES * 2.0 * _dram_us(kernel, gpu)
    return replace(timing, time_us=time_us, spread=_SPREAD)


def _dram_us(kernel: Kernel, gpu: GPU) -> float:
    bandwidth = gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization
    return kernel.num_bytes * cold_share(kernel.num_bytes, gpu) / bandwidth


def _direct_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    issue_us = kernel.num_bytes * 1e6 / (_DIRECT_BYTES * gpu.num_sms * gpu.clock_hz)
    # 16-bit kernels add up in FP32; FP64 keeps its own, slower cores.
    unit = "fp64" if kernel.compute == "fp64" else "fp32"
    compute_us = kernel.flops * 1e6 / (gpu.peak_flops(unit) * _DIRECT_ALU_SHARE)
    floor_us = gpu.floor_us * _DIRECT_FLOOR_FACTOR
    memory_us = smooth_maximum(issue_us, _dram_us(kernel, gpu))
    size = kernel.size
    assert isinstance(size, ConvolutionSize)
    outputs = size.batch * size.out_channels * prod(size.output)
    launch = geometry_of(
        KernelClass.CONVOLUTION,
        gpu,
        num_ctas=-(-outputs // _DIRECT_THREADS),
        threads_per_cta=_DIRECT_THREADS,
    )
    return PhysicalTime(
        time_us=floor_us + smooth_maximum(memory_us, compute_us),
        bound="compute" if compute_us > memory_us else "memory",
        spread=_SPREAD,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )
