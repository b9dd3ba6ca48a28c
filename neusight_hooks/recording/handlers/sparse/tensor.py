"""A sparse tensor of a forecast: its indices and values are forecast tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.dispatch.op_cache import KnownOp
from neusight.recording.recorder import Recorder
from neusight.recording.recording import OpSignature
from neusight.recording.signature import argument_of
from neusight.recording.tensor import ForecastTensor

#: Layouts with pointers to the beginnings of rows (or columns) in place of coordinates.
COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
BY_ROW = frozenset({torch.sparse_csr, torch.sparse_bsr})
BLOCKED = frozenset({torch.sparse_bsr, torch.sparse_bsc})

_PRIM_DEVICE = torch.ops.prim.device.default
_make_subclass = torch.Tensor._make_subclass

#: Runs an op of which at least one argument is a sparse tensor.
SparseOp = Callable[..., Any]
AnySparseOp = TypeVar("AnySparseOp", bound=SparseOp)

#: By the overload that they run.
SPARSE_OPS: dict[Any, SparseOp] = {}


def on_sparse(*functions: Any) -> Callable[[AnySparseOp], AnySparseOp]:
    """Registers how an op runs on sparse tensors; it is called with the op and its arguments."""

    def register(run: AnySparseOp) -> AnySparseOp:
        for function in functions:
            SPARSE_OPS[function] = run
        return run

    return register


class Parts(NamedTuple):
    """What a sparse tensor is made of. Of coordinates `plain` has a column for each non-zero, and
    there are no pointers; a compressed layout has `pointers` and a `plain` index a non-zero."""

    plain: ForecastTensor
    values: ForecastTensor
    pointers: ForecastTensor | None = None


class SparseTensor(torch.Tensor):
    """A sparse tensor that claims to be on `cuda`. Its C++ side is a sparse meta tensor without
    elements, so that torch dispatches as on a GPU; ops are run on `parts`."""

    parts: Parts
    sure_coalesced: bool
    _fake_device: torch.device

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _PRIM_DEVICE:
            return args[0]._fake_device
        run = SPARSE_OPS.get(func)
        if run is None:
            raise UnmappedOpError(_cannot(func, args))
        return run(func, *args, **(kwargs or {}))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._fake_device

    @property
    def num_nonzeros(self) -> int:
        """How many elements (or blocks) are stored."""
        return int(self.parts.plain.shape[-1])

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"tensor(..., device='{self._fake_device}', size={tuple(self.shape)}, "
            f"nnz={self.num_nonzeros}, dtype={self.dtype}, layout={self.layout}, forecast=True)"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as a sparse tensor on the CPU."""
        copied: Any = self.detach().cpu()
        return copied.__reduce_ex__(protocol)


#: Python's own errors name the class.
SparseTensor.__name__ = SparseTensor.__qualname__ = "Tensor"


def _cannot(func: Any, args: Sequence[Any]) -> str:
    layouts = sorted({str(a.layout) for a in args if isinstance(a, SparseTensor)})
    return (
        f"{func._schema.name} at {call_site()} is not forecast for {', '.join(layouts)} tensors. "
        "Compute on its indices() and values(), or on to_dense()."
    )


def is_sparse(value: object) -> bool:
    """Whether it is a sparse tensor of a forecast."""
    return isinstance(value, SparseTensor)


def recorder_of(tensor: Any) -> Recorder:
    """The recorder of a sparse tensor's parts, or of a dense one."""
    part = tensor.parts.values if isinstance(tensor, SparseTensor) else tensor
    return cast(Recorder, part.fake_mode.listener)


def coordinates(
    indices: Any, values: Any, shape: Iterable[int], *, is_coalesced: bool = False
) -> SparseTensor:
    """A COO tensor of these parts. One of less than two elements counts as coalesced."""
    num_sparse = indices.shape[0]
    is_coalesced = is_coalesced or indices.shape[1] < 2
    sizes = tuple(shape)
    with torch._C._DisableTorchDispatch():
        index = torch.empty((num_sparse, 0), dtype=torch.int64, device="meta")
        value = torch.empty((0, *sizes[num_sparse:]), dtype=values.dtype, device="meta")
        meta = torch.sparse_coo_tensor(
            index, value, sizes, device="meta", check_invariants=False, is_coalesced=is_coalesced
        )
    return _made(meta, Parts(indices, values), is_coalesced)


def compressed(
    layout: torch.layout, pointers: Any, plain: Any, values: Any, shape: Iterable[int]
) -> SparseTensor:
    """A CSR, CSC, BSR or BSC tensor of these parts."""
    with torch._C._DisableTorchDispatch():
        first, second, third = (
            torch.zeros(tuple(part.shape), dtype=part.dtype, device="meta")
            for part in (pointers, plain, values)
        )
        meta = torch.sparse_compressed_tensor(
            first, second, third, tuple(shape), layout=layout, device="meta", check_invariants=False
        )
    return _made(meta, Parts(plain, values, pointers), True)


def with_values(tensor: SparseTensor, values: Any) -> SparseTensor:
    """A tensor of the same pattern with other values."""
    plain, pointers = tensor.parts.plain, tensor.parts.pointers
    if pointers is None:
        return coordinates(plain, values, tensor.shape, is_coalesced=tensor.sure_coalesced)
    return compressed(tensor.layout, pointers, plain, values, tensor.shape)


def _made(meta: torch.Tensor, parts: Parts, is_coalesced: bool) -> SparseTensor:
    device = parts.values._fake_device
    with torch._C._DisableTorchDispatch():
        tensor: SparseTensor = _make_subclass(
            SparseTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
    tensor.parts = parts
    tensor.sure_coalesced = is_coalesced
    tensor._fake_device = device
    return tensor


def launch(
    recorder: Recorder, op: str, arguments: Mapping[str, Any], outputs: Sequence[Any]
) -> None:
    """Records what a GPU does for an op on sparse tensors, by the tensors that they are made of: as
    the overload "sparse" of the op, which torch does not have."""
    signature = OpSignature(
        op,
        "sparse",
        tuple((name, argument_of(value)) for name, value in arguments.items()),
        tuple(map(argument_of, outputs)),
    )
    taped = recorder.record_op(KnownOp(signature, needs_math=True))
    for tensor in outputs:
        if isinstance(tensor, ForecastTensor):
            recorder.storages.follow(tensor, taped)


def computed_values(
    op: str, pattern: SparseTensor, dtype: torch.dtype, **arguments: Any
) -> ForecastTensor:
    """New values of a pattern, which a GPU computes for an op on these arguments."""
    recorder, like = recorder_of(pattern), pattern.parts.values
    values = recorder.new_tensor(tuple(like.shape), dtype, like)
    launch(recorder, op, arguments, (values,))
    return values
