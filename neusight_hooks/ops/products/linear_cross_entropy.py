"""The last Linear and its cross entropy in one op, a chunk of rows at a time."""

from __future__ import annotations

from neusight.ops.operands import boolean, integer, memory_kernel, pointwise_kernel
from neusight.ops.products.gemm import matmul_kernels
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

__all__: list[str] = []


def _matrix(rows: int, columns: int, like: TensorSpec, *, transposed: bool = False) -> TensorSpec:
    stride = (1, rows) if transposed else (columns, 1)
    return TensorSpec((rows, columns), stride, like.dtype, like.device)


@register_op(
    "torch_nn::_linear_cross_entropy_batch_chunked",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
)
def linear_cross_entropy(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A chunk: logits, log softmax, loss, and the gradients asked for, made on the spot.

    torch/nn/modules/linear_cross_entropy.py, with its bookkeeping left out.
    """
    source, weight = call.tensor("input"), call.tensor("linear_weight")
    rows, depth = source.shape[0], source.shape[-1]
    classes = weight.shape[0]
    size = integer(call, "batch_chunk_size", 0) or rows
    kernels: list[Kernel] = []
    for start in range(0, rows, max(1, size)):
        kernels += _chunk(call, math, min(size, rows - start), depth, classes)
    return kernels


def _chunk(call: OpSignature, math: MathMode, rows: int, depth: int, classes: int) -> list[Kernel]:
    source, weight = call.tensor("input"), call.tensor("linear_weight")
    part, logits = _matrix(rows, depth, source), _matrix(rows, classes, source)
    has_bias = call.optional_tensor("linear_bias") is not None
    transposed = _matrix(depth, classes, weight, transposed=True)
    kernels = matmul_kernels(part, transposed, logits, math, bias=has_bias)
    kernels.append(
        memory_kernel(
            KernelClass.SOFTMAX,
            "log_softmax",
            reads=(logits,),
            writes=(logits,),
            rows=rows,
            width=classes,
        )
    )
    losses = TensorSpec((rows,), (1,), "float32", source.device)
    kernels.append(
        memory_kernel(KernelClass.REDUCTION, "nll_loss", reads=(losses, losses), writes=(losses,))
    )
    wants_input = boolean(call, "compute_input_grad")
    wants_weight = boolean(call, "compute_linear_weight_grad")
    if wants_input or wants_weight:
        kernels += pointwise_kernel("softmax_gradient", (logits,), (logits,))
    if wants_input:
        kernels += matmul_kernels(logits, _matrix(classes, depth, weight), part, math)
    if wants_weight:
        columns = _matrix(classes, rows, source, transposed=True)
        result = _matrix(classes, depth, weight)
        kernels += matmul_kernels(columns, part, result, math, accumulate=True)
    if boolean(call, "compute_linear_bias_grad"):
        bias = TensorSpec((classes,), (1,), source.dtype, source.device)
        kernels.append(
            memory_kernel(
                KernelClass.REDUCTION, "sum", reads=(logits,), writes=(bias,), rows=classes
            )
        )
    return kernels
