"""Pointwise ops and reductions of sparse tensors: mostly an op on their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neusight.recording.handlers.registry import overloads
from neusight.recording.handlers.sparse.construction import converted
from neusight.recording.handlers.sparse.pattern import (
    bounded,
    coalesced,
    flat_index,
    known_index,
    new_index,
)
from neusight.recording.handlers.sparse.tensor import (
    SparseTensor,
    compressed,
    computed_values,
    coordinates,
    is_sparse,
    launch,
    on_sparse,
    recorder_of,
    with_values,
)

aten = torch.ops.aten

#: Functions that keep zeros, so that torch lets sparse tensors take them (native_functions.yaml).
_KEEPS_ZERO = tuple(
    """abs asin asinh atan atanh ceil conj_physical deg2rad erf erfinv expm1 floor frac
isinf isnan isneginf isposinf log1p neg nan_to_num positive rad2deg relu round sgn sign signbit sin
sinh sqrt tan tanh trunc threshold_backward _conj""".split()  # noqa: SIM905 - a list of words
)


def _overloads(*names: str) -> list[Any]:
    """The overloads of these ops that return something new, as far as this torch has them."""
    return [f for f in overloads(*names) if not any(a.is_out for a in f._schema.arguments)]


@on_sparse(*_overloads(*_KEEPS_ZERO))
def _pointwise(func: Any, *args: Any, **kwargs: Any) -> SparseTensor:
    """On the values of a coalesced tensor."""
    wholes = [coalesced(arg) if isinstance(arg, SparseTensor) else arg for arg in args]
    values = [arg.parts.values if isinstance(arg, SparseTensor) else arg for arg in wholes]
    pattern = next(arg for arg in wholes if isinstance(arg, SparseTensor))
    return with_values(pattern, func(*values, **kwargs))


@on_sparse(*(f for n in _KEEPS_ZERO for f in _overloads(f"{n}_")))
def _pointwise_in_place(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    whole = coalesced(self)
    func(whole.parts.values, *args, **kwargs)
    return _become(self, whole)


def _become(tensor: SparseTensor, other: SparseTensor) -> SparseTensor:
    tensor.parts, tensor.sure_coalesced = other.parts, other.sure_coalesced
    return tensor


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (value.dim() == 0 and not is_sparse(value))


@on_sparse(*_overloads("div", "true_divide", "floor_divide", "pow"))
def _scaled(func: Any, self: Any, other: Any, **kwargs: Any) -> Any:
    """By a number: its values are, of a power those of the coalesced tensor."""
    if not is_sparse(self) or not _is_scalar(other):
        raise RuntimeError("Sparse division requires a scalar or zero-dim dense tensor divisor")
    if func._schema.name == "aten::pow":
        self = coalesced(self)
    return with_values(self, func(self.parts.values, other, **kwargs))


@on_sparse(*_overloads("div_"))
def _scaled_in_place(func: Any, self: SparseTensor, other: Any, **kwargs: Any) -> SparseTensor:
    func(self.parts.values, other, **kwargs)
    return self


@on_sparse(*_overloads("mul_"))
def _multiply_in_place(func: Any, self: Any, other: Any) -> Any:
    if is_sparse(self) and _is_scalar(other):
        func(self.parts.values, other)
        return self
    product = _multiply(aten.mul.Tensor, self, other)
    return _become(self, product) if is_sparse(self) else self


@on_sparse(*_overloads("mul"))
def _multiply(func: Any, self: Any, other: Any) -> Any:
    if not is_sparse(self):
        self, other = other, self
    if _is_scalar(other):
        return with_values(self, func(self.parts.values, other))
    if not is_sparse(other):
        return _multiply_dense(self, other)
    first, second = coalesced(_as_coo(self)), coalesced(_as_coo(other))
    return converted(_common(first, second), self.layout)


def _as_coo(tensor: Any) -> Any:
    return converted(tensor, torch.sparse_coo)


def _multiply_dense(sparse: SparseTensor, dense: Any) -> Any:
    """What the dense tensor has at the coordinates is gathered, and multiplied."""
    back = sparse.layout
    coo = _as_coo(sparse)
    gathered = _gathered(coo, dense.expand(tuple(coo.shape)))
    out = with_values(coo, coo.parts.values * gathered)
    return converted(out, back)


def _gathered(pattern: SparseTensor, dense: Any) -> Any:
    indices = pattern.parts.plain
    return computed_values("aten::sparse_mask", pattern, dense.dtype, self=dense, indices=indices)


def _common(first: SparseTensor, second: SparseTensor) -> SparseTensor:
    """The product of two coalesced tensors, where both have elements."""
    recorder = recorder_of(first)
    shape = tuple(first.shape)
    with recorder.mode.inside():
        indices = [known_index(recorder, t.parts.plain) for t in (first, second)]
        if indices[0] is None or indices[1] is None:
            bounded(recorder, "so a product of sparse tensors is taken to have that of the lesser")
            lesser = min(first, second, key=lambda t: t.num_nonzeros)
            shared = recorder.new_tensor(
                tuple(lesser.parts.plain.shape), torch.int64, first.parts.plain
            )
        else:
            flats = [flat_index(index, shape) for index in indices if index is not None]
            kept = indices[0][:, torch.isin(*flats)]
            shared = new_index(recorder, kept, first.parts.plain)
    dtype = torch.promote_types(first.dtype, second.dtype)
    values = first.parts.values
    out = recorder.new_tensor((shared.shape[1], *values.shape[1:]), dtype, values)
    given = {
        "indices": first.parts.plain, "values": values,
        "other_indices": second.parts.plain, "other_values": second.parts.values,
    }  # fmt: skip
    launch(recorder, "aten::mul", given, (shared, out))
    recorder.wait("mul")
    return coordinates(shared, out, shape, is_coalesced=True)


@on_sparse(*_overloads("add", "sub"))
def _add(func: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Two COO tensors end up one behind the other, not coalesced (add_out_sparse_cuda)."""
    scale = -alpha if func._schema.name == "aten::sub" else alpha
    if not is_sparse(self) and is_sparse(other):
        return _add_to_dense(aten.clone.default(self), other, scale)
    if not is_sparse(other):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if self.shape != other.shape:
        raise RuntimeError(
            f"add: Expected 'self' and 'other' to have same size, but {tuple(self.shape)} != "
            f"{tuple(other.shape)}"
        )
    if self.layout is not torch.sparse_coo:
        return _add_compressed(self, other, scale)
    if not self.num_nonzeros or not other.num_nonzeros:
        return _clone_of(self if self.num_nonzeros else other, 1 if self.num_nonzeros else scale)
    scaled = other.parts.values if scale == 1 else other.parts.values * scale
    both = coordinates(
        torch.cat([self.parts.plain, other.parts.plain], 1),
        torch.cat([self.parts.values, scaled]),
        self.shape,
    )
    places = math.prod(self.shape)
    return coalesced(both) if both.num_nonzeros > places else both


def _clone_of(tensor: SparseTensor, scale: Any) -> Any:
    copied = tensor.clone()
    return copied if scale == 1 else copied * scale


def _add_to_dense(dense: Any, sparse: Any, scale: Any) -> Any:
    """Each value is added where it stands (add_out_dense_sparse_cuda)."""
    recorder = recorder_of(sparse)
    coo = _as_coo(sparse)
    given = {"self": dense, "indices": coo.parts.plain, "values": coo.parts.values}
    launch(recorder, "aten::add_", given, (dense,))
    recorder.known.forget(dense.untyped_storage()._cdata)
    return dense


@on_sparse(*_overloads("add_", "sub_"))
def _add_in_place(func: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    scale = -alpha if func._schema.name == "aten::sub_" else alpha
    if not is_sparse(self):
        return _add_to_dense(self, other, scale)
    return _become(self, _add(aten.add.Tensor, self, other, alpha=scale))


def _add_compressed(first: SparseTensor, second: Any, scale: Any) -> SparseTensor:
    """cuSPARSE's csrgeam2: it counts, the host waits for the number, and it adds."""
    recorder = recorder_of(first)
    both = _both_rows(first, second)
    if both is None:
        number = first.num_nonzeros + second.num_nonzeros
        bounded(recorder, "so a sum of sparse tensors is taken to have those of both")
        plain = recorder.new_tensor((number,), first.parts.plain.dtype, first.parts.plain)
        assert first.parts.pointers is not None
        rows = tuple(first.parts.pointers.shape)
        pointers = recorder.new_tensor(rows, first.parts.plain.dtype, plain)
    else:
        pointers, plain = (
            new_index(recorder, part.to(first.parts.plain.dtype), first.parts.plain)
            for part in both
        )
    dtype = torch.promote_types(first.dtype, second.dtype)
    values = recorder.new_tensor((plain.shape[0],), dtype, first.parts.values)
    given = {
        "plain": first.parts.plain, "values": first.parts.values,
        "other_plain": second.parts.plain, "other_values": second.parts.values,
    }  # fmt: skip
    launch(recorder, "aten::add", given, (pointers, plain, values))
    recorder.wait("add")
    return compressed(first.layout, pointers, plain, values, first.shape)


def _both_rows(first: SparseTensor, second: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Pointers and indices of what either has, if the indices of both are known."""
    recorder = recorder_of(first)
    with recorder.mode.inside():
        made = []
        for tensor in (first, second):
            pointers = known_index(recorder, tensor.parts.pointers)
            plain = known_index(recorder, tensor.parts.plain)
            if pointers is None or plain is None:
                return None
            ones, shape = torch.ones(plain.shape[0]), tuple(tensor.shape)
            made.append(
                torch.sparse_csr_tensor(pointers, plain, ones, shape, check_invariants=False)
            )
        both = made[0] + made[1]
        return both.crow_indices(), both.col_indices()


# -- like another, and written over ---------------------------------------------------------------


@on_sparse(*_overloads("zeros_like", "empty_like"))
def _empty_alike(func: Any, self: SparseTensor, **kwargs: Any) -> Any:
    layout = kwargs.get("layout") or self.layout
    dtype = kwargs.get("dtype") or self.dtype
    sizes = tuple(self.shape)
    if layout is torch.strided:
        return torch.zeros(sizes, dtype=dtype, device=self.device)
    if layout is not torch.sparse_coo:
        return with_values(self, torch.zeros_like(self.parts.values, dtype=dtype))
    num_sparse = self.parts.plain.shape[0]
    return coordinates(
        torch.empty((num_sparse, 0), dtype=torch.int64, device=self.device),
        torch.empty((0, *sizes[num_sparse:]), dtype=dtype, device=self.device),
        sizes,
        is_coalesced=True,
    )


@on_sparse(*_overloads("ones_like", "full_like"))
def _full_alike(func: Any, self: SparseTensor, *value: Any, **kwargs: Any) -> Any:
    """Of compressed tensors, whose values are filled; torch fills no others."""
    if self.layout is torch.sparse_coo or kwargs.get("layout") not in (None, self.layout):
        raise RuntimeError(f"Could not run '{func}' with a tensor of layout {self.layout}")
    return with_values(self, func(self.parts.values, *value, dtype=kwargs.get("dtype")))


@on_sparse(aten.zero_.default)
def _zero(func: Any, self: SparseTensor) -> SparseTensor:
    return _become(self, _empty_alike(func, self))


@on_sparse(aten.copy_.default)
def _copy(func: Any, self: Any, source: Any, non_blocking: bool = False) -> Any:
    if not is_sparse(self) or not is_sparse(source):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self type = "
            f"{self.type()} and src type = {source.type()}"
        )
    return _become(self, source.clone())


@on_sparse(aten.sparse_mask.default)
def _mask(func: Any, self: Any, mask: SparseTensor) -> SparseTensor:
    """What another tensor has at the coordinates of this one."""
    coo = _as_coo(mask)
    if is_sparse(self):
        source = coalesced(_as_coo(self)).parts
        values = computed_values(
            "aten::_sparse_mask_projection", coo, self.dtype,
            indices=source.plain, values=source.values, mask=coo.parts.plain,
        )  # fmt: skip
    else:
        values = _gathered(coo, self)
    out = with_values(coo, values)
    return out if mask.layout is torch.sparse_coo else with_values(mask, values)


@on_sparse(*_overloads("_sparse_mask_projection"))
def _project(func: Any, self: SparseTensor, mask: SparseTensor, accumulate: bool = False) -> Any:
    return _mask(func, self, mask)


# -- reductions -----------------------------------------------------------------------------------


@on_sparse(aten.sum.default, aten._sparse_sum.default)
def _sum(func: Any, self: SparseTensor, *, dtype: Any = None) -> Any:
    return self.parts.values.sum(dtype=dtype)


@on_sparse(*_overloads("norm", "native_norm", "linalg_vector_norm"))
def _norm(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    power = [arg for arg in args[:1] if isinstance(arg, (int, float))]
    return torch.linalg.vector_norm(coalesced(self).parts.values, *power)


@on_sparse(aten._sparse_sum.dim, aten.sum.dim_IntList)
def _sum_over(
    func: Any, self: Any, dim: Sequence[int], keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Over all sparse dimensions the sum is dense; over some, coordinates are left out."""
    coo = coalesced(_as_coo(self)) if func is aten._sparse_sum.dim else _as_coo(self)
    rank = coo.dim()
    dims = sorted({d % rank for d in (dim or range(rank))})
    num_sparse = coo.parts.plain.shape[0]
    dense = [d - num_sparse + 1 for d in dims if d >= num_sparse]
    values = coo.parts.values.sum(dense, dtype=dtype) if dense else coo.parts.values
    left = [d for d in range(num_sparse) if d not in dims]
    if not left:
        return values.sum(0, dtype=dtype)
    shape = [size for d, size in enumerate(coo.shape) if d not in dims]
    if len(left) == num_sparse:
        return coordinates(coo.parts.plain, values, shape, is_coalesced=coo.sure_coalesced)
    kept = coo.parts.plain.index_select(0, torch.tensor(left, device=coo.device))
    summed = coordinates(kept, values, shape)
    return coalesced(summed) if func is aten._sparse_sum.dim else summed


@on_sparse(aten._sparse_sum_backward.default)
def _sum_backward(func: Any, grad: Any, self: SparseTensor, dim: Sequence[int]) -> Any:
    """The gradient at each coordinate of the input, which is gathered."""
    return with_values(self, _gathered(self, grad.parts.values if is_sparse(grad) else grad))


@on_sparse(*_overloads("_sparse_softmax", "_sparse_log_softmax"))
def _softmax(func: Any, self: SparseTensor, dim: int, *args: Any) -> SparseTensor:
    """Over the elements that are there (SoftMax.cu)."""
    whole = coalesced(self)
    plain, values, _ = whole.parts
    found = computed_values(func._schema.name, whole, self.dtype, indices=plain, values=values)
    return with_values(whole, found)


@on_sparse(*_overloads("_sparse_softmax_backward_data", "_sparse_log_softmax_backward_data"))
def _softmax_backward(
    func: Any, grad_output: SparseTensor, output: SparseTensor, dim: int, self: SparseTensor
) -> SparseTensor:
    plain, values, _ = output.parts
    found = computed_values(
        func._schema.name, output, values.dtype,
        indices=plain, values=values, grad=grad_output.parts.values,
    )  # fmt: skip
    return with_values(output, found)
