"""The last Linear and its cross entropy in one op, a chunk of rows at a time."""

from __future__ import annotations

from typing import NamedTuple

from neusight.ops.operands import memory_kernel, pointwise_kernel, sum_kernel, vector
from neusight.ops.products.gemm import matmul_kernels, matrix
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec


@register_op(
    "torch_nn::_linear_cross_entropy_batch_chunked",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
)
def chunked_linear_cross_entropy(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    linear_weight: TensorSpec,
    linear_bias: TensorSpec | None,
    batch_chunk_size: int,
    compute_input_grad: bool = False,
    compute_linear_weight_grad: bool = False,
    compute_linear_bias_grad: bool = False,
    **others: Argument,
) -> list[Kernel]:
    """A chunk: logits, log softmax, loss, and the gradients asked for, made on the spot.

    torch/nn/modules/linear_cross_entropy.py, with its bookkeeping left out.
    """
    rows, (classes, depth) = input.shape[0], linear_weight.shape
    size = batch_chunk_size or rows
    wants = _Wanted(compute_input_grad, compute_linear_weight_grad, compute_linear_bias_grad)
    kernels: list[Kernel] = []
    for start in range(0, rows, max(1, size)):
        part = matrix(min(size, rows - start), depth, input)
        logits = matrix(part.shape[0], classes, input)
        kernels += _loss(part, linear_weight, logits, math, bias=linear_bias is not None)
        kernels += _gradients(part, linear_weight, logits, math, wants)
    return kernels


class _Wanted(NamedTuple):
    """The gradients that the program will ask for."""

    input: bool
    weight: bool
    bias: bool


def _gradients(
    part: TensorSpec, weight: TensorSpec, logits: TensorSpec, math: MathMode, wants: _Wanted
) -> list[Kernel]:
    """What some rows give to each gradient."""
    stored = matrix(weight.shape[0], weight.shape[1], weight)
    kernels: list[Kernel] = []
    if wants.input or wants.weight:
        kernels += pointwise_kernel("softmax_gradient", (logits,), (logits,))
    if wants.input:
        kernels += matmul_kernels(logits, stored, part, math)
    if wants.weight:  # the transposed gradient of the logits, on top of what is there
        columns = matrix(weight.shape[0], part.shape[0], part, transposed=True)
        kernels += matmul_kernels(columns, part, stored, math, accumulate=True)
    if wants.bias:
        sums = vector(logits.shape[1], logits.dtype, logits.device)
        kernels.append(sum_kernel(logits, sums))
    return kernels


def _loss(
    part: TensorSpec, weight: TensorSpec, logits: TensorSpec, math: MathMode, *, bias: bool
) -> list[Kernel]:
    """The logits of some rows, their log softmax and their losses."""
    rows, classes = logits.shape
    transposed = matrix(part.shape[1], classes, weight, transposed=True)
    losses = TensorSpec((rows,), (1,), "float32", part.device)
    return [
        *matmul_kernels(part, transposed, logits, math, bias=bias),
        memory_kernel(
            KernelClass.SOFTMAX,
            "log_softmax",
            reads=(logits,),
            writes=(logits,),
            rows=rows,
            width=classes,
            variant="log_softmax",
        ),
        memory_kernel(KernelClass.REDUCTION, "nll_loss", reads=(losses, losses), writes=(losses,)),
    ]
