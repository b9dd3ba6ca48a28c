"""Which share of its peak a GPU reaches under its power limit: the prior where it was not measured.

A board's power is a fixed part, a part that grows with its limit (leakage, memory, regulators), and
the energy of each FLOP, which falls with the square of the voltage. Voltage falls with the clock
down to a least one. The clock is the highest at which a large product stays under the limit. So the
watts of a datasheet bound what its peak promises: a T4 of 70 W runs FP32 at half of its peak.

Only additions, products and quotients, in a fixed number of steps: bit-equal on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from neusight.predictors.gpu import GPU


class Silicon(NamedTuple):
    """What a FLOP costs on an architecture."""

    #: The clock at which the energies are stated, MHz: the highest boost of the architecture.
    reference_mhz: float
    #: Energy of an FP32 FLOP on ordinary cores, and of a 16-bit one on matrix units, in a large
    #: product with all that feeds it, pJ.
    fp32_pj: float
    matrix_pj: float
    #: Share of its rate at the clock that a large FP32 product reaches where power allows.
    fp32_ceiling: float = 0.95


#: NVIDIA's, by the first compute capability that has it. Energies follow from the rates that large
#: products keep up at the power limit. FP32: data/paper_fp32 (T4, A100-PCIE-40GB; P4 and V100 are
#: hardly limited, which bounds theirs) and square products of data/kernelbench, even half (L40S 54
#: TFLOP/s, which is limited: zeros, which draw less, take it to 12 % more, T4 to 14 %; H100 is not,
#: nor A100 SXM). That is 1.3 to 2.2, mostly 2 pJ for each nm of the process (16, 12, 7, 8, 5:
#: Pascal, Volta and Turing, GA100, GA10x, the rest), by which GA10x, Hopper and Blackwell go.
#: 16 bit: data/modern, the constants fitted on A100, A40, L40S, H100, H200, B200, B300, GB200. That
#: of Volta and Turing is GA10x's for their process, that of the GB20x Ada's. The ceiling of FP32 is
#: V100's; A100 SXM's 0.88 and Hopper's 0.8 (H100 SXM: 52 of 67 TFLOP/s), Blackwell's a prior.
#: Left out one GPU at a time, its energy taken from its architecture's others, else from the
#: process of the other architectures: FP32 of A100 -2 %, H100 PCIe -4, V100 -13, L40S -17, T4 and
#: P4 +-23 (0.8 for all: T4 +63, L40S +33, H100 PCIe +11); 16 bit of H100, H200, B200, B300, GB200
#: within 6 %, alone in their architecture A100 -10, A40 +14, L40S +45 (a constant: 1 to 21 %).
_NVIDIA: dict[tuple[int, int], Silicon] = {
    (6, 0): Silicon(1733.0, fp32_pj=25.0, matrix_pj=10.0),
    (7, 0): Silicon(1530.0, fp32_pj=15.0, matrix_pj=3.0),
    (7, 5): Silicon(1770.0, fp32_pj=26.0, matrix_pj=3.0),
    (8, 0): Silicon(1410.0, fp32_pj=13.0, matrix_pj=1.5, fp32_ceiling=0.88),
    (8, 6): Silicon(1860.0, fp32_pj=15.0, matrix_pj=2.5),
    (8, 7): Silicon(1300.0, fp32_pj=15.0, matrix_pj=1.5),
    (8, 9): Silicon(2520.0, fp32_pj=9.4, matrix_pj=2.2),
    (9, 0): Silicon(1980.0, fp32_pj=9.4, matrix_pj=1.15, fp32_ceiling=0.8),
    (10, 0): Silicon(1965.0, fp32_pj=9.4, matrix_pj=0.83, fp32_ceiling=0.8),
    (12, 0): Silicon(2617.0, fp32_pj=9.4, matrix_pj=2.2),
}

#: AMD's, by the start of the architecture's name: from the best products of data/achievable
#: (MI300X at 750 W and MI325X at 1000 W agree within 10 %; MI355X). Not used for it: the large
#: products of a profile on MI300X (data/profiled_kernels) run at 535 to 591 TFLOP/s, forecast 577
#: to 592.
_AMD: dict[str, Silicon] = {
    "CDNA3": Silicon(2100.0, fp32_pj=9.0, matrix_pj=2.15),
    "CDNA4": Silicon(2400.0, fp32_pj=7.0, matrix_pj=1.4),
}

#: Watts that no load changes, and their share of the limit: the least squares of watts on FLOP/s
#: and bytes/s in data/modern have 140 W of 700 (H200), 290 of 1000 (B200), 260 of 1200 (GB200).
_FIXED_W = 8.0
_FIXED_SHARE = 0.22

#: Voltage over that at the reference clock: least, and where the line crosses clock 0. From public
#: curves of AD102 (0.8 V at 1.8 GHz, 1.05 V at 2.6, 0.7 V below 1.3).
_LEAST_VOLTAGE = 0.67
_VOLTAGE_AT_0 = 0.25

#: Share of the rate at its clock that a large 16-bit product reaches on matrix units (A100 in
#: bursts 0.91, H100 0.86 to 0.9).
_MATRIX_CEILING = 0.9

#: The same where they run at half their rate (GeForce from Ampere on, with sums in FP32), which
#: loads keep up with: RTX 4090, products of 512 to 2048 tokens (data/llm_layers) 165.7 TFLOP/s of
#: 165.2 at 2520 MHz, at 2715 MHz, by the prior of its file.
_HALF_RATE_CEILING = 0.93

#: Least 16-bit peak over FP32's of units at full rate: A40's 4.0; those of GeForce have 2.
_FULL_RATE = 3.9

#: What a burst of milliseconds may draw over the limit: H100 and H200 1.4, B200, B300, GB200 and
#: A100 1.2, L40S 1.1 explain the bursts of data/modern.
_BURST_POWER = 1.2

_STEPS = 40


def silicon_of(gpu: GPU) -> Silicon | None:
    """What a FLOP costs on that GPU; None where no data say (AMD before CDNA 3).

    >>> from neusight.predictors.gpu import find_gpu
    >>> silicon_of(find_gpu("L4")) == silicon_of(find_gpu("L40S"))
    True
    """
    if gpu.vendor == "amd":
        return _AMD.get(gpu.architecture)
    known = [since for since in _NVIDIA if since <= gpu.compute_capability]
    return _NVIDIA[max(known)] if known else None


def limited_share(gpu: GPU, *, matrix: bool, sustained: bool) -> float | None:
    """Share of the datasheet's peak that a large product reaches on matrix units (16 bit; the
    others draw alike) or on ordinary cores (FP32), sustained or in a burst; None where no data
    tells. It may exceed 1 where the clock does what the datasheet does not promise.

    >>> from neusight.predictors.gpu import find_gpu
    >>> limited = limited_share(find_gpu("T4"), matrix=False, sustained=True)
    >>> limited is not None and 0.45 < limited < 0.55
    True
    """
    silicon = silicon_of(gpu)
    if silicon is None:
        return None
    peaks = gpu.peak_tflops
    peak = peaks.get("fp16", 0.0) if matrix else peaks["fp32"]
    if not peak:
        return _MATRIX_CEILING
    return _solved(
        silicon,
        peak,
        gpu.boost_clock_mhz if matrix else _clock_of_fp32(gpu),
        gpu.max_clock_mhz or gpu.boost_clock_mhz,
        gpu.tdp_w,
        matrix,
        _HALF_RATE_CEILING if has_half_rate(gpu) else _MATRIX_CEILING,
        sustained,
    )


def has_half_rate(gpu: GPU) -> bool:
    """Whether 16-bit products run at half the rate of the tensor cores (GeForce from Ampere on)."""
    is_newer = gpu.vendor == "nvidia" and gpu.compute_capability >= (8, 0)
    return is_newer and gpu.peak_tflops.get("fp16", 0.0) < _FULL_RATE * gpu.peak_tflops["fp32"]


@lru_cache(maxsize=1024)
def _solved(
    silicon: Silicon,
    peak_tflops: float,
    stated_mhz: float,
    most_mhz: float,
    limit_w: float,
    matrix: bool,
    matrix_ceiling: float,
    sustained: bool,
) -> float:
    """The share at the highest clock, up to `most_mhz`, whose power the limit allows; `stated_mhz`
    is the clock that the peak was stated at."""
    ceiling = matrix_ceiling if matrix else silicon.fp32_ceiling
    energy_pj = silicon.matrix_pj if matrix else silicon.fp32_pj
    watts_per_mhz = energy_pj * peak_tflops * ceiling / stated_mhz
    allowed_w = limit_w * ((1.0 if sustained else _BURST_POWER) - _FIXED_SHARE) - _FIXED_W
    low, high = 0.0, most_mhz
    if watts_per_mhz * most_mhz * _voltage_squared(most_mhz, silicon) <= allowed_w:
        low = most_mhz
    for _ in range(_STEPS):
        clock = (low + high) / 2.0
        is_allowed = watts_per_mhz * clock * _voltage_squared(clock, silicon) <= allowed_w
        low, high = (clock, high) if is_allowed else (low, clock)
    return max(_LEAST_SHARE, ceiling * low / stated_mhz)


def _voltage_squared(clock_mhz: float, silicon: Silicon) -> float:
    """Over that at the reference clock."""
    slope = (1.0 - _VOLTAGE_AT_0) / silicon.reference_mhz
    voltage = max(_LEAST_VOLTAGE, _VOLTAGE_AT_0 + slope * clock_mhz)
    return voltage * voltage


#: Boards whose limit the fixed watts nearly use up (a module of 15 W) run all the same.
_LEAST_SHARE = 0.2


def _clock_of_fp32(gpu: GPU) -> float:
    """The clock at which the FP32 peak is stated, MHz: H100's is at 1980, its other peaks at 1830.
    An SM has a power of two of FP32 cores, two FLOP a clock each."""
    per_clock = gpu.peak_tflops["fp32"] * 1e6 / (2.0 * gpu.num_sms)
    cores = 64.0
    while cores * gpu.boost_clock_mhz * _NEXT_POWER < per_clock:
        cores *= 2.0
    return per_clock / cores


#: Between one power of two and the next.
_NEXT_POWER = 1.4


@lru_cache(maxsize=256)
def filled_in(gpu: GPU) -> GPU:
    """The GPU with this model's figures where its file has none.

    >>> from neusight.predictors.gpu import find_gpu
    >>> filled_in(find_gpu("L4")).gemm_utilization > 0
    True
    """
    burst = limited_share(gpu, matrix=True, sustained=False) or _UNKNOWN_BURST
    sustained = limited_share(gpu, matrix=True, sustained=True) or _UNKNOWN_BURST * _UNKNOWN_FACTOR
    fp32 = limited_share(gpu, matrix=False, sustained=True) or _UNKNOWN_FP32
    return replace(
        gpu,
        gemm_utilization=gpu.gemm_utilization or (burst if has_half_rate(gpu) else min(1.0, burst)),
        sustained_factor=gpu.sustained_factor or min(1.0, sustained / burst),
        fp32_gemm_utilization=gpu.fp32_gemm_utilization or min(1.0, fp32),
    )


#: The shares where there is neither a measurement nor an energy: a prior.
_UNKNOWN_BURST = 0.75
_UNKNOWN_FACTOR = 0.9
_UNKNOWN_FP32 = 0.8


def energy_j(flops: float, seconds: float, gpu: GPU, *, busy_s: float) -> float:
    """Energy that a GPU takes for so many 16-bit FLOPs on matrix units within `seconds`, `busy_s`
    of which it works, J: what runs all the time, what grows with the work at the clock that the
    limit allows, and no more than the limit.

    The share of the limit that no FLOP explains is taken where the GPU works; idle it draws half of
    it. Priors but for the energy of a FLOP.

    >>> from neusight.predictors.gpu import find_gpu
    >>> 300 < energy_j(4e14, 1.0, find_gpu("H100"), busy_s=1.0) <= 700
    True
    """
    silicon = silicon_of(gpu)
    fixed_w = _FIXED_W + _FIXED_SHARE * gpu.tdp_w
    idle_j = fixed_w * (busy_s + _IDLE_SHARE * max(0.0, seconds - busy_s))
    if silicon is None:
        return min(gpu.tdp_w * seconds, idle_j + (gpu.tdp_w - fixed_w) * busy_s)
    share = limited_share(gpu, matrix=True, sustained=True) or _MATRIX_CEILING
    clock = gpu.boost_clock_mhz * share / _MATRIX_CEILING
    dynamic_j = flops * silicon.matrix_pj * 1e-12 * _voltage_squared(clock, silicon)
    return min(gpu.tdp_w * seconds, idle_j + dynamic_j)


#: What of the fixed draw is left while a GPU waits.
_IDLE_SHARE = 0.5
