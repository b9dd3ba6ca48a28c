"""What programs call on nested tensors of the strided layout, run on all their rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.nn import functional

from neusight.fake_cuda.nested.tensor import NestedTensor, nested_of, on_nested


def from_parts(parts: Sequence[Any]) -> NestedTensor:
    """The tensors one behind the other, in a copy."""
    inner = {tuple(part.shape[1:]) for part in parts}
    if not parts or len(inner) > 1 or parts[0].dim() == 0:
        raise NotImplementedError(
            "Nested tensors of the strided layout are forecast where all parts have the same sizes "
            f"but for the first dimension; these have {sorted(inner)} behind it. Pad them, or keep "
            "them in a list."
        )
    return nested_of(torch.cat(list(parts)), [int(part.shape[0]) for part in parts])


def _same(nested: NestedTensor, packed: Any) -> NestedTensor:
    return nested_of(packed, nested.lengths, nested.order)


# -- of each element ------------------------------------------------------------------------------


def _each(name: str, run: Callable[..., Any]) -> None:
    @on_nested(name)
    def of_each(self: NestedTensor, *args: Any, **kwargs: Any) -> Any:
        return _same(self, run(self.packed, *args, **kwargs))


for _name in (
    "abs", "bfloat16", "celu", "clamp", "clone", "contiguous", "cos", "cuda", "detach", "double",
    "elu", "exp", "float", "gelu", "half", "hardtanh", "leaky_relu", "log", "logical_not", "neg",
    "ones_like", "rand_like", "randn_like", "relu", "relu_", "sgn", "sigmoid", "silu", "sin",
    "softplus", "sqrt", "tanh", "zeros_like", "dropout", "empty_like", "isnan", "__neg__",
):  # fmt: skip
    _found = (
        getattr(torch.Tensor, _name, None)
        or getattr(functional, _name, None)
        or getattr(torch, _name)
    )
    _each(_name, _found)


@on_nested("to", "cpu")
def _to(self: NestedTensor, *args: Any, **kwargs: Any) -> Any:
    packed = self.packed.to(*args, **kwargs) if args or kwargs else self.packed.cpu()
    moved = _same(self, packed)
    is_on_gpu = packed.device.type == "cuda"
    return moved if is_on_gpu else torch._nested_tensor_from_tensor_list(_parts(moved))


def _both(name: str) -> None:
    run = getattr(torch.Tensor, name)

    @on_nested(name)
    def of_both(self: Any, other: Any, **kwargs: Any) -> Any:
        nested = self if isinstance(self, NestedTensor) else other
        return _same(nested, run(_rows(self, nested), _rows(other, nested), **kwargs))


def _rows(value: Any, like: NestedTensor) -> Any:
    if not isinstance(value, NestedTensor):
        if isinstance(value, torch.Tensor) and value.dim():
            raise RuntimeError(
                "Expected both self and other to be nested, but got a nested self and "
                f"non-nested other for a tensor of {value.dim()} dimensions"
            )
        return value
    if value.lengths != like.lengths or value.order != like.order:
        raise RuntimeError(
            "nested tensors of a pointwise op must have the same sizes, but got lengths "
            f"{list(like.lengths)} and {list(value.lengths)}"
        )
    return value.packed


for _name in (
    "add", "add_", "div", "mul", "mul_", "sub", "eq", "ge", "gt", "lt", "__add__", "__mul__",
    "__radd__", "__rmul__", "__sub__", "__truediv__", "__iadd__", "__imul__", "__gt__", "__lt__",
):  # fmt: skip
    if hasattr(torch.Tensor, _name):
        _both(_name)


# -- of rows --------------------------------------------------------------------------------------


@on_nested("linear")
def _linear(input: NestedTensor, weight: Any, bias: Any = None) -> NestedTensor:
    return _same(input, functional.linear(input.packed, weight, bias))


@on_nested("layer_norm")
def _layer_norm(input: NestedTensor, normalized_shape: Any, *args: Any, **kwargs: Any) -> Any:
    return _same(input, functional.layer_norm(input.packed, normalized_shape, *args, **kwargs))


@on_nested("flatten", "rms_norm", "unflatten")
def _sized(input: NestedTensor, *args: Any, **kwargs: Any) -> Any:
    """torch asks for sizes that there are none of, on a GPU too (2.13)."""
    return input.shape


def _absent(op: str) -> Callable[..., NoReturn]:
    """What torch has no kernel of for these tensors on a GPU (native_functions.yaml, 2.13)."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"Could not run 'aten::{op}' with arguments from the 'NestedTensorCUDA' backend: torch "
            "has it for no nested tensor of the strided layout. layout=torch.jagged has it."
        )

    return refuse


for _name in ("log_softmax", "mean", "sum"):
    on_nested(_name)(_absent(_name))


@on_nested("softmax")
def _softmax(input: NestedTensor, dim: int = -1, *args: Any, **kwargs: Any) -> Any:
    """Over the last dimension; torch has one kernel a part, here they are one."""
    inner = _inner(input, dim)
    return _same(input, torch.softmax(input.packed, inner, dtype=kwargs.get("dtype")))


def _inner(nested: NestedTensor, dim: int) -> int:
    """The dimension of the rows that stands there; that of lengths and the batch are refused."""
    place = dim % nested.ndim
    if place == 0 or nested.order[place - 1] == 0:
        raise RuntimeError(
            f"dimension {dim} of a nested tensor is not regular; to_padded_tensor() or "
            "layout=torch.jagged reduce over it"
        )
    return nested.order[place - 1]


@on_nested("transpose")
def _transpose(self: NestedTensor, dim0: int, dim1: int) -> NestedTensor:
    first, second = dim0 % self.ndim, dim1 % self.ndim
    if 0 in (first, second):
        raise RuntimeError("Nested tensor dimension 0 cannot be transposed")
    order = list(self.order)
    order[first - 1], order[second - 1] = order[second - 1], order[first - 1]
    return nested_of(self.packed, self.lengths, order)


@on_nested("chunk")
def _chunk(self: NestedTensor, chunks: int, dim: int = 0) -> tuple[NestedTensor, ...]:
    return tuple(_same(self, part) for part in self.packed.chunk(chunks, _inner(self, dim)))


@on_nested("split", "split_with_sizes")
def _split(self: NestedTensor, sizes: Any, dim: int = 0) -> tuple[NestedTensor, ...]:
    if isinstance(sizes, int):
        _absent("split")()
    return tuple(_same(self, part) for part in self.packed.split(sizes, _inner(self, dim)))


@on_nested("view", "reshape")
def _view(self: NestedTensor, *shape: Any) -> NestedTensor:
    """The batch, the lengths (-1) and new inner sizes, of rows that stand first."""
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if self.num_regular != 1 or sizes[0] not in (len(self.lengths), -1) or sizes[1] != -1:
        raise RuntimeError(
            f"view of a nested tensor keeps its batch ({len(self.lengths)}) and lengths (-1), but "
            f"got {list(sizes)}"
        )
    rows = self.packed.permute(self.order)
    return nested_of(rows.reshape(rows.shape[0], *sizes[2:]), self.lengths)


# -- of parts -------------------------------------------------------------------------------------


def _parts(nested: NestedTensor) -> list[Any]:
    return [part.permute(nested.order) for part in nested.packed.split(list(nested.lengths))]


@on_nested("unbind")
def _unbind(self: NestedTensor, dim: int = 0) -> tuple[Any, ...]:
    if dim != 0:
        raise RuntimeError(f"NestedTensor can only be unbound along dimension 0, got {dim}")
    return tuple(_parts(self))


@on_nested("__getitem__", "select")
def _item(self: NestedTensor, index: Any, *rest: Any) -> Any:
    place = rest[0] if rest else index
    if not isinstance(place, int) or (rest and index != 0):
        raise NotImplementedError(
            "Only one part of a nested tensor of the strided layout is selected in a forecast; "
            "layout=torch.jagged takes slices."
        )
    return _parts(self)[place]


@on_nested("__len__")
def _length(self: NestedTensor) -> int:
    return len(self.lengths)


@on_nested("matmul", "__matmul__")
def _matmul(self: Any, other: Any) -> NestedTensor:
    """Of two nested ones (NestedTensorMatmul.cpp)."""
    if not (isinstance(self, NestedTensor) and isinstance(other, NestedTensor)):
        raise RuntimeError("Expected both to be nested, but got a nested and a non-nested one")
    product: NestedTensor = _bmm(self, other)
    return product


@on_nested("bmm")
def _bmm(self: Any, other: Any) -> NestedTensor:
    """Part by part; one of both may be a plain batch of matrices (cuda/NestedTensorMatmul.cu)."""
    left, right = (
        _parts(each) if isinstance(each, NestedTensor) else each.unbind() for each in (self, other)
    )
    parts = [a @ b for a, b in zip(left, right, strict=True)]
    if len({tuple(part.shape[1:]) for part in parts}) == 1:
        return from_parts(parts)
    raise NotImplementedError(
        "Products of nested tensors whose parts differ in two dimensions (scores of attention) are "
        "forecast inside scaled_dot_product_attention only."
    )


@on_nested("scaled_dot_product_attention")
def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> NestedTensor:
    """By the kernels for packed sequences, as jagged tensors (sdp_utils.cpp asks the same)."""
    jagged = [_as_jagged(tensor) for tensor in (query, key, value)]
    out = functional.scaled_dot_product_attention(*jagged, *args, **kwargs)
    return nested_of(out.transpose(1, 2).values(), query.lengths, (1, 0, 2))


def _as_jagged(nested: NestedTensor) -> Any:
    if nested.order != (1, 0, 2):
        raise RuntimeError("attention takes nested tensors of [batch, heads, length, head size]")
    return _jagged(nested.packed, nested.lengths).transpose(1, 2)


def _jagged(rows: Any, lengths: Sequence[int]) -> Any:
    ends = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(rows.device)
    return torch.nested.nested_tensor_from_jagged(
        rows, ends, max_seqlen=max(lengths), min_seqlen=min(lengths)
    )


def _one_row(nested: NestedTensor) -> Any:
    """All tokens as a batch of one, which knows their lengths (recording/handlers/padding)."""
    if nested.order != (0, 1):
        raise RuntimeError("attention takes nested tensors of [batch, length, width]")
    row = nested.packed.unsqueeze(0)
    row.packed_lengths = nested.lengths
    return row


@on_nested("_native_multi_head_attention")
def _attention_module(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """What nn.MultiheadAttention calls in eval; query, key and value are one tensor there."""
    row = _one_row(query)
    out, weights = torch._native_multi_head_attention(row, row, row, *args, **kwargs)
    return nested_of(out.squeeze(0), query.lengths), weights


@on_nested("_transformer_encoder_layer_fwd")
def _encoder_layer(src: NestedTensor, *args: Any, **kwargs: Any) -> NestedTensor:
    out = torch._transformer_encoder_layer_fwd(_one_row(src), *args, **kwargs)
    return nested_of(out.squeeze(0), src.lengths)


@on_nested("to_padded_tensor", "nested_to_padded_tensor")
def _padded(self: NestedTensor, padding: float, output_size: Any = None, out: Any = None) -> Any:
    """One kernel that copies rows and fills what is left (add_padding_kernelLauncher)."""
    rows = self.packed.permute(self.order)
    inner = tuple(rows.shape[1:])
    if self.num_regular != 1:
        raise RuntimeError("for now to_padded_tensor only supports contiguous nested tensor")
    longest = max(self.lengths) if output_size is None else int(tuple(output_size)[1])
    jagged = _jagged(rows.reshape(rows.shape[0], -1), self.lengths)
    padded = torch.nested.to_padded_tensor(
        jagged, padding, (len(self.lengths), longest, jagged.values().shape[1])
    )
    return padded.reshape(len(self.lengths), longest, *inner)


# -- what it says of itself -----------------------------------------------------------------------


@on_nested("size")
def _size(self: NestedTensor, dim: int | None = None) -> int:
    if dim is None:
        raise RuntimeError("NestedTensorImpl doesn't support sizes; size(i) returns regular ones")
    place = dim % self.ndim
    if place == 0:
        return len(self.lengths)
    inner = self.order[place - 1]
    if inner == 0 and len(set(self.lengths)) > 1:
        raise RuntimeError(
            f"Given dimension {dim} is irregular and does not have a size (it is not the same in "
            "all parts)."
        )
    return int(self.packed.shape[inner]) if inner else self.lengths[0]


@on_nested("dim")
def _dim(self: NestedTensor) -> int:
    return self.ndim


@on_nested("numel", "nelement")
def _numel(self: NestedTensor) -> int:
    return int(self.packed.numel())


@on_nested("is_contiguous")
def _is_contiguous(self: NestedTensor, *args: Any, **kwargs: Any) -> bool:
    return self.order == tuple(range(len(self.order))) and bool(self.packed.is_contiguous())


@on_nested("is_floating_point")
def _is_floating_point(self: NestedTensor) -> bool:
    return bool(self.packed.is_floating_point())


@on_nested("requires_grad_")
def _requires_grad(self: NestedTensor, requires_grad: bool = True) -> NestedTensor:
    self.packed.requires_grad_(requires_grad)
    return self


def _of_wrapper(name: str) -> None:
    @on_nested(name)
    def reported(self: NestedTensor) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return getattr(self, name)


for _name in ("dtype", "layout", "is_leaf", "is_sparse", "is_quantized", "is_meta"):
    _of_wrapper(_name)
