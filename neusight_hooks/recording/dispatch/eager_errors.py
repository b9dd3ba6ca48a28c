"""What PyTorch says on a GPU of operands that do not go together.

Fake kernels say it in words of their own, or let it pass. The words are asked of the kernel for the
CPU, which checks its operands before it computes and says what the one for CUDA says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["eager_error", "quiet_fake_kernels", "refused_by_cuda"]

aten = torch.ops.aten

#: Elements of all operands together up to which the kernel for the CPU is asked: memory that is
#: never touched, and seconds at most where it computes after all.
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
    """The error that the op raises on a GPU; None where nobody knows. Call it where no dispatch
    mode is active."""
    values = (*args, *kwargs.values())
    if sum(tensor.numel() for tensor in _tensors_in(values)) > _MOST_ELEMENTS:
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


def refused_by_cuda(func: Any, args: Sequence[Any]) -> bool:
    """Whether the op refuses these operands on a GPU, although its fake kernel takes them."""
    refuses = _REFUSALS.get(func)
    return refuses is not None and refuses(args)


def _on_cpu(value: Any) -> Any:
    """The same operands on the CPU; values are zeros for indices, and anything else."""
    if isinstance(value, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            shape, stride, dtype = value.shape, value.stride(), value.dtype
        like = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
        return like if dtype.is_floating_point or dtype.is_complex else like.zero_()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_cpu, value)) if type(value) in (list, tuple) else value
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value


def _tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


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
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        covered = index.dim() if is_mask else 1
        if is_mask and index.shape != shape[place : place + covered]:
            return True
        place += covered
    return False


_INDICES = (torch.int64, torch.int32)
_REFUSALS: dict[Any, Callable[[Sequence[Any]], bool]] = {
    aten.embedding.default: _no_index(1, _INDICES),  # torch before 2.13 takes any
    aten.mm.default: _any_other_dtype(0, 1),
    aten.bmm.default: _any_other_dtype(0, 1),
    aten.addmm.default: _any_other_dtype(0, 1, 2),
    aten.baddbmm.default: _any_other_dtype(0, 1, 2),
    aten.index_select.default: _no_index(2, _INDICES),
    aten.nll_loss_forward.default: _no_index(1, (torch.int64, torch.uint8)),
    aten.nll_loss2d_forward.default: _no_index(1, (torch.int64, torch.uint8)),
    aten._softmax.default: _no_dimension,
    aten._log_softmax.default: _no_dimension,
    aten.index.Tensor: _mask_of_another_shape,
    aten.index_put.default: _wrong_put,
    aten.index_put_.default: _wrong_put,
    aten._index_put_impl_.default: _wrong_put,
    aten.masked_select.default: lambda args: bool(args[1].dtype != torch.bool),
    aten.sort.default: _no_dimension_to_sort,
    aten.var.correction: _integers,
    aten.std.correction: _integers,
    aten.pow.Tensor_Scalar: _negative_power_of_integers,
    aten.max.default: _nothing_to_compare,
    aten.min.default: _nothing_to_compare,
}
