"""Habitat's wave scaling (arXiv 2102.00527, section 3.3): a measured kernel carried to another GPU.

Only kernels that keep their implementation scale: those of cuBLAS and cuDNN change with the GPU.
"""

from __future__ import annotations

from typing import NamedTuple

from neusight.predictors.gpu import GPU

#: CTAs that an SM holds at most, by compute capability where it is not as many as all others hold
#: (CUDA C++ Programming Guide, table of technical specifications per compute capability).
_CTAS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
_CTAS_OF_OTHERS = 32

#: Registers are given to warps in pieces of this many (the same table).
_REGISTER_PIECE = 256


class LaunchSize(NamedTuple):
    """How a kernel was launched; 0 where the registers or the shared memory are not known."""

    num_ctas: int
    threads_per_cta: int
    registers_per_thread: int = 0
    shared_memory_bytes: int = 0


def wave_size(launch: LaunchSize, gpu: GPU) -> int:
    """CTAs that run on the whole GPU at once, at least one an SM.

    >>> from neusight.predictors.gpu import find_gpu
    >>> wave_size(LaunchSize(1000, 256), find_gpu("A100"))
    864
    """
    threads = max(1, launch.threads_per_cta)
    limits = [_CTAS_PER_SM.get(gpu.compute_capability, _CTAS_OF_OTHERS)]
    limits.append(gpu.max_threads_per_sm // threads)
    if launch.registers_per_thread:
        warps = -(-threads // gpu.warp_size)
        of_a_warp = launch.registers_per_thread * gpu.warp_size
        of_a_cta = warps * -(-of_a_warp // _REGISTER_PIECE) * _REGISTER_PIECE
        limits.append(gpu.registers_per_sm // of_a_cta)
    if launch.shared_memory_bytes:
        limits.append(gpu.shared_memory_per_sm_bytes // launch.shared_memory_bytes)
    return gpu.num_sms * max(1, min(limits))


def _streamed_gbps(gpu: GPU) -> float:
    return gpu.bandwidth_gbps * gpu.bandwidth_utilization


def memory_share(intensity: float, balance: float) -> float:
    """The paper's γ: 1 where only memory bounds a kernel, 0.5 at the GPU's balance, 0 where only
    arithmetic does (its figure 3). Both in FLOPs a byte.

    >>> memory_share(0.0, 10.0), memory_share(10.0, 10.0), memory_share(100.0, 10.0)
    (1.0, 0.5, 0.05)
    """
    if intensity < balance:
        return 1.0 - 0.5 * intensity / balance
    return 0.5 * balance / intensity


def wave_scaled_us(
    time_us: float,
    launch: LaunchSize,
    *,
    source: GPU,
    target: GPU,
    intensity: float,
    compute: str = "fp32",
) -> float:
    """How long a kernel that took `time_us` on the source takes on the target, µs.

    The paper's equation 1: whole waves, and what a wave takes by the bandwidth that each of its
    CTAs has (to the power γ) and by the clock (to the power 1 - γ). `intensity` is the kernel's
    FLOPs a byte, 0 where they are not known (then γ is 1, as the paper does). The bandwidth is the
    one that each GPU reaches, which the method measures once for each, not its datasheet's.
    """
    share = memory_share(intensity, target.peak_flops(compute) / (_streamed_gbps(target) * 1e9))
    before, after = wave_size(launch, source), wave_size(launch, target)
    num_ctas = max(1, launch.num_ctas)
    waves = -(-num_ctas // after) / -(-num_ctas // before)
    bandwidth = _streamed_gbps(source) / _streamed_gbps(target) * (after / before)
    clock = source.boost_clock_mhz / target.boost_clock_mhz
    return time_us * waves * float(bandwidth**share) * float(clock ** (1.0 - share))
