"""Products with weights of four and eight bits, of bitsandbytes and of GPT-QModel, quanto's packed
values, and the optimizers of bitsandbytes."""

from __future__ import annotations

from math import prod

from neusight.ops.operands import (
    copy_kernel,
    gpu_tensors,
    memory_kernel,
    new_tensor,
    output,
    pointwise_kernel,
)
from neusight.ops.products.gemm import (
    linear_kernels,
    matmul_kernels,
    matrix,
    packed_weight_kernels,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Rows up to which the weight is unpacked inside the product; with more it is unpacked to memory
#: first, and cuBLAS multiplies. The package asks a table by GPU and shape that gives 8 to 512
#: (bitsandbytes 0.50.2, backends/cuda/ops.py, _gemm_4bit_use_custom_cuda); this is its value for
#: weights of one wave on Hopper, and in the middle of the others'.
_MOST_FUSED_ROWS = 32


@register_op("bitsandbytes::gemm_4bit")
def gemm_4bit(
    call: OpSignature,
    math: MathMode,
    *,
    A: TensorSpec,
    B: TensorSpec,
    shapeB: tuple[int, ...],
    blocksize: int = 1,
    bias: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """A Linear with a 4-bit weight and scales of blocks."""
    scales = gpu_tensors(others.values())
    if prod(A.shape[:-1]) <= _MOST_FUSED_ROWS and A.shape[-1] % max(1, blocksize) == 0:
        weight = (B, bias, *scales)
        return packed_weight_kernels(A, weight, output(call), "packed_tiles", name="gemm_4bit")
    whole = new_tensor(shapeB, A.dtype, A.device)
    unpacked = memory_kernel(
        KernelClass.ELEMENTWISE, "dequantize_4bit", reads=(B, *scales), writes=(whole,)
    )
    products = linear_kernels(A, whole, output(call), math, bias=bias is not None)
    return [unpacked, *products] if products else []


@register_op("bitsandbytes::gemv_4bit")
def gemv_4bit(
    call: OpSignature, *, A: TensorSpec, B: TensorSpec, shapeB: tuple[int, ...], **others: Argument
) -> list[Kernel]:
    """A row times a 4-bit weight, in one kernel (kgemm_4bit_inference_naive)."""
    result = new_tensor((*A.shape[:-1], shapeB[0]), A.dtype, A.device)
    weight = (B, *gpu_tensors(others.values()))
    return packed_weight_kernels(A, weight, result, "packed_rows", name="gemm_4bit")


@register_op("gptqmodel::marlin_gemm")
def marlin_gemm(
    call: OpSignature,
    *,
    input: TensorSpec,
    qweight: TensorSpec,
    scales: TensorSpec,
    qzeros: TensorSpec | None = None,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """A Linear whose weight is unpacked as it is read, whatever the number of rows."""
    weight = (qweight, scales, qzeros, bias)
    return packed_weight_kernels(input, weight, output(call), "packed_tiles", name="marlin_gemm")


@register_op("quanto::unpack")
def unpack(call: OpSignature, *, self: TensorSpec, **others: Argument) -> list[Kernel]:
    """A byte for each value of two or four bits (quanto, library/extensions/cuda/unpack.cu)."""
    return pointwise_kernel("unpack", (self,), (output(call),))


@register_op("bitsandbytes::int8_linear_matmul")
def int8_linear_matmul(
    call: OpSignature, math: MathMode, *, A: TensorSpec, B: TensorSpec, **others: Argument
) -> list[Kernel]:
    """A product of int8 with a result of int32 (cuBLASLt)."""
    return _int8_product(A, B, math)


@register_op("bitsandbytes::int8_scaled_mm")
def int8_scaled_mm(
    call: OpSignature,
    math: MathMode,
    *,
    A: TensorSpec,
    B: TensorSpec,
    row_stats: TensorSpec,
    col_stats: TensorSpec,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """The product, and a kernel that scales it to half precision; the bias is added there where it
    is of that type, and another type is a cast (backends/cuda/ops.py, int8_mm_dequant)."""
    return _scaled(A, B, (row_stats, col_stats), bias, output(call), math)


@register_op("bitsandbytes::int8_mixed_scaled_mm")
def int8_mixed_scaled_mm(
    call: OpSignature,
    math: MathMode,
    *,
    A: TensorSpec,
    CA: TensorSpec,
    CB: TensorSpec,
    SCA: TensorSpec,
    SCB: TensorSpec,
    outlier_cols: TensorSpec | None = None,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """`int8_scaled_mm`, and a product of the columns that were left in full precision."""
    result = output(call)
    kernels = _scaled(CA, CB, (SCA, SCB), bias, result, math)
    left_out = outlier_cols.numel if outlier_cols else 0
    if not kernels or not left_out:
        return kernels
    m, n = prod(A.shape[:-1]), CB.shape[0]
    columns, weights = matrix(m, left_out, A), matrix(n, left_out, A)
    kernels += copy_kernel(columns, columns, "index") + copy_kernel(weights, weights, "index")
    right = matrix(left_out, n, weights, transposed=True)
    return kernels + matmul_kernels(columns, right, matrix(m, n, result), math, accumulate=True)


def _int8_product(left: TensorSpec, right: TensorSpec, math: MathMode) -> list[Kernel]:
    result = new_tensor((prod(left.shape[:-1]), right.shape[0]), "int32", left.device)
    return linear_kernels(left, right, result, math, bias=False)


def _scaled(
    left: TensorSpec,
    right: TensorSpec,
    stats: tuple[TensorSpec, TensorSpec],
    bias: TensorSpec | None,
    result: TensorSpec,
    math: MathMode,
) -> list[Kernel]:
    products = _int8_product(left, right, math)
    if not products:
        return []
    sums = new_tensor(result.shape, "int32", result.device)
    half = new_tensor(result.shape, "float16", result.device)
    inside = bias if bias is not None and bias.dtype == "float16" else None
    kernels = [
        *products,
        memory_kernel(
            KernelClass.ELEMENTWISE, "mm_dequant", reads=(sums, *stats, inside), writes=(half,)
        ),
    ]
    if bias is not None and inside is None:
        kernels += pointwise_kernel("add", (half, bias), (half,))
    return kernels + (copy_kernel(half, result) if result.dtype != "float16" else [])


@register_op(
    "bitsandbytes::optimizer_update_8bit_blockwise", "bitsandbytes::optimizer_update_32bit"
)
def optimizer_update(
    call: OpSignature,
    *,
    g: TensorSpec,
    p: TensorSpec,
    state1: TensorSpec,
    state2: TensorSpec | None = None,
    absmax1: TensorSpec | None = None,
    absmax2: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """One kernel a parameter: it reads gradient, parameter, states and the scales of their blocks,
    and writes all but the gradient (csrc/kernels.cu). Clipping by the update's norm (`max_unorm`)
    reads gradient and states once before."""
    if not p.numel:
        return []
    states = (state1, state2, absmax1, absmax2)
    step = memory_kernel(
        KernelClass.OPTIMIZER,
        call.op.partition("::")[2],
        reads=(g, p, *states),
        writes=(p, *states),
        width=p.numel,
        flops=_FLOPS_AN_ELEMENT * p.numel,
    )
    return [*_clipping(others.get("max_unorm"), (g, *states), p.numel), step]


def _clipping(
    max_unorm: Argument, reads: tuple[TensorSpec | None, ...], width: int
) -> list[Kernel]:
    if not isinstance(max_unorm, (int, float)) or max_unorm <= 0:
        return []
    return [
        memory_kernel(KernelClass.REDUCTION, "precondition_optimizer", reads=reads, width=width)
    ]


#: Of moments, bias correction, square root and update, as torch's fused Adam (ops/optimizer.py).
_FLOPS_AN_ELEMENT = 16
