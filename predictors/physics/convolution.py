"""How long a convolution takes: the least of what cuDNN may choose for it.

Candidates: an implicit GEMM on tensor cores, which wants NHWC and transposes FP32 operands that are
not; an implicit GEMM on ordinary cores, in any layout; and one thread an output where a filter
reads few channels. Forward: M = output pixels, N = output channels, K = input channels x taps. Data
gradient: M = input pixels, K = output channels x taps. Weight gradient: M = output channels, N =
input channels x taps, K = output pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    ConvolutionSize,
    GemmSize,
    Kernel,
    KernelClass,
    size_of,
)
from neusight.predictors.physics.gemm import HOPPER_TF32_SLOWDOWN, columns, timings_of_problems
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.memory_bound.kinds import AMD_TRANSPOSE_SHARE
from neusight.predictors.physics.physical_time import PhysicalTime, smooth_maximum
from neusight.predictors.physics.power import has_half_rate
from neusight.predictors.physics.roofline import dram_us, instructions_per_second, is_winograd

#: Time of an implicit GEMM over that of a plain one: address arithmetic and halo loads. A prior.
_IMPLICIT_FACTOR = 1.15

#: The same where matrix units run at half rate and copies to shared memory pass no registers
#: (GeForce of GA10x, Ada and Blackwell, L40): addresses are computed while the units work.
_HIDDEN_IMPLICIT_FACTOR = 1.0

#: cuDNN's TF32 kernels want NHWC: for NCHW it transposes inside (one read and write of image and
#: result more). Around 16-bit ones the transposes are kernels of their own.
_TRANSPOSE_PASSES = 1.0

#: Convolutions of one tap at every pixel are products of NCHW images as they are, from so many
#: output channels on: a tile's edge. data/kernelbench, even half: 480 to 192 channels, not to 96
#: and less, 112 to 672, 672 to 192, 240 to 480. In the odd half 32 to 64 transpose.
_PRODUCT_CHANNELS = 128

#: What Winograd's algorithm gains of its 2.25 after its transforms, forward (data/paper_fp32, 5
#: GPUs). Gradients take tiles of 4 x 4, of which the transforms leave the more the more channels
#: there are: the root of channels over these, up to a most. A profile of ResNet-50's training on
#: V100, images of 56 and 28 pixels: image 1.7 of 64 channels, 2.1 of 128; weight 1.0 and 1.5.
_WINOGRAD_SPEEDUP = 1.6
_WINOGRAD_CHANNELS = {"data_gradient": 24.0, "weight_gradient": 45.0}
_WINOGRAD_MOST = 2.6

#: What cuDNN's FP32 kernels in C++ reach of the peak: implicit_convolve_sgemm, dgrad_engine and
#: wgrad_alg0_engine in the same profile, images of 56 and 28 pixels (0.45-0.67).
_ENGINE_SHARE = 0.62

#: Channels of images come in vectors of 16 bytes (cuDNN developer guide), those of volumes and of
#: gradients without tensor cores in steps of eight. data/kernelbench 50, even half, in FP32: three
#: channels as four, 11 x 11 taps.
_VECTOR_BYTES = 16
_CHANNEL_STEP = 8

#: Clocks of an SM for a tap of a pixel and 64 output channels, however few channels it reads: a tap
#: is gathered as one vector of 16 bytes. data/profiled_kernels, patch embeddings of ViT,
#: TimeSformer and OWLv2 in bf16 on H100: 2.7-2.9 once all SMs are busy.
_TAP_CLOCKS = 2.7
_GATHERED_OUTPUTS = 64
_GATHERED_STEP = 32

#: Tile of the kernels that do so for patches that do not overlap, which a CTA goes through alone:
#: pixels by output channels (cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64 there).
_PATCH_TILE = (64, 256)

#: MIOpen cuts images of three channels into patches by igemm_fwd_gtcx3_nhwc kernels, which take
#: four channels a tap, in tiles of 64 x 64 or, where they fill all CUs, 256 x 64, and wait so many
#: clocks for each step of 16 or 8 along K. Patches of 16 pixels on MI300X, 4 images 30 us, 128
#: images 247 (data/profiled_kernels); not read off: one image of 1008 pixels in patches of 14.
_PATCH_CHANNELS = 4
_AMD_PATCH_TILES = ((64, 64, 16), (256, 64, 8))
_PATCH_STEP_CLOCKS = 990.0
_PATCH_COPIES = 3

#: Gradients of images read a tap in steps of 32 channels of the result's gradient, and write at
#: least 64 channels of the image's: a tile's edges, seen in data/kernelbench (even half), where 3,
#: 8 and 32 channels take the same time on A100, L40S, H100 and T4. Kernels without tensor cores on
#: GPUs without TF32 have narrower tiles, and steps of 8 without a stride.
_GRADIENT_CHANNEL_STEP = 32
_GRADIENT_LEAST_COLUMNS = 64

#: Those with filters of even edges pass over the taps that a stride leaves out too, up to so many
#: times as many, where taps overlap (data/kernelbench, T4, 4 x 4: four rows of the odd half, none
#: of the even); 3 x 3 ones do not (V100).
_MOST_IDLE_TAPS = 4

#: They take so many times as long in three dimensions, but for gradients without a stride
#: (data/kernelbench, even half, T4).
_VOLUME_FACTOR = 2.0

#: FP32 kernels of GPUs that also have TF32, which keep NCHW: their share of the peak, and that of
#: forward ones in three dimensions. data/kernelbench, even half: L40S 0.24-0.36.
_ORDINARY_SHARE = 0.32
_ORDINARY_VOLUME_SHARE = 0.16

#: The same of gradients with a stride, where FP32 lanes are not shared with integers, and where
#: half of them are (GA10x, Ada, consumer Blackwell), there in three dimensions too. The even half:
#: A100 0.55-0.65, L40S 0.25-0.3 and 0.14-0.15.
_STRIDED_GRADIENT_SHARE = 0.55
_SHARED_LANES_SHARE = 0.25
_SHARED_LANES_VOLUME_SHARE = 0.145

#: Time of a gradient on AMD over that of a product: MIOpen's igemm_bwd and igemm_wrw kernels and
#: the casts after them. data/profiled_kernels, ResNet's backward on MI300X, images of 56 and 28
#: pixels: 1.2-2.0; those of 14 and 7 judge.
_MIOPEN_GRADIENT_FACTOR = 1.7

#: Time of gradients without a stride in three dimensions over that of tensor cores elsewhere: where
#: lanes are shared, and from Hopper on under a cuDNN since 9.8. data/kernelbench, even half:
#: L40S 0.8-3.1, H100 with torch 2.9 1.6-4.5 (5 shapes each; 1.0-1.4 with torch 2.5).
_SHARED_LANES_VOLUME_FACTOR = 2.0
_SLOW_VOLUME_FACTOR = 2.8

#: Tile of those kernels: pixels by channels (implicit_convolve_sgemm 128 x 64, as names have it).
_ORDINARY_TILE = (128, 64)
_ORDINARY_THREADS = 128

#: From this compute capability on, cuDNN has tensor core kernels for strided gradients of images
#: with fewer channels than `_TENSOR_COLUMNS`; before, ordinary ones (data/kernelbench: 16 channels
#: take 7 times longer on A100 and L40S than on H100).
_ANY_COLUMNS_SINCE = (9, 0)
_TENSOR_COLUMNS = 32

#: Channels a group up to which no GEMM is used (PyTorch's conv_depthwise2d and cuDNN's grouped
#: kernels run one thread an output), and the instructions of an output and of each of its taps.
#: data/kernelbench, depthwise 3 x 3 and 3 x 7 on H100 PCIe.
_DIRECT_CHANNELS = 4
_DIRECT_OUTPUT_INSTRUCTIONS = 110.0
_DIRECT_TAP_INSTRUCTIONS = 23.0
_DIRECT_FLOOR_FACTOR = 1.5

#: The same of a tap of a weight's gradient, whose CTA goes through all images for it
#: (conv_depthwise2d_grad_weight_kernel). H100, 22 layers of MobileNet v2 and EfficientNet
#: (`benchmarks/measured/h100/workloads`), their image gradients taken off: 52-142, median 75.
_DIRECT_WEIGHT_TAP_INSTRUCTIONS = 75.0

#: The same where images are stored as NHWC, for cuDNN's kernels of square filters: data/kernelbench
#: 84 on both H100s, compiled, and level 3's 21, even half. Other filters run as products of one
#: column a group, on tiles of `_ORDINARY_TILE`.
_NHWC_OUTPUT_INSTRUCTIONS = 40.0
_NHWC_TAP_INSTRUCTIONS = 10.0

#: Of these the share in 16 bits without a stride, where a thread computes two channels at once.
#: Six layers of MobileNet v2 on H100, torch 2.11 (`benchmarks/measured/h100/workloads`): forward
#: 0.45 to 0.55, image gradients 0.44 to 1.34, geometric mean 0.71; with a stride 0.8 to 1.2.
_NHWC_HALF_SHARES = {"forward": 0.5, "data_gradient": 0.75, "weight_gradient": 1.0}

_HALVES = ("fp16", "bf16")

#: Groups of more channels stored as NHWC: multiplications as a share of the lanes that integers do
#: not share, under a cuDNN before 9.8 and since. data/kernelbench, level 3's 25 compiled, even
#: half: 0.066 on H100 and 0.068 on L40S with torch 2.5, 0.18 on H100 with 2.9; judged on 26.
_OLD_NHWC_GROUPED_SHARE = 0.067
_NHWC_GROUPED_SHARE = 0.18

#: Groups of more channels, of one tap: what GPUs without TF32 reach of their FP32 peak.
#: data/kernelbench, even half: T4 0.014 in ShuffleNet's unit, where A100, H100 and L40S do as with
#: one group. Nothing was measured of groups with more taps.
_GROUPED_SHARE = 0.0125

#: Threads of their CTAs, one an output (conv_depthwise2d.cu).
_DIRECT_THREADS = 256

#: Half width of the 80 % interval; where cuDNN's choice follows no rule that was found (gradients
#: with a stride, three dimensions, groups: 60-70 % of the rows of data/kernelbench lie in 0.4). Of
#: the regular ones four of five lie in 0.3 (the even half).
_SPREAD = 0.3
_WIDE_SPREAD = 0.7


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


def with_issue_of_convolutions(gpu: GPU) -> GPU:
    """The GPU with the FP32 peak that convolutions can use: MIOpen's kernels of RDNA 2 and 3 fill
    one issue slot of RDNA 3's two, which its datasheet counts both."""
    if gpu.architecture != _TWO_SLOTS:
        return gpu
    return replace(gpu, peak_tflops={**gpu.peak_tflops, "fp32": gpu.peak_tflops["fp32"] / 2.0})


_TWO_SLOTS = "RDNA3"


def convolution_timings(
    kernels: Sequence[Kernel], gpu: GPU, *, sustained: bool
) -> list[PhysicalTime]:
    """The time of each convolution kernel, in order: of its fastest algorithm."""
    gpu = with_issue_of_convolutions(gpu)
    products = timings_of_problems(
        columns([_problem_row(kernel, gpu) for kernel in kernels]),
        [kernel.compute for kernel in kernels],
        gpu,
        sustained=sustained,
        is_convolution=True,
    )
    return [
        _fastest(kernel, product, gpu) for kernel, product in zip(kernels, products, strict=True)
    ]


def _problem_row(kernel: Kernel, gpu: GPU) -> tuple[float, ...]:
    """The product that a library's tiles make of a convolution, with its bytes."""
    size = size_of(kernel, ConvolutionSize)
    itemsize = DTYPE_BYTES[kernel.dtype]
    product = _padded_product(kernel, gpu)
    weights = size.out_channels * (size.in_channels // size.groups) * prod(size.kernel)
    weight_bytes = min(float(kernel.num_bytes), weights * itemsize)
    slowdown = 1.0
    if kernel.compute == "tf32" and gpu.nvidia_major == _HOPPER:
        operands = _OPERANDS_OF_PLANES if _is_gradient_of_planes(kernel, gpu) else _OPERANDS
        slowdown = HOPPER_TF32_SLOWDOWN[operands[size.direction]]
    return (*product, itemsize, slowdown, weight_bytes, kernel.num_bytes - weight_bytes)


#: How the operands of a convolution of NHWC images lie as a product: along K (channels of a tap),
#: or along M and N (a gradient reads filters, or both operands, across their channels).
_OPERANDS = {"forward": "nt", "data_gradient": "nn", "weight_gradient": "tn"}
_OPERANDS_OF_PLANES = {"data_gradient": "tn", "weight_gradient": "nt"}
_HOPPER = 9


def _is_gradient_of_planes(kernel: Kernel, gpu: GPU) -> bool:
    """Whether a gradient of one tap at every pixel is a product of NCHW images as they are (H100,
    torch 2.11: ResNet-50's of 14 to 56 pixels, not of 7, whose planes do not fill vectors)."""
    size = size_of(kernel, ConvolutionSize)
    has_one_tap = prod(size.kernel) == prod(size.stride) == 1 and size.groups == 1
    is_known = has_one_tap and gpu.nvidia_major == _HOPPER
    vector = _VECTOR_BYTES // DTYPE_BYTES[kernel.dtype]
    fills_vectors = prod(size.output) % vector == 0
    return is_known and fills_vectors and size.direction != "forward"


def _sums_of_images_us(kernel: Kernel, gpu: GPU) -> float:
    """What a weight gradient of planes adds: a product an image, summed by a kernel of its own
    (cuDNN's reduce_wgrad_nchw_helper)."""
    size = size_of(kernel, ConvolutionSize)
    if size.direction != "weight_gradient":
        return 0.0
    num_bytes = 2.0 * size.batch * size.out_channels * size.in_channels * DTYPE_BYTES["float32"]
    return num_bytes / gpu.dram_bytes_per_us


def _winograd_gain(kernel: Kernel, gpu: GPU) -> float:
    """How many times fewer multiplications Winograd's algorithm needs, its transforms paid."""
    if not is_winograd(kernel, gpu):
        return 1.0
    size = size_of(kernel, ConvolutionSize)
    if size.direction == "forward":
        return _WINOGRAD_SPEEDUP
    channels = min(size.in_channels, size.out_channels) / _WINOGRAD_CHANNELS[size.direction]
    return min(_WINOGRAD_MOST, math.sqrt(max(1.0, channels)))


def _padded_product(kernel: Kernel, gpu: GPU) -> GemmSize:
    """The implicit GEMM with its channels and taps as the kernels of that unit take them."""
    size = size_of(kernel, ConvolutionSize)
    if not gpu.has_matrix_unit(kernel.compute):
        return _product_without_tensor_cores(kernel, gpu)
    if size.direction == "data_gradient" and kernel.compute == "tf32":
        return _gradient_on_tensor_cores(kernel, gpu)
    product = implicit_gemm(size)
    if size.direction == "forward":
        is_volume = len(size.kernel) > 2
        vector = max(1, int(_VECTOR_BYTES / DTYPE_BYTES[kernel.dtype]))
        step = _CHANNEL_STEP if is_volume else vector
        channels = _rounded(size.in_channels // size.groups, step)
        return product._replace(k=channels * prod(size.kernel))
    return product


def _gradient_on_tensor_cores(kernel: Kernel, gpu: GPU) -> GemmSize:
    """Hopper's kernels leave out the taps between a stride's pixels only without a dilation."""
    size = size_of(kernel, ConvolutionSize)
    product = _whole_steps(size)
    if kernel.variant == "dilated" and gpu.compute_capability >= _ANY_COLUMNS_SINCE:
        return product._replace(k=product.k * prod(size.stride))
    return product


def _whole_steps(size: ConvolutionSize) -> GemmSize:
    """The product of a gradient with whole steps of channels and a whole tile's columns."""
    outputs = _rounded(size.out_channels // size.groups, _GRADIENT_CHANNEL_STEP)
    padded = implicit_gemm(size._replace(out_channels=outputs * size.groups))
    return padded._replace(n=max(padded.n, _GRADIENT_LEAST_COLUMNS)) if padded.n else padded


def _product_without_tensor_cores(kernel: Kernel, gpu: GPU) -> GemmSize:
    size = size_of(kernel, ConvolutionSize)
    is_gradient = size.direction == "data_gradient"
    product = _gradient_without_tensor_cores(size) if is_gradient else implicit_gemm(size)
    return product._replace(k=math.ceil(product.k / _winograd_gain(kernel, gpu)))


def _gradient_without_tensor_cores(size: ConvolutionSize) -> GemmSize:
    strides = prod(size.stride)
    if strides > 1 and len(size.kernel) <= 2 and not _has_idle_taps(size):
        return _whole_steps(size)
    step = _GRADIENT_CHANNEL_STEP if strides > 1 else _CHANNEL_STEP
    outputs = _rounded(size.out_channels // size.groups, step)
    product = implicit_gemm(size._replace(out_channels=outputs * size.groups))
    if len(size.kernel) <= 2 and _has_idle_taps(size):
        return product._replace(k=product.k * min(strides, _MOST_IDLE_TAPS))
    return product


def _has_idle_taps(size: ConvolutionSize) -> bool:
    """Whether taps are passed over that meet no pixel."""
    overlaps = any(taps > step for taps, step in zip(size.kernel, size.stride, strict=False))
    return overlaps and all(taps % 2 == 0 for taps in size.kernel if taps > 1)


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step


def _fastest(kernel: Kernel, product: PhysicalTime, gpu: GPU) -> PhysicalTime:
    if _is_nhwc_grouped(kernel, gpu):
        return _nhwc_grouped_timing(kernel, gpu)
    if _is_direct(kernel):
        return _direct_timing(kernel, gpu)
    if not gpu.has_matrix_unit(kernel.compute):
        return _timing_without_tensor_cores(kernel, product, gpu)
    tensor = _tensor_timing(kernel, product, gpu)
    if _is_of_patches(kernel, gpu):
        return replace(tensor, at_most_us=_patches_us(kernel, gpu))
    if kernel.compute != "tf32" or gpu.vendor != "nvidia":
        return tensor
    ordinary = _ordinary_timing(kernel, gpu)
    size = size_of(kernel, ConvolutionSize)
    if not _has_tensor_kernel(size, gpu):
        return ordinary
    # Gradients with a stride or in three dimensions take the tensor cores wherever they can
    # (data/kernelbench, even half).
    is_special = prod(size.stride) > 1 or len(size.kernel) > 2
    if size.direction == "data_gradient" and is_special:
        return tensor
    return min(tensor, ordinary, key=lambda timing: timing.time_us)


def _is_direct(kernel: Kernel) -> bool:
    size = size_of(kernel, ConvolutionSize)
    return size.groups > 1 and size.in_channels // size.groups <= _DIRECT_CHANNELS


def _is_nhwc_grouped(kernel: Kernel, gpu: GPU) -> bool:
    """Whether cuDNN runs groups on images stored as NHWC: all in FP32, depthwise ones in 16 bits
    too (ConvUtils.h, use_cudnn_depthwise: always for channels_last), as fast as in FP32 at least.
    """
    size = size_of(kernel, ConvolutionSize)
    is_half = kernel.compute in _HALVES and gpu.vendor == "nvidia"
    is_depthwise_half = is_half and _is_direct(kernel)
    is_known = is_depthwise_half or (kernel.compute == "tf32" and size.direction == "forward")
    return size.groups > 1 and is_known and kernel.layout == "channels_last"


def _nhwc_grouped_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    size = size_of(kernel, ConvolutionSize)
    if not _is_direct(kernel):
        ordinary = _ordinary_timing(kernel, gpu)
        lanes = gpu.peak_flops("fp32") * (0.5 if shares_lanes(gpu) else 1.0)
        is_old = kernel.variant == "cudnn_9_1"
        share = _OLD_NHWC_GROUPED_SHARE if is_old else _NHWC_GROUPED_SHARE
        time_us = kernel.flops * 1e6 / (lanes * share)
        return replace(ordinary, time_us=max(ordinary.time_us, time_us), spread=_WIDE_SPREAD)
    is_square = len(set(size.kernel)) == 1
    timing = _direct_timing(kernel, gpu) if is_square else _ordinary_timing(kernel, gpu)
    return replace(timing, spread=_WIDE_SPREAD)


def _timing_without_tensor_cores(kernel: Kernel, product: PhysicalTime, gpu: GPU) -> PhysicalTime:
    size = size_of(kernel, ConvolutionSize)
    is_slow = len(size.kernel) > 2 and not _is_gradient(size, is_strided=False)
    time_us = product.time_us * _IMPLICIT_FACTOR
    # 3 x 3, forward, a correction was learned on top of this physics.
    is_measured = size.kernel == (3, 3) and size.stride == (1, 1) and size.direction == "forward"
    if gpu.vendor == "nvidia" and not is_measured:  # cuDNN's kernels in C++
        batch, m, n, k = _product_without_tensor_cores(kernel, gpu)
        peak = gpu.peak_flops(kernel.compute) * _ENGINE_SHARE
        time_us = max(time_us, 2e6 * batch * m * n * k / peak)
    time_us *= _VOLUME_FACTOR if is_slow else 1.0
    if _is_slow_in_groups(kernel, gpu):
        time_us = max(time_us, kernel.flops * 1e6 / (gpu.peak_flops("fp32") * _GROUPED_SHARE))
    return replace(product, time_us=time_us, spread=_spread(size))


def _is_slow_in_groups(kernel: Kernel, gpu: GPU) -> bool:
    size = size_of(kernel, ConvolutionSize)
    is_measured = kernel.dtype == "float32" and gpu.vendor == "nvidia"
    has_groups = size.groups > 1 and prod(size.kernel) == 1
    return has_groups and is_measured and not gpu.has_matrix_unit("tf32")


def _spread(size: ConvolutionSize) -> float:
    is_regular = len(size.kernel) <= 2 and size.groups == 1
    return _SPREAD if is_regular and not _is_gradient(size, is_strided=True) else _WIDE_SPREAD


def _is_gradient(size: ConvolutionSize, *, is_strided: bool) -> bool:
    return size.direction == "data_gradient" and (prod(size.stride) > 1) is is_strided


def _has_tensor_kernel(size: ConvolutionSize, gpu: GPU) -> bool:
    """Whether cuDNN takes one for a convolution in FP32 (TF32)."""
    if not _is_gradient(size, is_strided=True) or gpu.compute_capability >= _ANY_COLUMNS_SINCE:
        return True
    return size.in_channels // size.groups >= _TENSOR_COLUMNS


def _tensor_timing(kernel: Kernel, product: PhysicalTime, gpu: GPU) -> PhysicalTime:
    """The implicit GEMM on tensor cores, with the transposes inside it."""
    size = size_of(kernel, ConvolutionSize)
    factor = _HIDDEN_IMPLICIT_FACTOR if has_half_rate(gpu) else _IMPLICIT_FACTOR
    time_us = max(product.time_us * factor, _gather_us(size, gpu))
    if gpu.vendor == "amd" and size.direction != "forward":
        time_us *= _MIOPEN_GRADIENT_FACTOR
    if kernel.compute == "tf32" and len(size.kernel) > 2 and _is_gradient(size, is_strided=False):
        time_us *= _volume_factor(kernel, gpu)
    if kernel.compute != "tf32" or kernel.layout == "channels_last":
        return replace(product, time_us=time_us, spread=_spread(size))
    if _is_gradient_of_planes(kernel, gpu):
        time_us += _sums_of_images_us(kernel, gpu)
    elif not _is_product(size):
        time_us += _TRANSPOSE_PASSES * 2.0 * dram_us(kernel.num_bytes, gpu)
    return replace(product, time_us=time_us, spread=_spread(size))


def _is_product(size: ConvolutionSize) -> bool:
    """Whether it is a product of NCHW images that cuDNN takes without transposes."""
    has_one_tap = prod(size.kernel) == prod(size.stride) == 1 and size.groups == 1
    return has_one_tap and size.direction == "forward" and size.out_channels >= _PRODUCT_CHANNELS


def _volume_factor(kernel: Kernel, gpu: GPU) -> float:
    if shares_lanes(gpu):
        return _SHARED_LANES_VOLUME_FACTOR
    is_slow = kernel.variant in ("", "fastest") and gpu.compute_capability >= _ANY_COLUMNS_SINCE
    return _SLOW_VOLUME_FACTOR if is_slow else 1.0


def _gather_us(size: ConvolutionSize, gpu: GPU) -> float:
    if size.direction != "forward" or gpu.vendor != "nvidia":
        return 0.0
    pixels, taps = size.batch * prod(size.output), prod(size.kernel)
    outputs = _rounded(size.out_channels // size.groups, _GATHERED_STEP)
    tiles = max(1.0, outputs / _GATHERED_OUTPUTS)
    clocks = pixels * taps * size.groups * tiles * _TAP_CLOCKS / gpu.num_sms
    if size.kernel == size.stride and pixels:
        edge, width = _PATCH_TILE
        alone = edge * taps * min(tiles, width // _GATHERED_OUTPUTS) * _TAP_CLOCKS
        clocks = max(clocks, alone)
    return clocks * 1e6 / gpu.clock_hz


def _is_of_patches(kernel: Kernel, gpu: GPU) -> bool:
    """Whether MIOpen cuts an image into patches."""
    is_miopens = gpu.vendor == "amd" and kernel.compute in _HALVES
    return is_miopens and size_of(kernel, ConvolutionSize).is_of_patches


def _patches_us(kernel: Kernel, gpu: GPU) -> float:
    """A kernel of NHWC images on that many tiles in a row, with the copies around it."""
    size = size_of(kernel, ConvolutionSize)
    pixels, k = size.batch * prod(size.output), prod(size.kernel) * _PATCH_CHANNELS
    few, many = (
        (math.ceil(pixels / rows) * math.ceil(size.out_channels / columns), math.ceil(k / step))
        for rows, columns, step in _AMD_PATCH_TILES
    )
    num_ctas, num_steps = many if many[0] >= gpu.num_sms else few
    steps_us = math.ceil(num_ctas / gpu.num_sms) * num_steps * _PATCH_STEP_CLOCKS / gpu.clock_hz
    bytes_a_us = gpu.dram_bytes_per_us * AMD_TRANSPOSE_SHARE
    copies_us = _PATCH_COPIES * gpu.floor_us + 2.0 * kernel.num_bytes / bytes_a_us
    return steps_us * 1e6 + copies_us


def _ordinary_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """The implicit GEMM in FP32 on a GPU that has TF32 too; it reads any layout."""
    size = size_of(kernel, ConvolutionSize)
    product = _whole_steps(size) if size.direction == "data_gradient" else implicit_gemm(size)
    tile_m, tile_n = _ORDINARY_TILE
    columns_of_tiles = math.ceil(product.n / tile_n)
    launch = geometry_of(
        KernelClass.CONVOLUTION,
        gpu,
        num_ctas=max(1, product.batch * math.ceil(product.m / tile_m) * columns_of_tiles),
        threads_per_cta=_ORDINARY_THREADS,
        tile=_ORDINARY_TILE,
        itemsize=DTYPE_BYTES[kernel.dtype],
    )
    flops = 2.0 * product.batch * product.m * columns_of_tiles * tile_n * product.k
    if size.direction == "forward":
        flops /= _winograd_gain(replace(kernel, compute="fp32"), gpu)
    compute_us = flops * 1e6 / (gpu.peak_flops("fp32") * _ordinary_share(size, gpu))
    # Few CTAs leave SMs idle.
    compute_us *= max(1.0, gpu.num_sms / launch.num_ctas)
    memory_us = dram_us(kernel.num_bytes, gpu)
    return PhysicalTime(
        time_us=gpu.floor_us + smooth_maximum(compute_us, memory_us),
        bound="compute" if compute_us > memory_us else "memory",
        spread=_spread(size),
        tile=_ORDINARY_TILE,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def _ordinary_share(size: ConvolutionSize, gpu: GPU) -> float:
    if _is_gradient(size, is_strided=True):
        if not shares_lanes(gpu):
            return _STRIDED_GRADIENT_SHARE
        return _SHARED_LANES_VOLUME_SHARE if len(size.kernel) > 2 else _SHARED_LANES_SHARE
    is_volume = len(size.kernel) > 2 and size.direction == "forward"
    return _ORDINARY_VOLUME_SHARE if is_volume else _ORDINARY_SHARE


def shares_lanes(gpu: GPU) -> bool:
    """Whether half of the FP32 lanes serve integers too (GA10x, Ada, consumer Blackwell)."""
    return gpu.nvidia_major == 12 or (gpu.nvidia_major == 8 and gpu.compute_capability[1] > 0)


def _direct_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """One thread an output, which goes through its taps one by one."""
    size = size_of(kernel, ConvolutionSize)
    is_gradient = size.direction == "data_gradient"
    pixels, channels = (
        (size.input, size.in_channels) if is_gradient else (size.output, size.out_channels)
    )
    outputs = size.batch * channels * prod(pixels)
    # A gradient of an image tries every tap, also those that a stride leaves out.
    taps = float(prod(size.kernel)) if is_gradient else kernel.flops / 2.0 / max(1, outputs)
    fixed, of_a_tap = _DIRECT_OUTPUT_INSTRUCTIONS, _DIRECT_TAP_INSTRUCTIONS
    if _is_nhwc_grouped(kernel, gpu):
        share = 1.0
        if kernel.compute in _HALVES and prod(size.stride) == 1:
            share = _NHWC_HALF_SHARES[size.direction]
        fixed, of_a_tap = share * _NHWC_OUTPUT_INSTRUCTIONS, share * _NHWC_TAP_INSTRUCTIONS
    elif size.direction == "weight_gradient" and gpu.vendor == "nvidia":
        fixed, of_a_tap = 0.0, _DIRECT_WEIGHT_TAP_INSTRUCTIONS
    instructions = outputs * (fixed + taps * of_a_tap)
    # 16-bit kernels add up in FP32; FP64 keeps its own, slower cores.
    is_fp64 = kernel.compute == "fp64"
    rate = gpu.peak_flops("fp64") / 2.0 if is_fp64 else instructions_per_second(gpu)
    compute_us = instructions * 1e6 / rate
    memory_us = dram_us(kernel.num_bytes, gpu)
    launch = geometry_of(
        KernelClass.CONVOLUTION,
        gpu,
        num_ctas=-(-outputs // _DIRECT_THREADS),
        threads_per_cta=_DIRECT_THREADS,
    )
    return PhysicalTime(
        time_us=gpu.floor_us * _DIRECT_FLOOR_FACTOR + smooth_maximum(compute_us, memory_us),
        bound="compute" if compute_us > memory_us else "memory",
        spread=_SPREAD,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )
