"""Tensors that an op makes for itself on the GPU and gives back when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from neusight.memory.encoder import encoder_temporaries
from neusight.ops.made_contiguous import copied_operands
from neusight.ops.products.gemm import unfit_operands
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass
from neusight.recording.recording import OpSignature, TensorSpec

#: Bytes of an index, which the embedding's gradient sorts (int64).
_INDEX_BYTES = 8
#: Indices up to which the embedding's gradient needs no sorting
#: (aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda).
_UNSORTED_INDICES = 3072
#: Rows of the gradient that one partial sum of the embedding takes (EmbeddingBackwardKernel.cu).
_ROWS_PER_PARTIAL_SUM = 10
#: Dtypes that are summed in FP32.
_HALF = ("float16", "bfloat16")
_FLOAT_BYTES = 4

#: The matrices of a product; one that cuBLAS cannot read is copied first (cuda/Blas.cpp,
#: prepare_matrix_for_cublas).
_MATRICES: dict[str, tuple[str, str]] = {
    "aten::mm": ("self", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::_addmm_activation": ("mat1", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
}

#: Losses that are computed element by element and then reduced (aten/src/ATen/native/Loss.cpp).
_LOSSES = frozenset({"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"})
_NO_REDUCTION = 0


def temporaries_of(signature: OpSignature) -> tuple[int, ...]:
    """Bytes of each, in the order in which they are made; they all end with the op.

    Beside the copies of operands: the product of gradient and output that softmax's backward makes
    (SoftMax.cu, softmax_backward_cuda_out), the sorted indices and partial sums of an embedding's
    gradient, the elements of a loss before they are reduced, and what ops are made of that torch
    writes out of others.

    >>> grad = TensorSpec((4, 256), (256, 1), "float32")
    >>> arguments = (("grad_output", grad), ("output", grad), ("dim", 1))
    >>> temporaries_of(OpSignature("aten::_softmax_backward_data", "default", arguments, (grad,)))
    (4096,)
    """
    copies = (_dense_bytes(spec) for spec in _copied(signature))
    own = _OWN.get(signature.op)
    return (*copies, *(own(signature) if own is not None else ()))


def operand_copies(kernels: Iterable[Kernel]) -> tuple[int, ...]:
    """Bytes of the operands that these kernels of a convolution copy into one memory format; one
    that two passes need is copied once."""
    copies = {
        kernel: kernel.bytes_written
        for kernel in kernels
        if kernel.kernel_class is KernelClass.COPY and kernel.name == "copy"
    }
    return tuple(copies.values())


def _copied(signature: OpSignature) -> Iterable[TensorSpec]:
    matrices = _MATRICES.get(signature.op)
    if matrices is None:
        return copied_operands(signature).values()
    specs = [signature.optional_tensor(name) for name in matrices]
    return unfit_operands([spec for spec in specs if spec is not None and spec.device != "cpu"])


def _dense_bytes(spec: TensorSpec) -> int:
    return int(spec.numel * DTYPE_BYTES.get(spec.dtype, _FLOAT_BYTES))


def _embedding_sums(signature: OpSignature) -> tuple[int, ...]:
    """Indices sorted and where each came from, where segments of equal ones start, their parts, and
    a row for each part: as many as there can be, so that the host need not wait to know."""
    grad, indices = signature.tensor("grad_output"), signature.tensor("indices")
    count, width = indices.numel, grad.shape[-1] if grad.shape else 1
    scales = bool(signature.by_name.get("scale_grad_by_freq"))
    if count <= _UNSORTED_INDICES and not scales:
        return ()
    num_weights = signature.by_name.get("num_weights")
    rows = num_weights if isinstance(num_weights, int) else count
    segments = min(count, max(1, rows))
    parts = count // _ROWS_PER_PARTIAL_SUM + segments
    element = _FLOAT_BYTES if grad.dtype in _HALF else DTYPE_BYTES.get(grad.dtype, _FLOAT_BYTES)
    index_lists = (count, count, *((count,) if scales else ()), count, segments, segments, parts)
    return (*(length * _INDEX_BYTES for length in index_lists), int(parts * width * element))


def _loss_elements(signature: OpSignature) -> tuple[int, ...]:
    if signature.by_name.get("reduction") == _NO_REDUCTION:
        return ()
    return (_dense_bytes(signature.tensor("self")),)


def _logits_loss_terms(signature: OpSignature) -> tuple[int, ...]:
    """The log of the sigmoid, and the elements of the loss where they are reduced (Loss.cpp)."""
    elements = _dense_bytes(signature.tensor("self"))
    is_reduced = signature.by_name.get("reduction") != _NO_REDUCTION
    return (elements, elements) if is_reduced else (elements,)


def _masked_softmax(signature: OpSignature) -> tuple[int, ...]:
    """The softmax before rows that are masked whole become zeros, and the mask (SoftMax.cpp)."""
    scores = signature.tensor("self")
    return (_dense_bytes(scores), scores.numel)


_OWN: dict[str, Callable[[OpSignature], tuple[int, ...]]] = {
    "aten::_softmax_backward_data": lambda call: (_dense_bytes(call.tensor("grad_output")),),
    "aten::_native_multi_head_attention": encoder_temporaries,
    "aten::_safe_softmax": _masked_softmax,
    "aten::_transformer_encoder_layer_fwd": encoder_temporaries,
    "aten::binary_cross_entropy_with_logits": _logits_loss_terms,
    "aten::embedding_dense_backward": _embedding_sums,
    "aten::logsumexp": lambda call: (_dense_bytes(call.tensor("self")),),  # exp(x - max)
    **dict.fromkeys(_LOSSES, _loss_elements),
}
