"""The contract of a predictor: kernels and a GPU in, estimates out; and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from neusight.predictors.errors import RegistrationError

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU
    from neusight.predictors.kernel import Kernel

__all__ = [
    "Bound",
    "Estimate",
    "Origin",
    "Predictor",
    "PredictorFactory",
    "Timing",
    "predict",
    "predictor",
    "predictors",
    "register_predictor",
]

Bound = Literal["compute", "memory", "launch", "communication"]
Origin = Literal["trained", "physics", "fallback"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a kernel takes on a GPU, and why.

    `latency_us` is the kernel's own duration, to whole nanoseconds; `low_us` and `high_us` bound
    an 80 % interval. `tile` is (m, n) of a CTA tile where the class has one; `num_ctas`,
    `num_waves` and `split_k` describe the launch; `utilization` is the share of peak FLOP/s;
    `origin` says whether a trained model, stated physics or the bytes-over-bandwidth fallback
    priced it, `in_range` whether the kernel lies inside what that predictor was fitted on.
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


@dataclass(frozen=True, slots=True)
class Timing:
    """What the physics of a kernel class says: an `Estimate` before correction and interval.

    `time_us` is not rounded; `spread` is the half width of the 80 % interval as a share of it,
    on a GPU whose constants were measured.
    """

    time_us: float
    bound: Bound
    spread: float
    tile: tuple[int, int] | None = None
    split_k: int = 1
    num_ctas: int = 1
    threads_per_cta: int = 256
    num_waves: float = 1.0


@runtime_checkable
class Predictor(Protocol):
    """Prices kernels; bring your own through `register_predictor`."""

    @property
    def name(self) -> str:
        """Shown in reports and files."""
        ...

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; independent of what else is in the batch."""
        ...


PredictorFactory = Callable[[], Predictor]


def _tiled() -> Predictor:
    from neusight.predictors.tiled import Tiled

    return Tiled()


def _tiled_burst() -> Predictor:
    from neusight.predictors.tiled import Tiled

    return Tiled(sustained=False)


def _roofline() -> Predictor:
    from neusight.predictors.physics.roofline import Roofline

    return Roofline()


#: The predictor that prices where none is named.
DEFAULT_PREDICTOR = "tiled"

_factories: dict[str, PredictorFactory] = {
    DEFAULT_PREDICTOR: _tiled,
    "tiled_burst": _tiled_burst,
    "roofline": _roofline,
}


def register_predictor(name: str, factory: PredictorFactory) -> None:
    """Makes `predictor(name)` give what `factory()` makes.

    RegistrationError where the name is empty or taken, or the factory cannot be called.
    """
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError(f"Predictor name {name!r}: it must be a non-empty text.")
    if name in _factories:
        raise RegistrationError(f"Predictor {name!r} is already registered; choose another name.")
    if not callable(factory):
        raise RegistrationError(f"Predictor {name!r}: {factory!r} is no factory to call.")
    _factories[name] = factory


def predictors() -> list[str]:
    """Names of all registered predictors, sorted.

    >>> "roofline" in predictors()
    True
    """
    return sorted(_factories)


def predictor(name: str | Predictor | None = None) -> Predictor:
    """A new predictor of that name; None gives the default, a predictor is given back as it is.

    ValueError names near misses.

    >>> predictor("roofline").name
    'roofline'
    """
    if name is None:
        name = DEFAULT_PREDICTOR
    if not isinstance(name, str):
        return name
    factory = _factories.get(name)
    if factory is None:
        import difflib

        near = difflib.get_close_matches(name, _factories, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"Unknown predictor {name!r}.{hint} Known: {', '.join(predictors())};"
            " `register_predictor` adds one."
        )
    made = factory()
    if not isinstance(made, Predictor):
        raise RegistrationError(
            f"Predictor {name!r}: its factory gave {type(made).__name__}, which lacks"
            " `name` or `predict(kernels, gpu)`."
        )
    return made


def predict(
    kernels: Sequence[Kernel], gpu: str | GPU, predictor: str | Predictor | None = None
) -> list[Estimate]:
    """How long each kernel takes on the GPU, in order.

    UnknownGPUError, UnsupportedKernelError where the GPU cannot run a kernel.

    >>> from neusight.predictors.kernel import Kernel
    >>> [estimate] = predict([Kernel.gemm(4096, 4096, 4096)], "H100")
    >>> estimate.bound
    'compute'
    """
    from neusight.predictors.gpu import gpu as find_gpu

    return _find(predictor).predict(kernels, find_gpu(gpu))


#: `predict` has a parameter of the same name.
_find = predictor
