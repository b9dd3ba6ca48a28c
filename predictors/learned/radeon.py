"""Convolutions of Radeon cards, in a program that keeps their clocks up.

MIOpen's database (data/miopen_conv) has an RX 6800 XT at the clocks of a card that idles between a
few calls: those of 0.4 to 3 ms reach 0.3 (median) of what the best batch of the same layer reaches,
those of more than 6 ms 0.95; an MI210 0.92 to 0.98 of both. So times come from other cards, and
from the database only how much longer one kernel takes than another, in which the clocks cancel:

- FP32: Vega's rows (data/deepbench, loops of hundreds of calls; no matrix units either). A gradient
  takes no less than the forward pass of its layer times the ratio of both in the database.
- 16 bit: the FP32 time times the ratio of the physics; for gradients of filters larger than 1 x 1
  the ratio in the database, at most 1. RDNA 1 has no tuned kernels.
- Depthwise: MI300X's rows, as only they are of a MIOpen as new as that which Radeons run: direct
  kernels, scaled by compute units and clocks.

data/torchvision_cnn decided which relation holds where, so its 284 steps on Radeons are no test:
19 % off in the median with Vega's rows alone, 9 with these; 142 training steps 23 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, Pass, size_of
from neusight.predictors.physics.convolution import (
    convolution_timings,
    with_issue_of_convolutions,
)

Floats = NDArray[np.float64]

#: What a network makes of kernels on a GPU, us, as if the GPU had the architecture of another.
Priced = Callable[[Sequence[Kernel], GPU], Floats]

#: Architectures of Radeon cards.
RADEON = ("RDNA", "RDNA2", "RDNA3")

#: Half width of what other cards say.
RADEON_SPREAD = 0.3

#: Whose rows price them.
_TIMED_WARM, _TIMED_COLD, _NEWEST = "MI25", "RX-6800-XT", "MI300X"
RELATIVES = frozenset({_TIMED_WARM, _TIMED_COLD, _NEWEST})


def radeon_us(kernels: Sequence[Kernel], gpu: GPU, priced: Priced) -> Floats:
    """Times of convolutions of one dtype on a Radeon card, us."""
    gpu = with_issue_of_convolutions(gpu)
    warm = replace(gpu, architecture=find_gpu(_TIMED_WARM).architecture)
    cold, newest = find_gpu(_TIMED_COLD), find_gpu(_NEWEST)
    in_fp32 = [_in_fp32(item) for item in kernels]
    forward = [_in_fp32(item, "forward") for item in kernels]
    cold_us = priced(in_fp32, cold)
    gradient = cold_us / priced(forward, cold)
    times = np.maximum(priced(in_fp32, warm), priced(forward, warm) * gradient)
    is_untuned = kernels[0].compute != "fp32" and gpu.architecture in _UNTUNED
    if is_untuned:
        kernels = in_fp32
    if kernels[0].compute != "fp32":
        times *= _share_of_16_bit(kernels, in_fp32, warm, priced(kernels, cold) / cold_us)
    sizes = [size_of(item, ConvolutionSize) for item in kernels]
    scale = np.array([_scale(size, newest, gpu) for size in sizes])
    is_depthwise = np.array([size.is_depthwise for size in sizes])
    times = np.where(is_depthwise, priced(kernels, newest) * scale, times)
    if is_untuned:
        times *= [_UNTUNED_TIMES[_has_area(item), _is_gradient(item)] for item in kernels]
    return times


def _share_of_16_bit(
    kernels: Sequence[Kernel], in_fp32: Sequence[Kernel], gpu: GPU, database: Floats
) -> Floats:
    """Of the FP32 times. Products, which 1 x 1 filters are, use matrix instructions; MIOpen's other
    kernels compute two values at a time on the ordinary cores."""
    peaks = gpu.peak_tflops
    packed = replace(gpu, peak_tflops={**peaks, **dict.fromkeys(_16_BIT, 2.0 * peaks["fp32"])})
    has_area = np.array([_has_area(item) for item in kernels])
    is_gradient = np.array([_is_gradient(item) for item in kernels])
    physics_us = np.where(has_area, _physics_us(kernels, packed), _physics_us(kernels, gpu))
    physics = physics_us / _physics_us(in_fp32, gpu)
    result: Floats = np.where(has_area & is_gradient, np.minimum(1.0, database), physics)
    return result


_16_BIT = ("fp16", "bf16")


#: RDNA 1 in 16 bit (RX 5700, data/torchvision_cnn), for which MIOpen has no tuned kernels.
_UNTUNED = ("RDNA",)

#: 16-bit times over FP32's there, by whether a filter covers an area of more than one channel, and
#: whether a gradient is computed. Chosen on the networks whose name hashes even (inference 75 ->
#: 23, training 84 -> 13 % off in the median); the others: 79 -> 4 and 90 -> 17.
_UNTUNED_TIMES = {
    (False, False): 1.7,
    (False, True): 3.5,
    (True, False): 3.6,
    (True, True): 10.0,
}


def _scale(size: ConvolutionSize, newest: GPU, gpu: GPU) -> float:
    """How much longer a direct kernel takes for want of compute units and clocks. The gradient of a
    depthwise filter has two workgroups a channel (one or two fit the Radeons of
    data/torchvision_cnn: -12 to -5 and -2 to +6 % off), so few channels leave units empty."""
    units = [newest.num_sms, gpu.num_sms]
    if size.direction == "weight_gradient":
        units = [min(count, _WORKGROUPS_A_CHANNEL * size.in_channels) for count in units]
    return units[0] / units[1] * newest.boost_clock_mhz / gpu.boost_clock_mhz


_WORKGROUPS_A_CHANNEL = 2


def _physics_us(kernels: Sequence[Kernel], gpu: GPU) -> Floats:
    return np.array([item.time_us for item in convolution_timings(kernels, gpu, sustained=True)])


def _in_fp32(kernel: Kernel, direction: Pass | None = None) -> Kernel:
    """Of the same layer, in that direction."""
    size = size_of(kernel, ConvolutionSize)
    return Kernel.convolution(
        size._replace(direction=direction or size.direction),
        dtype="float32",
        compute="fp32",
        layout=kernel.layout,
        variant=kernel.variant,
    )


def _has_area(kernel: Kernel) -> bool:
    size = size_of(kernel, ConvolutionSize)
    return prod(size.kernel) > 1 and not size.is_depthwise


def _is_gradient(kernel: Kernel) -> bool:
    return size_of(kernel, ConvolutionSize).direction != "forward"
