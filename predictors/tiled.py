"""The default predictor: the physics of each kernel class, put together.

kernel -> physics of its class (PhysicalTime) -> Correction, if any -> bounds -> Estimate
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel, KernelClass
from neusight.predictors.learned.correction import Adjustment, shipped
from neusight.predictors.physics.attention import attention_timing
from neusight.predictors.physics.communication.collective import collective_timing
from neusight.predictors.physics.convolution import convolution_timings
from neusight.predictors.physics.gemm import bias_us, gemm_timings, is_unaligned, unaligned_us
from neusight.predictors.physics.memory_bound.timing import memory_bound_timing
from neusight.predictors.physics.physical_time import PhysicalTime, whole_nanoseconds
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.predictor import UNDESCRIBED, Estimate, Origin
from neusight.predictors.registry import register_predictor

#: How much wider the interval is on a GPU whose constants were not measured (leave-one-GPU-out on
#: data/modern GEMM: 1.2-1.5 times the error).
_PRIOR_WIDENING = 1.5

#: The spread's cap: the low end stays above 0.
_WIDEST = 0.9

#: How much longer a kernel of the program's own may take than its tensors take to move, as a share:
#: it may compute, or read them more than once. A product of square matrices of 8192 in bf16 at the
#: peak of an H100 takes nine times as long (1.1 ms for 0.12). A prior.
_CUSTOM_ABOVE = 8.0

#: Half width at least where no table has rows of a product's kind.
_UNALIGNED_SPREAD = 0.4

#: Estimates kept per pricing object and GPU before the store is emptied.
_MOST_KEPT = 500_000


class Correction(Protocol):
    """A trained model of measured over physical time; `shipped` gives neusight's own."""

    def factors(
        self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[PhysicalTime]
    ) -> Sequence[Adjustment | None]:
        """The adjustment of each kernel, or None where it covers no such kernel."""


class Tiled:
    """Tiles, waves, L2 and DRAM traffic and floors for every kernel class; the default predictor.

    `sustained` prices matrix arithmetic at the clocks of a long, busy run (`GPU.sustained_factor`),
    as training runs; False prices a short burst, as benchmarks run. A `correction` multiplies the
    physics where it knows better: the shipped one unless another is given; None leaves the physics
    alone. Estimates are kept by equal kernel, so repeated ones are free.
    """

    def __init__(
        self,
        *,
        sustained: bool = True,
        correction: Correction | Literal["shipped"] | None = "shipped",
    ) -> None:
        self._sustained = sustained
        self._correction = shipped(sustained=sustained) if correction == "shipped" else correction
        self._kept: dict[str, dict[Kernel, Estimate]] = {}

    @property
    def name(self) -> str:
        """ "tiled", or "tiled_burst" for burst clocks."""
        return "tiled" if self._sustained else "tiled_burst"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; UnsupportedKernelError where the GPU cannot run one."""
        known = self._kept.setdefault(gpu.fingerprint, {})
        if len(known) > _MOST_KEPT:
            known.clear()
        missing = list(dict.fromkeys(kernel for kernel in kernels if kernel not in known))
        if missing:
            known.update(zip(missing, self._price(missing, gpu), strict=True))
        return [known[kernel] for kernel in kernels]

    def _price(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        if not gpu.has_matrix_unit("tf32"):
            kernels = [_in_fp32(kernel, gpu) for kernel in kernels]
        timings = self.timings(kernels, gpu)
        factors: Sequence[Adjustment | None] = [None] * len(kernels)
        if self._correction is not None:
            factors = self._correction.factors(kernels, gpu, timings)
        return [
            self._estimate(kernel, timing, factor, gpu)
            for kernel, timing, factor in zip(kernels, timings, factors, strict=True)
        ]

    def timings(self, kernels: Sequence[Kernel], gpu: GPU) -> list[PhysicalTime]:
        """The physics without any correction: matrix classes in batches, the others one by one."""
        timings: dict[int, PhysicalTime] = {}
        batched: dict[KernelClass, list[int]] = {KernelClass.GEMM: [], KernelClass.CONVOLUTION: []}
        for index, kernel in enumerate(kernels):
            if kernel.kernel_class in batched:
                batched[kernel.kernel_class].append(index)
            elif kernel.kernel_class is KernelClass.ATTENTION:
                timings[index] = attention_timing(kernel, gpu, sustained=self._sustained)
            elif kernel.kernel_class is KernelClass.COLLECTIVE:
                timings[index] = collective_timing(kernel, gpu)
            else:
                timings[index] = memory_bound_timing(kernel, gpu)
        for kernel_class, indices in batched.items():
            if not indices:
                continue
            price: Callable[..., list[PhysicalTime]] = (
                gemm_timings if kernel_class is KernelClass.GEMM else convolution_timings
            )
            chosen = [kernels[index] for index in indices]
            timings.update(zip(indices, price(chosen, gpu, sustained=self._sustained), strict=True))
        return [timings[index] for index in range(len(kernels))]

    def _estimate(
        self,
        kernel: Kernel,
        timing: PhysicalTime,
        adjustment: Adjustment | None,
        gpu: GPU,
    ) -> Estimate:
        time_us, spread = timing.time_us, timing.spread
        origin: Origin = UNDESCRIBED.get(kernel.kernel_class, "physics")
        if adjustment is not None:
            time_us, spread = time_us * adjustment.factor, adjustment.spread
            origin = "trained" if adjustment.trained else "physics"
        elif gpu.constants_origin.startswith("prior"):
            spread *= _PRIOR_WIDENING
        in_range = adjustment is not None and adjustment.in_range
        time_us = min(time_us, timing.at_most_us)
        time_us += bias_us(kernel, gpu, timing.num_waves)
        if is_unaligned(kernel, gpu):
            time_us = unaligned_us(kernel, gpu, time_us)
            spread, origin, in_range = max(spread, _UNALIGNED_SPREAD), "physics", False
        peak_us = flop_roofline_us(kernel, gpu)
        time_us = max(time_us, peak_us)
        spread = min(spread, _WIDEST)
        above = _CUSTOM_ABOVE if origin == "custom" else spread
        latency_us = whole_nanoseconds(time_us)
        return Estimate(
            latency_us=latency_us,
            low_us=min(latency_us, whole_nanoseconds(max(peak_us, time_us / (1.0 + spread)))),
            high_us=max(latency_us, whole_nanoseconds(time_us * (1.0 + above))),
            bound=timing.bound,
            origin=origin,
            predictor=self.name,
            in_range=in_range,
            tile=timing.tile,
            split_k=timing.split_k,
            num_ctas=timing.num_ctas,
            threads_per_cta=timing.threads_per_cta,
            num_waves=timing.num_waves,
            utilization=min(1.0, peak_us / latency_us),
        )


def _in_fp32(kernel: Kernel, gpu: GPU) -> Kernel:
    """What a GPU without TF32 makes of a kernel that may use it: plain FP32. So are matrix products
    in 16 bits that no matrix unit of NVIDIA's takes, also on a P100, whose cores have twice the
    rate in FP16: torch asks cublasGemmEx for sums in FP32 (half of 121 products of data/deepbench
    take 0.98 to 1.02 of their time in FP32 there). AMD's cores take two halves at once."""
    is_product = isinstance(kernel.size, GemmSize) and kernel.compute in ("fp16", "bf16")
    is_on_cores = is_product and not gpu.has_matrix_unit(kernel.compute)
    is_on_cores = is_on_cores and gpu.vendor == "nvidia"
    return replace(kernel, compute="fp32") if is_on_cores or kernel.compute == "tf32" else kernel


register_predictor("tiled", Tiled)
register_predictor("tiled_burst", lambda: Tiled(sustained=False))
