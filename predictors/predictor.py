"""The contract of a predictor: kernels and a GPU in, estimates out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.physical_time import Bound

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

Origin = Literal["trained", "physics", "fallback", "custom"]

#: The origin of prices of classes that are described by their bytes alone.
UNDESCRIBED: dict[KernelClass, Origin] = {
    KernelClass.UNKNOWN: "fallback",
    KernelClass.CUSTOM: "custom",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a kernel takes on a GPU, and why.

    `latency_us` is the kernel's own duration, to whole nanoseconds; `low_us` and `high_us` bound
    an 80 % interval. `tile` is (m, n) of a CTA tile where the class has one; `num_ctas`,
    `num_waves` and `split_k` describe the launch; `utilization` is the share of peak FLOP/s;
    `origin` says whether a trained model, stated physics or the bytes-over-bandwidth fallback
    priced it ("custom": the bytes of a kernel of the program's own), `in_range` whether the kernel
    lies inside what that predictor was fitted on.
    """

    latency_us: float
    low_us: float
    high_us: float
    bound: Bound
    origin: Origin
    predictor: str
    in_range: bool = False
    tile: tuple[int, int] | None = None
    split_k: int = 1
    num_ctas: int = 1
    threads_per_cta: int = 256
    num_waves: float = 1.0
    utilization: float = 0.0

    @property
    def sm_share(self) -> float:
        """The share of the GPU's SMs whose arithmetic a kernel keeps busy; none where it waits for
        memory or its own latency, so that others run beside it."""
        return min(1.0, self.num_waves) if self.bound == "compute" else 0.0


@runtime_checkable
class Predictor(Protocol):
    """Prices kernels; bring your own through `register_predictor`."""

    @property
    def name(self) -> str:
        """Shown in reports and files."""

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; independent of what else is in the batch."""


PredictorFactory = Callable[[], Predictor]
