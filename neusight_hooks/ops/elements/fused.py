"""Kernels that torch.compile fused: each says itself what it touches."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neusight.ops.products.attention import flex_attention
from neusight.ops.registry import register_op
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass
from neusight.recording.recording import Argument, OpSignature, TensorSpec


@register_op("inductor::triton_*")
def fused_kernel(
    call: OpSignature,
    *,
    kind: str,
    numels: tuple[int, ...],
    bytes_read: int,
    bytes_written: int,
    bytes_read_again: int = 0,
    num_operations: int = 1,
    num_instructions: int = 0,
    along_columns: bool = False,
    attention: tuple[int, ...] = (),
    **others: Argument,
) -> list[Kernel]:
    """One kernel that moves what is left to move after fusion; a reduction's rows are the product
    of all its sizes but the last, which one that keeps its rows in registers (persistent) rounds
    up to a power of two. A pointwise kernel of two sizes goes by tiles, as neighbours in one tensor
    are apart in another. Its operations are counted once each, whatever they are; what they cost a
    thread is distinguished. A flex `attention` is priced as such."""
    if attention:
        queries, *_ = call.input_tensors  # the FP32 sums of a split's parts may be larger
        return flex_attention(call, attention, dtype=queries.dtype)
    elements = prod(numels)
    if not elements or not bytes_read + bytes_written:
        return []
    reduces = "reduction" in kind
    width = numels[-1] if reduces else elements
    return [
        Kernel.rows(
            KernelClass.REDUCTION if reduces else KernelClass.ELEMENTWISE,
            call.op.partition("::")[2],
            elements // max(1, width),
            width,
            dtype=_main_dtype(call),
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            bytes_read_again=bytes_read_again,
            bytes_in_place=min(bytes_read, bytes_written, _in_place(others)),
            flops=elements * num_operations,
            variant="fused",
            along_columns=along_columns if reduces else kind == "pointwise" and len(numels) > 1,
            num_instructions=elements // max(1, width) * _in_work(kind, width) * num_instructions,
        )
    ]


def _in_place(operands: Mapping[str, Argument]) -> int:
    """Bytes of the tensors whose buffers Inductor takes for results too."""
    return sum(
        value.num_bytes
        for name, value in operands.items()
        if name.startswith("in_out_") and isinstance(value, TensorSpec)
    )


def _in_work(kind: str, width: int) -> int:
    """Elements of a row that threads are given."""
    return 1 << (width - 1).bit_length() if kind == "persistent_reduction" else width


def _main_dtype(call: OpSignature) -> str:
    """The type of the largest tensor that the kernel touches."""
    known = [spec for spec in call.input_tensors if spec.dtype in DTYPE_BYTES]
    return max(known, key=lambda spec: spec.num_bytes).dtype if known else "float32"


@register_op("triton::*", "jiterator::*", "nvrtc::*")
def user_kernel(call: OpSignature, **others: Argument) -> list[Kernel]:
    """A kernel that the program brings, of which only its tensors are known: each is
    moved once."""
    num_bytes = sum(spec.num_bytes for spec in call.input_tensors)
    elements = max((spec.numel for spec in call.input_tensors), default=0)
    if not num_bytes:
        return []
    return [
        Kernel.rows(
            KernelClass.CUSTOM,
            call.op.partition("::")[2],
            1,
            elements,
            dtype=_main_dtype(call),
            bytes_read=num_bytes,
            bytes_written=0,
        )
    ]
