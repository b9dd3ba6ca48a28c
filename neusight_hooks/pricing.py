"""From op calls to priced kernels: the registry and a predictor, asked once for equal calls."""

from __future__ import annotations

from collections.abc import Iterable

from neusight.ops import map_op
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate, Predictor
from neusight.recording import MathMode, OpCall, OpSignature, Recording

__all__ = ["Pricer"]

Priced = tuple[tuple[Kernel, Estimate], ...]


class Pricer:
    """Says for an op call which kernels it launches on `gpu` and how long each takes.

    `unmapped` collects the ops that no registered function knows, with the reason.
    """

    def __init__(self, gpu: GPU, predictor: Predictor) -> None:
        self.gpu = gpu
        self.predictor = predictor
        self.unmapped: dict[str, str] = {}
        self._kernels: dict[tuple[int, int], tuple[Kernel, ...]] = {}
        self._priced: dict[tuple[int, int], Priced] = {}
        self._estimates: dict[Kernel, Estimate] = {}
        self._keep: list[tuple[OpSignature, MathMode]] = []

    def __call__(self, call: OpCall) -> Priced:
        """The kernels of a call in launch order, with their estimates."""
        key = (id(call.signature), id(call.math))
        priced = self._priced.get(key)
        if priced is None:
            kernels = self._kernels_of(call)
            self._price(kernels)
            priced = tuple((kernel, self._estimates[kernel]) for kernel in kernels)
            self._priced[key] = priced
        return priced

    def prepare(self, recording: Recording) -> None:
        """Prices all kernels of a recording in one batch."""
        calls = (
            entry for step in recording.steps for entry in step.entries if isinstance(entry, OpCall)
        )
        kernels: dict[Kernel, None] = {}
        for call in calls:
            for kernel in self._kernels_of(call):
                kernels[kernel] = None
        self._price(kernels)

    def _kernels_of(self, call: OpCall) -> tuple[Kernel, ...]:
        key = (id(call.signature), id(call.math))
        kernels = self._kernels.get(key)
        if kernels is None:
            mapping = map_op(call.signature, call.math)
            if not mapping.is_mapped:
                self.unmapped.setdefault(call.signature.op, mapping.reason)
            kernels = self._kernels[key] = mapping.kernels
            self._keep.append((call.signature, call.math))  # identities must not be used again
        return kernels

    def _price(self, kernels: Iterable[Kernel]) -> None:
        fresh = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._estimates]
        if fresh:
            estimates = self.predictor.predict(fresh, self.gpu)
            self._estimates.update(zip(fresh, estimates, strict=True))
