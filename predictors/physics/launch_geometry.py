"""A launch as the GPU sees it: CTAs, what each takes of an SM, how many run at once, and waves.

Prices and traces read the same figures from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import KernelClass
from neusight.predictors.physics.tile import tile_shared_memory_bytes

Floats = NDArray[np.float64]

#: Threads of a CTA at most, and CTAs that one SM holds at most, whatever they need (CUDA C++
#: Programming Guide, compute capabilities table: 32, but 16 on Turing and consumer Ampere, 24 on
#: Ada).
MOST_THREADS_PER_CTA = 1024
MAX_CTAS_PER_SM = 32

#: Shared memory that CUDA reserves for each CTA since Ampere, bytes (same table).
RESERVED_SHARED_MEMORY_BYTES = 1024

#: Registers a thread of a class without a GEMM's tile, from real profiles (H100: elementwise 24;
#: attention 168 on average, as its loading warps give theirs away).
_REGISTERS = {
    KernelClass.ATTENTION: 168,
    KernelClass.COLLECTIVE: 96,
    KernelClass.OPTIMIZER: 64,
}
_OTHER_REGISTERS = 32

#: Registers of a GEMM's thread beside its sums, and the most that a thread can have.
_GEMM_REGISTERS = 64
_MOST_REGISTERS = 255

_PRODUCTS = frozenset({KernelClass.GEMM, KernelClass.CONVOLUTION})
_TILED = _PRODUCTS | {KernelClass.ATTENTION}

#: Answers kept: GPUs times tiles times types.
_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """A grid on a GPU: `num_ctas` of `threads_per_cta`, and what each takes of an SM.

    `ctas_per_sm` run at once on one SM; `num_waves` is the CTAs over all that run at once;
    `occupancy` is the share of an SM's warps that are there, on average over the SMs, up to 1.
    """

    num_ctas: int
    threads_per_cta: int
    registers_per_thread: int
    shared_memory_bytes: int
    ctas_per_sm: int
    num_waves: float
    occupancy: float


def geometry_of(
    kernel_class: KernelClass,
    gpu: GPU,
    *,
    num_ctas: int,
    threads_per_cta: int,
    tile: tuple[int, int] | None = None,
    itemsize: float = 4.0,
) -> LaunchGeometry:
    """How a launch of so many CTAs fills the GPU; `itemsize` is of a tile's operands, bytes."""
    num_ctas, threads = max(1, num_ctas), min(max(1, threads_per_cta), MOST_THREADS_PER_CTA)
    registers, shared_bytes, at_once = _demand(kernel_class, gpu, threads, tile, itemsize)
    warps_per_cta = -(-threads // gpu.warp_size)
    warps_per_sm = min(num_ctas / gpu.num_sms, float(at_once)) * warps_per_cta
    return LaunchGeometry(
        num_ctas=num_ctas,
        threads_per_cta=threads,
        registers_per_thread=registers,
        shared_memory_bytes=shared_bytes,
        ctas_per_sm=at_once,
        num_waves=num_ctas / (gpu.num_sms * at_once),
        occupancy=min(1.0, warps_per_sm / (gpu.max_threads_per_sm // gpu.warp_size)),
    )


@lru_cache(maxsize=_MOST_KEPT)
def _demand(
    kernel_class: KernelClass,
    gpu: GPU,
    threads: int,
    tile: tuple[int, int] | None,
    itemsize: float,
) -> tuple[int, int, int]:
    """Registers a thread, bytes of shared memory a CTA, and the CTAs that run at once on an SM."""
    registers = _REGISTERS.get(kernel_class, _OTHER_REGISTERS)
    if tile is not None and kernel_class in _PRODUCTS:
        # Its FP32 sums, and as many again as addresses and operands need.
        registers = min(_MOST_REGISTERS, _GEMM_REGISTERS + tile[0] * tile[1] // threads)
    is_tiled = tile is not None and kernel_class in _TILED
    shared_bytes = tile_shared_memory_bytes(tile, itemsize, gpu) if tile and is_tiled else 0
    at_once = ctas_per_sm(
        gpu,
        threads_per_cta=threads,
        shared_memory_bytes=shared_bytes,
        registers_per_thread=registers,
    )
    return registers, shared_bytes, at_once


def ctas_per_sm(
    gpu: GPU,
    *,
    threads_per_cta: int,
    shared_memory_bytes: int = 0,
    registers_per_thread: int = _OTHER_REGISTERS,
) -> int:
    """CTAs that run at once on one SM: the tightest of threads, shared memory and registers; >= 1.

    A CTA that does not fit at all counts as one an SM: no library would launch it.
    """
    by_threads = gpu.max_threads_per_sm // max(1, threads_per_cta)
    by_memory = gpu.shared_memory_per_sm_bytes // (
        max(0, shared_memory_bytes) + RESERVED_SHARED_MEMORY_BYTES
    )
    by_registers = gpu.registers_per_sm // max(1, registers_per_thread * threads_per_cta)
    return max(1, min(by_threads, by_memory, by_registers, MAX_CTAS_PER_SM))


def effective_waves(waves: Floats, tail_cost: float) -> Floats:
    """Waves as time feels them: at least one, the last partial one charged in part.

    With `tail_cost` 1 a tail wave costs a whole wave (the published NeuSight form), with 0 it
    costs its share; measured GEMMs lie between, as CTAs of a tail run faster alone. Never falls
    as `waves` grows.
    """
    tail = np.ceil(waves) - waves
    return np.maximum(1.0, waves + tail_cost * tail)
