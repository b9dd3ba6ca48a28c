"""What PyTorch says on a GPU of operands that do not go together.

Fake kernels say it in words of their own, or let it pass. The words are asked of the kernel for the
CPU, which checks its operands before it computes and says what the one for CUDA says.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._prims_common import alert_not_deterministic

from neusight.recording.recording import flattened
from neusight.recording.tensor import is_mask

aten = torch.ops.aten

#: Elements of all operands together up to which the kernel for the CPU is asked: seconds at most
#: where it computes after all.
_MOST_ELEMENTS = 2**26

#: What a kernel says that cannot answer for CUDA: it is missing on the CPU, or for this dtype.
_NO_ANSWER = ("not implemented for", "not currently implemented", "can't allocate memory")

#: Where FakeTensorMode logs every error of a kernel (torch/_subclasses/fake_tensor.py, 2.13).
_FAKE_LOG = "torch._subclasses.fake_tensor"
_FAKE_LOG_TEXT = "failed while attempting to run meta"


@contextmanager
def quiet_fake_kernels() -> Iterator[None]:
    """While open, torch logs nothing of a fake kernel that fails: the script's error says it."""

    def keeps(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_FAKE_LOG_TEXT)

    log = logging.getLogger(_FAKE_LOG)
    try:
        log.addFilter(keeps)
        yield
    finally:
        log.removeFilter(keeps)


def eager_error(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """The error that the op raises on a GPU; None where it is not known. Call it where no dispatch
    mode is active."""
    values = (*args, *kwargs.values())
    if sum(tensor.numel() for tensor in flattened(values, torch.Tensor)) > _MOST_ELEMENTS:
        return None
    try:
        with torch.no_grad():
            func(*_on_cpu(args), **{name: _on_cpu(value) for name, value in kwargs.items()})
    except (NotImplementedError, MemoryError):
        return None
    except Exception as error:
        if any(words in str(error) for words in _NO_ANSWER):
            return None
        return error.with_traceback(None)
    return None


def refused_by_cuda(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the op may refuse these operands on a GPU, although its fake kernel takes them."""
    refuses = _REFUSALS.get(func)
    if refuses is not None and refuses(args):
        return True
    return any(
        _overlaps_itself(args[place] if place < len(args) else kwargs.get(name))
        for place, name in _written(func)
    )


@functools.cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that an op writes to: position and name."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _overlaps_itself(value: Any) -> bool:
    """Whether a tensor has several elements in one place (at::has_internal_overlap)."""
    return isinstance(value, torch.Tensor) and any(
        size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def dtype_error(func: Any, args: Sequence[Any]) -> Exception | None:
    """The error of an op whose kernel for CUDA does not exist for this dtype, in the words of its
    macro (aten/src/ATen/Dispatch.h); None where there is one, or that is unknown."""
    if func not in _KERNELS:
        return None
    name, dtypes = _KERNELS[func]
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if not all(tensor.numel() for tensor in tensors):
        return None  # nothing is launched
    dtype = tensors[0].dtype
    if func in _OF_COMMON_DTYPE:
        dtype = torch.result_type(args[0], args[1])
    if dtype in dtypes or dtype not in SCALAR_TYPES:
        return None
    return NotImplementedError(f"\"{name}\" not implemented for '{SCALAR_TYPES[dtype]}'")


def require_deterministic(func: Any, args: Sequence[Any]) -> None:
    """Raises RuntimeError, or warns, as torch of an op that has no deterministic kernel for CUDA
    where the program asks for one."""
    name = _NOT_DETERMINISTIC.get(func)
    if name and not (func in _DETERMINISTIC_FOR and _DETERMINISTIC_FOR[func](args)):
        alert_not_deterministic(name)


def _on_cpu(value: Any) -> Any:
    """The same operands on the CPU, all zeros."""
    if isinstance(value, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            shape, stride, dtype = value.shape, value.stride(), value.dtype
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu").zero_()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_cpu, value)) if type(value) in (list, tuple) else value
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value


# -- what fake kernels of torch 2.13 let pass ------------------------------------------------------


def _no_index(position: int, allowed: tuple[torch.dtype, ...]) -> Callable[[Sequence[Any]], bool]:
    return lambda args: args[position].dtype not in allowed


def _no_dimension(args: Sequence[Any]) -> bool:
    dimensions = max(1, args[0].dim())
    return not -dimensions <= args[1] < dimensions


def _any_other_dtype(*positions: int) -> Callable[[Sequence[Any]], bool]:
    return lambda args: len({args[position].dtype for position in positions}) > 1


def _no_dimension_to_sort(args: Sequence[Any]) -> bool:
    stated = [value for value in args[1:2] if type(value) is int]  # False: `stable`
    return any(_no_dimension((args[0], dimension)) for dimension in stated)


def _integers(args: Sequence[Any]) -> bool:
    return not (args[0].dtype.is_floating_point or args[0].dtype.is_complex)


def _negative_power_of_integers(args: Sequence[Any]) -> bool:
    return _integers(args) and isinstance(args[1], int) and args[1] < 0


def _nothing_to_compare(args: Sequence[Any]) -> bool:
    return bool(args[0].numel() == 0)


def _wrong_put(args: Sequence[Any]) -> bool:
    return bool(args[0].dtype != args[2].dtype) or _mask_of_another_shape(args)


def _mask_of_another_shape(args: Sequence[Any]) -> bool:
    shape, place = args[0].shape, 0
    for index in args[1]:
        covered = index.dim() if is_mask(index) else 1
        if is_mask(index) and index.shape != shape[place : place + covered]:
            return True
        place += covered
    return False


def _wrong_index_or_source(*indices: torch.dtype) -> Callable[[Sequence[Any]], bool]:
    """Whether an op that writes `source` at an index along one dimension refuses either."""

    def refuses(args: Sequence[Any]) -> bool:
        index, source = args[2], args[3]
        return index.dtype not in indices or source.dtype != args[0].dtype

    return refuses


def _wrong_addition(args: Sequence[Any]) -> bool:
    own, added = list(args[0].shape), list(args[3].shape)
    if own and len(own) == len(added) and not _no_dimension(args):
        del own[args[1]], added[args[1]]
        if own != added:
            return True
    return _wrong_index_or_source(*_INDICES)(args)


def _overflows(args: Sequence[Any]) -> bool:
    """Whether the last argument is a number beyond the range of a tensor's dtype."""
    dtype, value = args[0].dtype, args[-1]
    is_number = isinstance(value, float) and math.isfinite(value)
    return is_number and dtype.is_floating_point and abs(value) > torch.finfo(dtype).max


def _wrong_loss(args: Sequence[Any]) -> bool:
    is_class = args[1].dtype in (torch.int64, torch.uint8)
    return not is_class or (args[2] is not None and args[2].dtype != args[0].dtype)


def _cannot_sample(args: Sequence[Any]) -> bool:
    categories, is_replaced = args[0].shape[-1], len(args) > 2 and args[2]
    too_many = categories > _MOST_CATEGORIES
    return _integers(args) or too_many or not (is_replaced or 0 < args[1] <= categories)


def _other_shapes(args: Sequence[Any]) -> bool:
    return bool(args[0].shape != args[1].shape or not args[0].numel())


def _wrong_counts(args: Sequence[Any]) -> bool:
    weights = args[1] if len(args) > 1 else None
    return args[0].dim() != 1 or (weights is not None and weights.shape != args[0].shape)


def _descending(args: Sequence[Any]) -> bool:
    """Whether the ends of a range, 0 and 1 where they are not stated, lie the wrong way round."""
    start = args[1] if len(args) > 1 else 0.0
    end = args[2] if len(args) > 2 else 1.0
    return bool(start > end)


#: What multinomial can tell apart in FP32 (ATen/native/Distributions.cpp).
_MOST_CATEGORIES = 2**24
_INDICES = (torch.int64, torch.int32)
_REFUSALS: dict[Any, Callable[[Sequence[Any]], bool]] = {
    aten.embedding.default: _no_index(1, _INDICES),  # torch before 2.13 takes any
    aten.mm.default: _any_other_dtype(0, 1),
    aten.bmm.default: _any_other_dtype(0, 1),
    aten.addmm.default: _any_other_dtype(0, 1, 2),
    aten.baddbmm.default: _any_other_dtype(0, 1, 2),
    aten.index_select.default: _no_index(2, _INDICES),
    aten.mv.default: _any_other_dtype(0, 1),
    aten.index_add.default: _wrong_addition,
    aten.index_add_.default: _wrong_addition,
    aten.index_copy.default: _wrong_index_or_source(torch.int64),
    aten.index_copy_.default: _wrong_index_or_source(torch.int64),
    aten.index_reduce.default: _wrong_index_or_source(*_INDICES),
    aten.index_reduce_.default: _wrong_index_or_source(*_INDICES),
    aten.index_fill.int_Scalar: _no_index(2, (torch.int64,)),
    aten.index_fill_.int_Scalar: _no_index(2, (torch.int64,)),
    aten.put.default: _any_other_dtype(0, 2),
    aten.put_.default: _any_other_dtype(0, 2),
    aten.masked_fill.Scalar: _overflows,
    aten.masked_fill_.Scalar: _overflows,
    aten.grid_sampler_2d.default: _any_other_dtype(0, 1),
    aten.grid_sampler_3d.default: _any_other_dtype(0, 1),
    aten.binary_cross_entropy.default: _any_other_dtype(0, 1),
    aten.multinomial.default: _cannot_sample,
    aten.relu.default: lambda args: bool(args[0].dtype == torch.bool),
    aten.nll_loss_forward.default: _wrong_loss,
    aten.nll_loss2d_forward.default: _wrong_loss,
    aten._softmax.default: _no_dimension,
    aten._log_softmax.default: _no_dimension,
    aten.index.Tensor: _mask_of_another_shape,
    aten.index_put.default: _wrong_put,
    aten.index_put_.default: _wrong_put,
    aten._index_put_impl_.default: _wrong_put,
    aten.masked_select.default: lambda args: bool(args[1].dtype != torch.bool),
    aten.masked_scatter.default: lambda args: bool(args[1].dtype != torch.bool),
    aten.masked_scatter_.default: lambda args: bool(args[1].dtype != torch.bool),
    aten.bincount.default: _wrong_counts,
    aten.bucketize.Tensor: lambda args: bool(args[1].dim() != 1),
    aten.complex.default: _any_other_dtype(0, 1),
    aten.multilabel_margin_loss_forward.default: _other_shapes,
    aten.ormqr.default: lambda args: bool(args[1].shape[-1:] != args[0].shape[-1:]),
    aten.uniform_.default: _descending,
    getattr(aten.random_, "from"): lambda args: args[2] is not None and args[1] >= args[2],
    aten.random_.to: lambda args: bool(args[1] <= 0),
    aten.bernoulli_.float: lambda args: len(args) > 1 and not 0.0 <= args[1] <= 1.0,
    aten.sort.default: _no_dimension_to_sort,
    aten.var.correction: _integers,
    aten.std.correction: _integers,
    aten.pow.Tensor_Scalar: _negative_power_of_integers,
    aten.max.default: _nothing_to_compare,
    aten.min.default: _nothing_to_compare,
}


# -- dtypes for which CUDA has no kernel -----------------------------------------------------------

#: What C++ calls a dtype (c10/core/ScalarType.h).
SCALAR_TYPES = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
#: What cuSOLVER computes in.
_SOLVED = frozenset({torch.float32, torch.float64}) | _COMPLEX
_INTEGERS = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.uint16, torch.uint32, torch.uint64}
)  # fmt: skip

#: Kernels by their names in the macros that choose one by dtype (aten/src/ATen/native/cuda), and
#: the dtypes that these know.
_KERNELS: dict[Any, tuple[str, frozenset[torch.dtype]]] = {
    aten.mm.default: ("addmm_cuda", _FLOATS | _COMPLEX),
    aten.addmm.default: ("addmm_cuda", _FLOATS | _COMPLEX),
    aten.bmm.default: ("baddbmm_cuda", _FLOATS | _COMPLEX),
    aten.baddbmm.default: ("baddbmm_cuda", _FLOATS | _COMPLEX),
    aten.mv.default: ("addmv_impl_cuda", _FLOATS | _COMPLEX),
    aten.addmv.default: ("addmv_impl_cuda", _FLOATS | _COMPLEX),
    aten.dot.default: ("dot", _FLOATS | _COMPLEX),
    aten._softmax.default: ("host_softmax", _FLOATS),
    aten._log_softmax.default: ("host_softmax", _FLOATS),
    aten.native_layer_norm.default: ("LayerNormKernelImpl", _FLOATS),
    aten.gelu.default: ("GeluCUDAKernelImpl", _FLOATS),
    aten.silu.default: ("silu_cuda", _FLOATS | _COMPLEX),
    aten.softplus.default: ("softplus_cuda", _FLOATS),
    aten.leaky_relu.default: ("leaky_relu_cuda", _FLOATS),
    aten.mse_loss.default: ("mse_cuda", _FLOATS),
    aten.bitwise_and.Tensor: ("bitwise_and_cuda", _INTEGERS),
    aten.bitwise_or.Tensor: ("bitwise_or_cuda", _INTEGERS),
    aten.bitwise_xor.Tensor: ("bitwise_xor_cuda", _INTEGERS),
    aten.uniform_.default: ("check_uniform_bounds", _FLOATS),
    aten.bincount.default: (
        "bincount_cuda",
        frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}),
    ),
    aten.linalg_cholesky_ex.default: ("cholesky_cusolver", _SOLVED),
    aten.linalg_qr.default: ("geqrf_cuda", _SOLVED),
}

#: Those of them that compute in the dtype to which both operands are promoted.
_OF_COMMON_DTYPE = (
    aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.mse_loss.default,
)  # fmt: skip


# -- ops whose kernels for CUDA add in any order ---------------------------------------------------

#: What their kernels call themselves (torch.use_deterministic_algorithms, 2.13); fake kernels alert
#: of others.
_NOT_DETERMINISTIC: dict[Any, str] = {
    aten.avg_pool3d_backward.default: "avg_pool3d_backward_cuda",
    aten._adaptive_avg_pool2d_backward.default: "adaptive_avg_pool2d_backward_cuda",
    aten._adaptive_avg_pool3d_backward.default: "adaptive_avg_pool3d_backward_cuda",
    aten.adaptive_max_pool2d_backward.default: "adaptive_max_pool2d_backward_cuda",
    aten.fractional_max_pool2d_backward.default: "fractional_max_pool2d_backward_cuda",
    aten.fractional_max_pool3d_backward.default: "fractional_max_pool3d_backward_cuda",
    aten.upsample_linear1d_backward.default: "upsample_linear1d_backward_out_cuda",
    aten.upsample_bilinear2d_backward.default: "upsample_bilinear2d_backward_out_cuda",
    aten.upsample_bicubic2d_backward.default: "upsample_bicubic2d_backward_out_cuda",
    aten.upsample_trilinear3d_backward.default: "upsample_trilinear3d_backward_out_cuda",
    aten.reflection_pad1d_backward.default: "reflection_pad1d_backward_out_cuda",
    aten.reflection_pad2d_backward.default: "reflection_pad2d_backward_cuda",
    aten.reflection_pad3d_backward.default: "reflection_pad3d_backward_out_cuda",
    aten.nll_loss2d_forward.default: "nll_loss2d_forward_out_cuda_template",
    aten._ctc_loss_backward.default: "ctc_loss_backward_gpu",
    aten.put_.default: "put_",
    aten.bincount.default: "_bincount_cuda",
    aten.grid_sampler_2d_backward.default: "grid_sampler_2d_backward_cuda",
    aten.grid_sampler_3d_backward.default: "grid_sampler_3d_backward_cuda",
    aten.cumsum.default: "cumsum_cuda_kernel",
}

#: Those of them that are deterministic for some operands.
_DETERMINISTIC_FOR: dict[Any, Callable[[Sequence[Any]], bool]] = {
    aten.bincount.default: lambda args: len(args) < 2 or args[1] is None,
    aten.cumsum.default: _integers,
}
