"""What the published predictors say of a kernel once its duration is known."""

from __future__ import annotations

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.physical_time import Bound, whole_nanoseconds
from neusight.predictors.physics.roofline import flop_roofline_us, memory_roofline_us
from neusight.predictors.predictor import Estimate, Origin


def estimate_of(
    kernel: Kernel,
    gpu: GPU,
    time_us: float,
    *,
    predictor: str,
    origin: Origin,
    spread: float,
    in_range: bool = False,
) -> Estimate:
    """The estimate of a kernel that takes `time_us`, never under its arithmetic at the peak.

    The interval is from 1 / (1 + spread) to (1 + spread) of the latency.
    """
    peak_us = flop_roofline_us(kernel, gpu)
    bound: Bound = "compute" if peak_us > memory_roofline_us(kernel, gpu) else "memory"
    if kernel.kernel_class is KernelClass.COLLECTIVE:
        bound = "communication"
    latency = whole_nanoseconds(max(time_us, peak_us))
    return Estimate(
        latency_us=latency,
        low_us=min(latency, whole_nanoseconds(max(peak_us, latency / (1.0 + spread)))),
        high_us=whole_nanoseconds(latency * (1.0 + spread)),
        bound=bound,
        origin=origin,
        predictor=predictor,
        in_range=in_range,
        utilization=min(1.0, peak_us / latency),
    )
