"""The last Linear and its cross entropy in one op, a chunk of rows at a time."""

from __future__ import annotations

from neusight.ops.operands import memory_kernel, pointwise_kernel
from neusight.ops.products.gemm import matmul_kernels
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

__all__: list[str] = []


def _matrix(rows: int, columns: int, like: TensorSpec, *, transposed: bool = False) -> TensorSpec:
    stride = (1, rows) if transposed else (columns, 1)
    return TensorSpec((rows, columns), stride, like.dtype, like.device)


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
    kernels: list[Kernel] = []
    for start in range(0, rows, max(1, size)):
        part = _matrix(min(size, rows - start), depth, input)
        logits = _matrix(part.shape[0], classes, input)
        kernels += _loss(part, linear_weight, logits, math, bias=linear_bias is not None)
        if compute_input_grad or compute_linear_weight_grad:
            kernels += pointwise_kernel("softmax_gradient", (logits,), (logits,))
        if compute_input_grad:
            kernels += matmul_kernels(logits, _matrix(classes, depth, linear_weight), part, math)
        if compute_linear_weight_grad:
            kernels += _weight_gradient(part, linear_weight, math)
        if compute_linear_bias_grad:
            kernels.append(_bias_gradient(logits))
    return kernels


def _loss(
    part: TensorSpec, weight: TensorSpec, logits: TensorSpec, math: MathMode, *, bias: bool
) -> list[Kernel]:
    """The logits of some rows, their log softmax and their losses."""
    rows, classes = logits.shape
    transposed = _matrix(part.shape[1], classes, weight, transposed=True)
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


def _weight_gradient(part: TensorSpec, weight: TensorSpec, math: MathMode) -> list[Kernel]:
    """The transposed gradient of the logits times the rows, on top of what is there."""
    classes, depth = weight.shape
    columns = _matrix(classes, part.shape[0], part, transposed=True)
    return matmul_kernels(columns, part, _matrix(classes, depth, weight), math, accumulate=True)


def _bias_gradient(logits: TensorSpec) -> Kernel:
    classes = logits.shape[1]
    bias = TensorSpec((classes,), (1,), logits.dtype, logits.device)
    return memory_kernel(
        KernelClass.REDUCTION, "sum", reads=(logits,), writes=(bias,), rows=classes
    )
