"""How many samples and tokens are in what a loader yields or a model is called with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

#: How deep tensors are looked for in containers, and how many are looked at.
_MAX_DEPTH = 4
_MAX_TENSORS = 32

_ID_DTYPES = (torch.int64, torch.int32)


class InputSize(NamedTuple):
    """`what` the tensor is in words, its shape, and what its shape says."""

    what: str
    shape: tuple[int, ...]
    samples: int | None = None
    tokens: int | None = None


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors in some arguments, containers included, in order; the first few."""
    return list(islice(_tensors(values), _MAX_TENSORS))


def tensors_held_by(value: Any, *, num_dims: int) -> Iterator[torch.Tensor]:
    """Tensors of so many dimensions in arguments and in the objects among them, as a cache holds
    its layers; modules are not looked into."""
    return (tensor for tensor in _tensors(value, in_objects=True) if tensor.dim() >= num_dims)


def _tensors(value: Any, *, in_objects: bool = False, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= _MAX_DEPTH:
        parts: Iterable[Any] = ()
        if isinstance(value, Mapping):
            parts = value.values()
        elif isinstance(value, (list, tuple)):
            parts = value
        elif in_objects and not isinstance(value, (torch.nn.Module, type)):
            parts = getattr(value, "__dict__", {}).values()
        for part in parts:
            yield from _tensors(part, in_objects=in_objects, depth=depth + 1)


def size_of(tensors: Sequence[torch.Tensor], *, batch_first: bool = True) -> InputSize | None:
    """The size of a call's input, by the first tensor of two dimensions or more; None where no
    tensor has as many, or its sizes are symbols.

    Integers [batch, sequence] are token ids; the first dimension of all else counts samples. Where
    the batch may be the second dimension, only what does not depend on it is said. Nodes and edges
    of a graph are no samples. Under torch.func.vmap all count that it maps over.

    >>> size_of([torch.zeros(8, 1024, dtype=torch.long)])
    InputSize(what='token ids', shape=(8, 1024), samples=8, tokens=8192)
    >>> size_of([torch.zeros(100, 16), torch.zeros(2, 500, dtype=torch.long)]).what
    'graph'
    """
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    at = next((at for at, tensor in enumerate(tensors) if tensor.dim() > 1), None)
    if at is None:
        return None
    first = tensors[at]
    if first.is_nested:
        return InputSize("input", (int(first.size(0)),), int(first.size(0)))
    shape = tuple(first.shape)
    if not all(isinstance(size, int) for size in shape):
        return None  # a compiler's, of any size
    copies = _mapped_over(first)
    is_ids = len(shape) == 2 and first.dtype in _ID_DTYPES
    others = [
        other
        for other in tensors[at + 1 :]
        # Masks, positions and types of token ids have their shape.
        if other.is_nested
        or not (is_ids and other.dtype in _ID_DTYPES and tuple(other.shape) == shape)
    ]
    if any(_is_of_graph(other, shape) for other in others) or not _is_dense(first):
        return InputSize("graph", shape)
    is_clear = batch_first or len(shape) > 3
    return InputSize(
        "token ids" if is_ids else "input",
        shape,
        samples=shape[0] * copies if is_clear else None,
        tokens=shape[0] * shape[1] * copies if is_ids else None,
    )


def size_of_loaded(
    tensors: Sequence[torch.Tensor], *, num_items: int | None = None
) -> InputSize | None:
    """The size of what a loader yielded that puts `num_items` of its data set together (None: the
    data set yields whole batches); None where it does not say.

    >>> size_of_loaded([torch.zeros(64, 3, 8, 8), torch.zeros(64)], num_items=32).samples
    32
    """
    found = size_of(tensors)
    if num_items is None:
        return found
    leading = {int(tensor.size(0)) for tensor in tensors if tensor.dim()}
    if found is None or found.what == "graph":
        is_last = len(leading) == 1 and min(leading) < num_items
        return InputSize("items", (), min(leading) if is_last else num_items)
    assert found.samples is not None
    if num_items in {size for tensor in tensors for size in _sizes(tensor)}:
        return found._replace(samples=num_items)
    return found._replace(samples=min(num_items, found.samples))


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(map(int, tensor.shape))


def _mapped_over(tensor: torch.Tensor) -> int:
    """How many tensors of this shape it stands for: those that torch.func.vmap maps over."""
    functorch = torch._C._functorch
    inner = tensor
    while functorch.is_functorch_wrapped_tensor(inner):
        inner = functorch.get_unwrapped(inner)
    return inner.numel() // max(1, tensor.numel())


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout in (torch.strided, torch.jagged)


def _is_of_graph(other: torch.Tensor, nodes: tuple[int, ...]) -> bool:
    """Whether a tensor beside the features [node, feature] of nodes says which of them are joined:
    pairs of their numbers, a sparse matrix, or a dense one of all pairs."""
    if other.is_nested:
        return False
    if not _is_dense(other):
        return True
    if len(nodes) != 2 or other.dim() != 2:
        return False
    pairs = other.dtype in _ID_DTYPES and other.size(0) == 2 and nodes[0] != 2
    return pairs or tuple(other.shape) == (nodes[0], nodes[0])
