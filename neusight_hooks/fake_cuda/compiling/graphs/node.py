"""A CUDA graph at its place among those that torch runs one after the other."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from neusight.recording.tensor import ForecastTensor

#: Of an output: how many graphs before the last one of the path, and which of its outputs.
Place = tuple[int, int]


class GraphNode:
    """One function at one place of a path; a captured one knows which inputs it was captured with.

    A node that only warms up has no `inputs`.
    """

    def __init__(self, function: int, parent: GraphNode | None) -> None:
        self.function = function
        self.parent = parent
        self.children: dict[int, list[GraphNode]] = defaultdict(list)
        #: What it returned last, for as long as it lives.
        self.outputs: list[weakref.ref[Any] | None] = []
        #: Where those inputs come from that earlier graphs of the path wrote.
        self.managed: dict[int, Place] = {}
        #: Addresses of inputs that do not move.
        self.addresses: dict[int, int] = {}
        #: Memory of the graph's own for inputs that do.
        self.inputs: dict[int, ForecastTensor] = {}

    def path(self) -> Iterator[GraphNode]:
        node: GraphNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def living(self) -> Iterator[Any]:
        """Storages that graphs of the path wrote, and that live."""
        for node in self.path():
            for reference in node.outputs:
                storage = None if reference is None else reference()
                if storage is not None:
                    yield storage

    def _is_cuda_graph_recorded_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether a graph of the path wrote it; torch asks by this name for a compiled optimizer's
        state."""
        return self.place_of(tensor) is not None

    def place_of(self, tensor: torch.Tensor) -> Place | None:
        """Which graph of the path wrote this tensor."""
        wanted = tensor.untyped_storage()._cdata
        for distance, node in enumerate(self.path()):
            for index, reference in enumerate(node.outputs):
                storage = None if reference is None else reference()
                if storage is not None and storage._cdata == wanted:
                    return distance, index
        return None
