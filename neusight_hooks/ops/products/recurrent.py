"""Recurrent networks: cuDNN's LSTM, GRU and RNN as the products and gates they consist of."""

from __future__ import annotations

from typing import NamedTuple

from neusight.ops.operands import (
    flags,
    kernel_name,
    memory_kernel,
    pointwise_kernel,
    read_tensors,
    written_tensors,
)
from neusight.ops.products.convolution import compute_for_convolution
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

__all__: list[str] = []

#: cudnnRNNMode_t: the cell's name and its number of gates.
_CELLS = {0: ("rnn_cell", 1), 1: ("rnn_cell", 1), 2: ("lstm_cell", 4), 3: ("gru_cell", 3)}


class _Network(NamedTuple):
    """The shape of a recurrent network; `steps` has the batch size of each time step."""

    steps: tuple[int, ...]
    input_size: int
    hidden_size: int
    output_size: int
    layers: int
    directions: int
    cell: str
    gates: int
    dropout: float
    dtype: str
    device: str
    compute: str

    @property
    def rows(self) -> int:
        return sum(self.steps)

    def input_of(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.output_size * self.directions

    def gemm(self, m: int, n: int, k: int) -> list[Kernel]:
        if m * n * k == 0:
            return []
        return [Kernel.gemm(m, n, k, dtype=self.dtype, compute=self.compute)]

    def matrix(self, rows: int, columns: int) -> TensorSpec:
        return TensorSpec((rows, columns), (max(1, columns), 1), self.dtype, self.device)


def _network(
    source: TensorSpec,
    math: MathMode,
    *,
    mode: int,
    hidden_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
    proj_size: int,
) -> _Network:
    batch, length = source.shape[:2] if batch_first else source.shape[1::-1]
    cell, gates = _CELLS[mode]
    return _Network(
        steps=batch_sizes or (batch,) * length,
        input_size=source.shape[-1],
        hidden_size=hidden_size,
        output_size=proj_size or hidden_size,
        layers=num_layers,
        directions=2 if bidirectional else 1,
        cell=cell,
        gates=gates,
        dropout=dropout if train else 0.0,
        dtype=source.dtype,
        device=source.device,
        compute=compute_for_convolution(source.dtype, math),
    )


def _gates(network: _Network, name: str, batch: int) -> list[Kernel]:
    """The pointwise part of a cell: gates and state in, state out."""
    gates = network.matrix(batch, network.gates * network.hidden_size)
    state = network.matrix(batch, network.hidden_size)
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
    """A layer and direction: one product for all inputs, then a product and the gates a step."""
    network = _network(
        input,
        math,
        mode=mode,
        hidden_size=hidden_size,
        num_layers=num_layers,
        batch_first=batch_first,
        dropout=dropout,
        train=train,
        bidirectional=bidirectional,
        batch_sizes=batch_sizes,
        proj_size=proj_size,
    )
    width = network.gates * network.hidden_size
    kernels: list[Kernel] = []
    for layer in range(network.layers):
        for _ in range(network.directions):
            kernels += network.gemm(network.rows, width, network.input_of(layer))
            for batch in network.steps:
                kernels += network.gemm(batch, width, network.output_size)
                kernels += _gates(network, network.cell, batch)
                if network.output_size != network.hidden_size:
                    kernels += network.gemm(batch, network.output_size, network.hidden_size)
        if network.dropout and layer + 1 < network.layers:
            between = network.matrix(network.rows, network.input_of(layer + 1))
            kernels += pointwise_kernel("dropout", (between,), (between, between))
    return kernels


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
    """Gates and a product a step, then products for input and weight gradients of all steps."""
    network = _network(
        input,
        math,
        mode=mode,
        hidden_size=hidden_size,
        num_layers=num_layers,
        batch_first=batch_first,
        dropout=dropout,
        train=train,
        bidirectional=bidirectional,
        batch_sizes=batch_sizes,
        proj_size=proj_size,
    )
    width = network.gates * network.hidden_size
    wants_input, wants_weight = (flags(output_mask, 4)[i] for i in (0, 3))
    kernels: list[Kernel] = []
    for layer in reversed(range(network.layers)):
        inputs = network.input_of(layer)
        for _ in range(network.directions):
            for batch in reversed(network.steps):
                if network.output_size != network.hidden_size:
                    kernels += network.gemm(batch, network.hidden_size, network.output_size)
                kernels += _gates(network, f"{network.cell}_backward", batch)
                kernels += network.gemm(batch, network.output_size, width)
            if wants_input or layer > 0:
                kernels += network.gemm(network.rows, inputs, width)
            if wants_weight:
                kernels += network.gemm(width, inputs, network.rows)
                kernels += network.gemm(width, network.output_size, network.rows)
                kernels += _bias_gradient(network, width)
        if network.dropout and layer > 0:
            between = network.matrix(network.rows, inputs)
            kernels += pointwise_kernel("dropout_backward", (between, between), (between,))
    return kernels


def _bias_gradient(network: _Network, width: int) -> list[Kernel]:
    gates, bias = network.matrix(network.rows, width), network.matrix(1, width)
    if not gates.numel:
        return []
    return [memory_kernel(KernelClass.REDUCTION, "sum", reads=(gates,), writes=(bias,), rows=width)]


_FUSED_CELLS = ("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")


@register_op(
    *(f"aten::{name}" for name in _FUSED_CELLS),
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_lstm_cell_backward",
    "aten::_thnn_fused_gru_cell_backward",
)
def fused_cell(call: OpSignature, math: MathMode, *, has_bias: bool = False) -> list[Kernel]:
    """One pointwise kernel for all gates; a bias gradient of the LSTM is a sum of its own."""
    name = kernel_name(call).removeprefix("thnn_fused_").removesuffix("_impl")
    writes = written_tensors(call)
    kernels = pointwise_kernel(name, read_tensors(call), writes)
    if "lstm_cell_backward" in name and has_bias and writes:
        gates = max(writes, key=lambda spec: spec.numel)
        columns = gates.shape[-1]
        bias = TensorSpec((columns,), (1,), gates.dtype, gates.device)
        kernels.append(
            memory_kernel(
                KernelClass.REDUCTION, "sum", reads=(gates,), writes=(bias,), rows=max(1, columns)
            )
        )
    return kernels


@register_op("aten::_cudnn_init_dropout_state")
def init_dropout_state(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One kernel that seeds the generators."""
    return pointwise_kernel("init_dropout_state", (), written_tensors(call))
