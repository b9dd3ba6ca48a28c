"""CUDA graphs of compiled code, as torch's trees have them: warmed up, captured, launched again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from neusight.fake_cuda.compiling.graphs.node import GraphNode, Place
from neusight.recording.recorder import Recorder
from neusight.recording.recording import COMPILED_CODE
from neusight.recording.tensor import ForecastTensor
from neusight.timeline.scheduler import GRAPH_LAUNCH

Model = Callable[[list[Any]], Any]
State = Literal["warmup", "recording", "execution"]


class _Function(NamedTuple):
    """Compiled code that is to run as a graph. `wrapped` is what torch's checks read."""

    model: Model
    static: frozenset[int]
    is_backward: bool
    is_inference: bool
    wrapped: Any


class GraphTrees:
    """torch._inductor.cudagraph_trees without a GPU (names here are its names).

    A function is warmed up at its first call, captured at its second, and launched from then on;
    all functions share one private pool. What earlier graphs of the same path wrote is not copied,
    nor are parameters; other inputs are. A path ends with the next call of compiled code, when no
    backward is pending: then the graphs take their memory back. Which outputs live is not compared
    with the capture, as torch does to capture again where a program keeps other ones.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pool = 0
        self._functions: list[_Function] = []
        self._is_warm: set[int] = set()
        self._mutates: dict[tuple[GraphNode | None, int], bool] = {}
        self._roots: dict[int, list[GraphNode]] = defaultdict(list)
        self._current: GraphNode | None = None
        self._state: State = "execution"
        self._generation: int | None = None
        self._is_backward_pending = False

    # -- what torch calls -------------------------------------------------------------------------

    def cudagraphify(
        self,
        model: Model,
        inputs: list[Any],
        static_input_idxs: Sequence[int] = (),
        *,
        is_backward: bool,
        is_inference: bool,
        constants: tuple[torch.Tensor, ...] = (),
        placeholders: Sequence[Any] = (),
        mutated_input_idxs: tuple[int, ...] = (),
        **others: Any,
    ) -> tuple[Model, Any]:
        """A function for the trees, and what its first call returns."""
        from torch._inductor import cudagraph_utils

        number = len(self._functions)
        wrapped = cudagraph_utils.WrappedFunction(
            model,
            list(static_input_idxs),
            cudagraph_utils.FunctionID(number),
            constants,
            placeholders,
            mutated_input_idxs,
        )
        static = frozenset(static_input_idxs)
        if "compile_id" not in others:  # not from Inductor, whose wrappers say where they are
            model = self._marked(model, is_backward=is_backward, is_inference=is_inference)
        self._functions.append(_Function(model, static, is_backward, is_inference, wrapped))

        def run(inputs: list[Any]) -> Any:
            return self.run(number, inputs)

        return run, run(inputs)

    def _marked(self, model: Model, *, is_backward: bool, is_inference: bool) -> Model:
        """The call of code that the backend "cudagraphs" compiled."""
        tape = self._recorder.tape
        inference, forward, backward = COMPILED_CODE
        name = backward if is_backward else inference if is_inference else forward

        def run(inputs: list[Any]) -> Any:
            detail = str(len(inputs))
            tape.mark("compiled_begin", name, detail)
            try:
                return model(inputs)
            finally:
                tape.mark("compiled_end", name, detail)

        return run

    @property
    def current_node(self) -> GraphNode:
        """The end of the path; before the first graph one that wrote nothing."""
        return GraphNode(-1, None) if self._current is None else self._current

    def set_to_running_backward(self) -> None:
        """A backward runs that is no graph."""
        self._is_backward_pending = False

    def run(self, number: int, inputs: list[Any]) -> Any:
        function = self._functions[number]
        if self._recorder.storages.is_replaying or self._recorder.storages.pool:
            return function.model(inputs)  # within another graph
        outputs = self._run(number, function, inputs)
        if not function.is_inference:
            self._is_backward_pending = not function.is_backward
        return outputs

    # -- which of warm-up, capture and launch it is -----------------------------------------------

    def _run(self, number: int, function: _Function, inputs: list[Any]) -> Any:
        if self._current is not None and self._state != "execution":
            self._try_to_end_path()
        if self._changes_inputs(number, inputs):
            return function.model(inputs)
        is_warming = self._current is not None and self._state == "warmup"
        if number not in self._is_warm or is_warming:
            return self._warm_up(number, function, inputs)
        if self._current is None or self._state == "execution":
            node = self._fitting(number, inputs)
            if node is None and self._current is not None:
                self._try_to_end_path()
                node = self._fitting(number, inputs) if self._current is None else None
            if node is not None:
                return self._launch(node, function, inputs)
            if self._changes_inputs(number, inputs):
                return function.model(inputs)
        return self._capture(number, function, inputs)

    def _fitting(self, number: int, inputs: list[Any]) -> GraphNode | None:
        """The captured graph that may be launched here with these inputs."""
        following = self._roots if self._current is None else self._current.children
        for node in following.get(number, ()):
            if self._managed(node, inputs) == node.managed and all(
                inputs[at].data_ptr() == address for at, address in node.addresses.items()
            ):
                return node
        return None

    def _managed(self, node: GraphNode, inputs: list[Any]) -> dict[int, Place]:
        if node.parent is None:
            return {}
        places = {
            at: node.parent.place_of(value)
            for at, value in enumerate(inputs)
            if isinstance(value, torch.Tensor)
        }
        return {at: place for at, place in places.items() if place is not None}

    def _changes_inputs(self, number: int, inputs: list[Any]) -> bool:
        """Whether it writes inputs that are no parameters and come from no graph; torch says so."""
        from torch._inductor import cudagraph_utils

        known = self._mutates.get((self._current, number))
        if known is not None:
            return known
        current = self._current
        reason = cudagraph_utils.check_for_mutation(
            self._functions[number].wrapped,
            inputs,
            lambda tensor: current is not None and current.place_of(tensor) is not None,
        )
        if reason:
            cudagraph_utils.log_cudagraph_skip_and_bump_counter(reason)
        self._mutates[(current, number)] = bool(reason)
        return bool(reason)

    def _try_to_end_path(self) -> None:
        """Ends the path where a new call began it again, or nothing of it lives."""
        assert self._current is not None
        from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

        is_new = self._generation != CUDAGraphTreeManager.get_curr_generation()
        if is_new and (
            CUDAGraphTreeManager.user_invoked_mark_step() or not self._is_backward_pending
        ):
            if self._state != "execution":
                for storage in self._current.living():
                    self._recorder.storages.leave_to_graph(storage)
            self._current = None
        elif next(self._current.living(), None) is None:
            self._current = None

    def _goes_on_with(self, node: GraphNode, state: State) -> None:
        from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

        self._current, self._state = node, state
        self._generation = CUDAGraphTreeManager.get_curr_generation()

    # -- the three ---------------------------------------------------------------------------------

    def _warm_up(self, number: int, function: _Function, inputs: list[Any]) -> Any:
        self._is_warm.add(number)
        self._keep_what_lives()
        node = GraphNode(number, self._current)
        self._goes_on_with(node, "warmup")
        with self._in_pool():
            return self._call(node, function, inputs)

    def _capture(self, number: int, function: _Function, inputs: list[Any]) -> Any:
        self._keep_what_lives()
        node = GraphNode(number, self._current)
        node.managed = self._managed(node, inputs)
        static = function.static - node.managed.keys()
        node.addresses = {
            at: inputs[at].data_ptr() for at in static if isinstance(inputs[at], torch.Tensor)
        }
        moving = [
            at
            for at, value in enumerate(inputs)
            if at not in function.static and at not in node.managed and _is_on_gpu(value)
        ]
        (self._roots if self._current is None else self._current.children)[number].append(node)
        with self._replaying():
            node.inputs = {at: self._alike(inputs[at]) for at in moving}
        torch.cuda.synchronize()
        with self._in_pool():
            # Copies, which the graph gives back where it has read them.
            self._move(inputs, {at: self._alike(inputs[at]) for at in moving})
            self._goes_on_with(node, "recording")
            outputs = self._as_graph(node, function, inputs)
        torch.cuda.synchronize()
        return outputs

    def _launch(self, node: GraphNode, function: _Function, inputs: list[Any]) -> Any:
        self._move(inputs, node.inputs)
        self._goes_on_with(node, "execution")
        with self._replaying():
            return self._as_graph(node, function, inputs)

    def _as_graph(self, node: GraphNode, function: _Function, inputs: list[Any]) -> Any:
        """Runs the function, whose kernels are then launched as one."""
        recorder = self._recorder
        tape, cutter = recorder.tape, recorder.cutter
        start, was_paused = tape.position(), cutter.is_paused
        cutter.is_paused = True
        try:
            outputs = self._call(node, function, inputs)
            captured = tape.take_launched(start)
        finally:
            cutter.is_paused = was_paused
        num_tensors = str(len(node.addresses) + len(node.managed) + len(node.outputs))
        tape.mark("graph_begin", GRAPH_LAUNCH, num_tensors)
        tape.launch(captured)
        tape.mark("graph_end", GRAPH_LAUNCH, num_tensors)
        return outputs

    def _call(self, node: GraphNode, function: _Function, inputs: list[Any]) -> Any:
        given = {
            value.untyped_storage()._cdata
            for at, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and at not in node.inputs
        }
        outputs = function.model(inputs)
        node.outputs = [
            weakref.ref(value.untyped_storage())
            if _is_on_gpu(value) and value.untyped_storage()._cdata not in given
            else None
            for value in outputs
        ]
        return outputs

    # -- memory -----------------------------------------------------------------------------------

    @contextmanager
    def _in_pool(self) -> Iterator[None]:
        """What is allocated comes from the private pool of all graphs."""
        storages = self._recorder.storages
        if not self._pool:
            self._pool = storages.new_pool()
        storages.pool = self._pool
        try:
            yield
        finally:
            storages.pool = 0

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """What is made has its memory since the graph was captured."""
        storages = self._recorder.storages
        storages.is_replaying = True
        try:
            yield
        finally:
            storages.is_replaying = False

    def _keep_what_lives(self) -> None:
        """Another graph is about to allocate: what launched ones wrote is not to be overwritten."""
        if self._current is not None and self._state == "execution":
            with self._in_pool():
                for storage in self._current.living():
                    self._recorder.storages.take_from_graph(storage)

    def _move(self, inputs: list[Any], kept: Mapping[int, ForecastTensor]) -> None:
        """Copies inputs to where the graph reads them; their values, where known, go along."""
        _copy([(copied, inputs[at]) for at, copied in kept.items()])
        known = self._recorder.known
        for at, copied in kept.items():
            if known.is_sure(inputs[at]):
                known.set(copied, known.of(inputs[at]))
            else:
                known.forget(copied.untyped_storage()._cdata)
            inputs[at] = copied

    def _alike(self, tensor: ForecastTensor) -> ForecastTensor:
        with torch._C._DisableTorchDispatch():
            made = self._recorder.mode.new_tensor(
                tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._fake_device
            )
        self._recorder.storages.made(made, "inductor::static_input")
        return made


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, ForecastTensor) and value._fake_device.type == "cuda"


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Inputs to where their graph reads them, without what is only expanded."""
    from torch._inductor.output_code import get_expanded_dims, index_expanded_dims

    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    for target, source in pairs:
        expanded = get_expanded_dims(source)
        targets.append(index_expanded_dims(target, expanded))
        sources.append(index_expanded_dims(source, expanded))
    if targets:
        torch._foreach_copy_(targets, sources)
