"""Recurrent networks: cuDNN's LSTM, GRU and RNN as the products and gates they consist of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from neusight.ops.operands import (
    contiguous,
    copy_kernel,
    flags,
    kernel_name,
    new_tensor,
    pointwise_kernel,
    read_tensors,
    sum_kernel,
    vector,
    written_tensors,
)
from neusight.ops.products.convolution import compute_for_convolution
from neusight.ops.registry import register_op
from neusight.predictors.kernel import RECURRENT, Kernel
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: cudnnRNNMode_t: the cell's name and its number of gates.
_CELLS = {0: ("rnn_cell", 1), 1: ("rnn_cell", 1), 2: ("lstm_cell", 4), 3: ("gru_cell", 3)}


class _Cell(NamedTuple):
    """What is done at each step; with a projection the output is narrower than the state."""

    name: str
    gates: int
    hidden_size: int
    output_size: int

    @property
    def width(self) -> int:
        """The columns of all gates together."""
        return self.gates * self.hidden_size

    @property
    def is_projected(self) -> bool:
        return self.output_size != self.hidden_size


def _cell(mode: int, hidden_size: int, proj_size: int) -> _Cell:
    name, gates = _CELLS[mode]
    return _Cell(name, gates, hidden_size, proj_size or hidden_size)


#: Time steps after which cuDNN lets the next layer begin (H200, `small_programs/lstm` in
#: benchmarks/measured, torch 2.11: two layers of 32 steps).
_CHUNK_STEPS = 8

#: What each layer and direction has a stream for.
_INPUTS, _RECURRENCE, _WEIGHTS = range(3)
_NUM_LANES = 3


class _OwnStream(NamedTuple):
    layer: int
    direction: int
    lane: int


_OwnStreams = tuple[_OwnStream, ...]


class _Network(NamedTuple):
    """The shape of a recurrent network; `steps` has the batch size of each time step."""

    input: TensorSpec
    math: MathMode
    cell: _Cell
    steps: tuple[int, ...]
    is_bidirectional: bool
    num_layers: int
    has_dropout: bool

    @property
    def directions(self) -> int:
        return 2 if self.is_bidirectional else 1

    @property
    def has_streams(self) -> bool:
        """Whether cuDNN runs its layers and directions on streams of its own."""
        return self.num_layers * self.directions > 1 and not self.math.miopen

    def chunks(self) -> list[tuple[int, ...]]:
        """The time steps after which the next layer may begin."""
        size = _CHUNK_STEPS if self.has_streams else max(1, len(self.steps))
        return [self.steps[first : first + size] for first in range(0, len(self.steps), size)]

    def order(self) -> Iterator[tuple[int, int]]:
        """The passed layers and the chunk of each part, in the order in which they are launched: a
        layer's behind that of the layer before, or all behind all where both directions meet."""
        num_chunks = len(self.chunks())
        if self.is_bidirectional or not self.has_streams:
            yield from product(range(self.num_layers), range(num_chunks))
            return
        for diagonal in range(num_chunks + self.num_layers - 1):
            for passed in reversed(range(self.num_layers)):
                if 0 <= diagonal - passed < num_chunks:
                    yield passed, diagonal - passed

    def on_stream(
        self, kernels: list[Kernel], layer: int, direction: int, lane: int, after: _OwnStreams = ()
    ) -> list[Kernel]:
        """The kernels on one of cuDNN's streams, the first behind what those others hold."""
        if not self.has_streams or not kernels:
            return kernels
        own = _OwnStream(layer, direction, lane)
        behind = tuple(map(self._number, after))
        first, *others = (replace(item, branches=(self._number(own),)) for item in kernels)
        return [replace(first, branches=(*first.branches, *behind)), *others]

    def _number(self, stream: _OwnStream) -> int:
        return 1 + (stream.layer * self.directions + stream.direction) * _NUM_LANES + stream.lane

    def lanes(self, layer: int, lane: int) -> _OwnStreams:
        """The streams of a layer, one a direction; none where there is no such layer."""
        is_known = 0 <= layer < self.num_layers
        return tuple(_OwnStream(layer, item, lane) for item in range(self.directions * is_known))

    def input_of(self, layer: int) -> int:
        return self.input.shape[-1] if layer == 0 else self.cell.output_size * self.directions

    def gemm(self, m: int, n: int, k: int, *, name: str = "gemm") -> list[Kernel]:
        if m * n * k == 0:
            return []
        dtype = self.input.dtype
        compute = compute_for_convolution(dtype, self.math)
        return [Kernel.gemm(m, n, k, dtype=dtype, compute=compute, name=name)]

    def step(self, m: int, n: int, k: int) -> list[Kernel]:
        """The product of one time step, by cuDNN's own kernels, which keep the weights."""
        return self.gemm(m, n, k, name=RECURRENT)

    def matrix(self, rows: int, columns: int) -> TensorSpec:
        return new_tensor((rows, columns), self.input.dtype, self.input.device)


def _steps(
    source: TensorSpec, batch_sizes: tuple[int, ...], *, batch_first: bool
) -> tuple[int, ...]:
    """The batch size of each time step, which differs in packed sequences."""
    batch, length = source.shape[:2] if batch_first else source.shape[1::-1]
    return batch_sizes or (batch,) * length


def _gates(network: _Network, name: str, batch: int) -> list[Kernel]:
    """The pointwise part of a cell: gates and state in, state out."""
    gates = network.matrix(batch, network.cell.width)
    state = network.matrix(batch, network.cell.hidden_size)
    return pointwise_kernel(name, (gates, gates, state), (state, state))


@register_op("aten::_cudnn_rnn", "aten::miopen_rnn")
def cudnn_rnn(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
    proj_size: int = 0,
    **others: Argument,
) -> list[Kernel]:
    """The layers, with dropout in between, each some steps behind the one before."""
    cell = _cell(mode, hidden_size, proj_size)
    steps = _steps(input, batch_sizes, batch_first=batch_first)
    network = _Network(input, math, cell, steps, bidirectional, num_layers, train and dropout > 0)
    kernels = _by_time(input) if batch_first and not batch_sizes else []
    chunks = network.chunks()
    for layer, chunk in network.order():
        for direction in range(network.directions):
            kernels += _forward(network, layer, direction, chunks[chunk])
    return kernels


def _by_time(source: TensorSpec) -> list[Kernel]:
    """The copy of sequences of a batch to where cuDNN reads them, a time step after another
    (RNN.cpp: `input.transpose(0, 1).contiguous()`)."""
    batch, length, width = source.shape
    transposed = source._replace(
        shape=(length, batch, width),
        stride=(source.stride[1], source.stride[0], source.stride[2]),
    )
    return copy_kernel(transposed, contiguous(transposed)) if batch > 1 and length > 1 else []


def _forward(network: _Network, layer: int, direction: int, steps: tuple[int, ...]) -> list[Kernel]:
    """One direction of a layer: a product for the inputs, then a product and the gates a step."""
    cell, rows = network.cell, sum(steps)
    inputs = network.gemm(rows, cell.width, network.input_of(layer))
    if network.has_dropout and layer and direction == 0:
        between = network.matrix(rows, network.input_of(layer))
        inputs = pointwise_kernel("dropout", (between,), (between, between)) + inputs
    kernels: list[Kernel] = []
    for batch in steps:
        kernels += network.step(batch, cell.width, cell.output_size)
        kernels += _gates(network, cell.name, batch)
        if cell.is_projected:
            kernels += network.step(batch, cell.output_size, cell.hidden_size)
    before = network.lanes(layer - 1, _RECURRENCE)
    own = (_OwnStream(layer, direction, _INPUTS),)
    return [
        *network.on_stream(inputs, layer, direction, _INPUTS, before),
        *network.on_stream(kernels, layer, direction, _RECURRENCE, own),
    ]


@register_op("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def cudnn_rnn_backward(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
    proj_size: int = 0,
    output_mask: tuple[bool, ...],
    **others: Argument,
) -> list[Kernel]:
    """The layers from the last to the first, with dropout's gradient in between, each some steps
    behind the one before; weights at its end."""
    cell = _cell(mode, hidden_size, proj_size)
    steps = _steps(input, batch_sizes, batch_first=batch_first)
    network = _Network(input, math, cell, steps, bidirectional, num_layers, train and dropout > 0)
    wants_input, _, _, wants_weight = flags(output_mask, 4)
    kernels: list[Kernel] = []
    if batch_first and not batch_sizes:
        width = cell.output_size * network.directions
        gradient = input._replace(
            shape=(*input.shape[:2], width), stride=(input.shape[1] * width, width, 1)
        )
        kernels += _by_time(input) * (1 + wants_weight) + _by_time(gradient)
    chunks = network.chunks()
    for passed, chunk in network.order():
        layer = num_layers - 1 - passed
        for direction in range(network.directions):
            kernels += _backward(
                network, layer, direction, chunks[-1 - chunk], wants_input=wants_input or layer > 0
            )
            if wants_weight and chunk + 1 == len(chunks):
                weights = _weight_gradients(network, layer)
                own = (_OwnStream(layer, direction, _RECURRENCE),)
                kernels += network.on_stream(weights, layer, direction, _WEIGHTS, own)
    return kernels


def _backward(
    network: _Network, layer: int, direction: int, steps: tuple[int, ...], *, wants_input: bool
) -> list[Kernel]:
    """The gates and a product a step, from the last to the first, then the inputs' gradient."""
    cell, rows = network.cell, sum(steps)
    kernels: list[Kernel] = []
    for batch in reversed(steps):
        if cell.is_projected:
            kernels += network.step(batch, cell.hidden_size, cell.output_size)
        kernels += _gates(network, f"{cell.name}_backward", batch)
        kernels += network.step(batch, cell.output_size, cell.width)
    inputs = network.gemm(rows, network.input_of(layer), cell.width) if wants_input else []
    if network.has_dropout and layer and direction + 1 == network.directions:
        between = network.matrix(rows, network.input_of(layer))
        inputs += pointwise_kernel("dropout_backward", (between, between), (between,))
    before = network.lanes(layer + 1, _INPUTS)
    own = (_OwnStream(layer, direction, _RECURRENCE),)
    return [
        *network.on_stream(kernels, layer, direction, _RECURRENCE, before),
        *network.on_stream(inputs, layer, direction, _INPUTS, own),
    ]


def _weight_gradients(network: _Network, layer: int) -> list[Kernel]:
    """Products over all steps for both weights, and a sum for the bias."""
    width, rows = network.cell.width, sum(network.steps)
    kernels = network.gemm(width, network.input_of(layer), rows)
    kernels += network.gemm(width, network.cell.output_size, rows)
    if width * rows:
        kernels.append(sum_kernel(network.matrix(rows, width), network.matrix(1, width)))
    return kernels


_FUSED_CELLS = ("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")


@register_op(
    *(f"aten::{name}" for name in _FUSED_CELLS),
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_lstm_cell_backward",
    "aten::_thnn_fused_gru_cell_backward",
)
def fused_cell(call: OpSignature, *, has_bias: bool = False) -> list[Kernel]:
    """One pointwise kernel for all gates; a bias gradient of the LSTM is a sum of its own."""
    name = kernel_name(call).removeprefix("thnn_fused_").removesuffix("_impl")
    writes = written_tensors(call)
    kernels = pointwise_kernel(name, read_tensors(call), writes)
    if "lstm_cell_backward" in name and has_bias and writes:
        gates = max(writes, key=lambda spec: spec.numel)
        bias = vector(gates.shape[-1], gates.dtype, gates.device)
        kernels.append(sum_kernel(gates, bias))
    return kernels


@register_op("aten::_cudnn_init_dropout_state")
def init_dropout_state(call: OpSignature) -> list[Kernel]:
    """One kernel that seeds the generators."""
    return pointwise_kernel("init_dropout_state", (), written_tensors(call))
