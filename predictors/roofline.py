"""The bound of each kernel as a predictor: never slower than the kernel can be."""

from __future__ import annotations

from collections.abc import Sequence

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.physical_time import Bound, whole_nanoseconds
from neusight.predictors.physics.roofline import flop_roofline_us, memory_roofline_us
from neusight.predictors.predictor import UNDESCRIBED, Estimate
from neusight.predictors.registry import register_predictor

#: The roofline's 80 % interval: 80 % of data/modern's bf16 and fp16 GEMM rows above 100 µs take at
#: most this many times their bound. Shorter kernels take longer, by any factor.
ROOFLINE_HIGH = 1.6


class Roofline:
    """The bound as a forecast: baseline and last resort. Never slower than the kernel can be."""

    name = "roofline"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel: its bound, at least a nanosecond."""
        return [self._estimate(kernel, gpu) for kernel in kernels]

    def _estimate(self, kernel: Kernel, gpu: GPU) -> Estimate:
        compute_us, memory_us = flop_roofline_us(kernel, gpu), memory_roofline_us(kernel, gpu)
        latency_us = whole_nanoseconds(max(compute_us, memory_us))
        bound: Bound = "compute" if compute_us > memory_us else "memory"
        if kernel.kernel_class is KernelClass.COLLECTIVE:
            bound = "communication"
        return Estimate(
            latency_us=latency_us,
            low_us=latency_us,
            high_us=whole_nanoseconds(latency_us * ROOFLINE_HIGH),
            bound=bound,
            origin=UNDESCRIBED.get(kernel.kernel_class, "physics"),
            predictor=self.name,
            utilization=min(1.0, compute_us / latency_us),
        )


register_predictor("roofline", Roofline)
