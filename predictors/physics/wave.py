"""How many CTAs a launch has, how many run at once, and what its last, partial wave costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

__all__ = ["ctas_per_sm", "effective_waves", "num_waves"]

Floats = NDArray[np.float64]

#: CTAs that one SM holds at most, whatever they need (CUDA C++ Programming Guide, compute
#: capabilities table: 32, but 16 on Turing and consumer Ampere, 24 on Ada).
MAX_CTAS_PER_SM = 32

#: Shared memory that CUDA reserves for each CTA since Ampere, bytes (same table).
RESERVED_SHARED_MEMORY_BYTES = 1024


def ctas_per_sm(
    gpu: GPU,
    *,
    threads_per_cta: int,
    shared_memory_bytes: int = 0,
    registers_per_thread: int = 32,
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


def num_waves(num_ctas: float, gpu: GPU, *, ctas_per_sm: int = 1) -> float:
    """Waves that a launch fills, as a fraction: CTAs over what the GPU runs at once."""
    return num_ctas / (gpu.num_sms * ctas_per_sm)


def effective_waves(waves: Floats, tail_cost: float) -> Floats:
    """Waves as time feels them: at least one, the last partial one charged in part.

    With `tail_cost` 1 a tail wave costs a whole wave (the published NeuSight form), with 0 it
    costs its share; measured GEMMs lie between, as CTAs of a tail run faster alone. Never falls
    as `waves` grows.
    """
    tail = np.ceil(waves) - waves
    return np.maximum(1.0, waves + tail_cost * tail)
