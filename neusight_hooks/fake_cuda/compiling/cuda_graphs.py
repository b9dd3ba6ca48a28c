"""CUDA graphs of compiled code (mode="reduce-overhead"): one launch for all kernels of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor
from neusight.timeline.scheduler import GRAPH_LAUNCH

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

__all__ = ["install_cuda_graphs"]

#: Calls that run a graph's kernels one by one before it is launched: the warm-up and the one that
#: is captured (torch/_inductor/cudagraph_trees.py).
_CALLS_BEFORE = 2


def install_cuda_graphs(patches: Patches, recorder: Recorder) -> None:
    """Inductor captures nothing; from its third call on a graph costs the host one launch. Where
    torch itself decides against graphs (inputs on the CPU or changed), it does not come here."""
    from torch._inductor import compile_fx

    def cudagraphify(
        model: Callable[..., Any], static_input_idxs: Sequence[int] = (), **kwargs: Any
    ) -> Callable[..., Any]:
        return _Graph(recorder, model, frozenset(static_input_idxs))

    patches.set(compile_fx, "cudagraphify", cudagraphify)


class _Graph:
    """Compiled code that is launched as one graph. Its inputs are copied to where it reads them,
    but for parameters and other static ones."""

    def __init__(
        self, recorder: Recorder, model: Callable[..., Any], static: frozenset[int]
    ) -> None:
        self._recorder = recorder
        self._model = model
        self._static = static
        self._num_calls = 0
        self._inputs: dict[int, Any] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        self._num_calls += 1
        if self._num_calls == _CALLS_BEFORE:
            self._keep_inputs(inputs)
        if self._num_calls <= _CALLS_BEFORE:
            return self._model(inputs)
        given = [(self._inputs[at], inputs[at]) for at in self._inputs]
        if given:
            torch._foreach_copy_([kept for kept, _ in given], [new for _, new in given])
        tape = self._recorder.tape
        tape.mark("graph_begin", GRAPH_LAUNCH)
        try:
            return self._model(inputs)
        finally:
            tape.mark("graph_end", GRAPH_LAUNCH)

    def _keep_inputs(self, inputs: list[Any]) -> None:
        """Memory of the graph's own for inputs that change."""
        for at, value in enumerate(inputs):
            is_on_gpu = isinstance(value, ForecastTensor) and value._fake_device.type == "cuda"
            if at not in self._static and is_on_gpu:
                self._inputs[at] = torch.empty_like(value)
