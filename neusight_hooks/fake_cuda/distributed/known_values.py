"""What collectives leave where values are known: others are taken to hold what this rank does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neusight.fake_cuda.distributed.communication import tensors_in
from neusight.recording.tensor import ForecastMode, ForecastTensor
from neusight.recording.values.known import KnownValues

#: What a rank gets of equal ranks: of (what it gave, how many they are, its place among them).
_Answer = Callable[[Sequence[torch.Tensor], int, int], Sequence[torch.Tensor]]


def _as_given(given: Sequence[torch.Tensor], size: int, own: int) -> Sequence[torch.Tensor]:
    return given


def _gathered(given: Sequence[torch.Tensor], size: int, own: int) -> Sequence[torch.Tensor]:
    return [torch.cat([given[0].reshape(-1)] * size)]


def _own_part(given: Sequence[torch.Tensor], size: int, own: int) -> Sequence[torch.Tensor]:
    return [given[0].reshape(size, -1)[own]]


def _exchanged(given: Sequence[torch.Tensor], size: int, own: int) -> Sequence[torch.Tensor]:
    return [torch.cat([given[0].reshape(size, -1)[own]] * size)]


_ANSWERS: dict[str, _Answer] = {
    "allreduce_": _as_given,
    "allreduce_coalesced_": _as_given,
    "reduce_": _as_given,
    "broadcast_": _as_given,
    "allgather_": lambda given, size, own: [given[0]] * size,
    "_allgather_base_": _gathered,
    "reduce_scatter_": lambda given, size, own: [given[own]],
    "_reduce_scatter_base_": _own_part,
    "alltoall_": lambda given, size, own: [given[own]] * size,
    "alltoall_base_": _exchanged,
    "all_reduce": _as_given,
    "all_reduce_": _as_given,
    "broadcast": _as_given,
    "all_gather_into_tensor": _gathered,
    "all_gather_into_tensor_out": _gathered,
    "reduce_scatter_tensor": _own_part,
    "reduce_scatter_tensor_out": _own_part,
    "all_to_all_single": _exchanged,
}


def follow_known_values(
    mode: ForecastMode,
    known: KnownValues,
    group: Any,
    name: str,
    values: Mapping[str, Any],
    written: Any,
) -> None:
    """Notes what a collective leaves in the tensors that it wrote, or forgets what was there."""
    outputs = tensors_in(written)
    inputs = tensors_in([value for value in values.values() if value is not written]) or outputs
    answer = _ANSWERS.get(name)
    if answer is None or not _is_even(values) or not all(tensor in known for tensor in inputs):
        for tensor in outputs:
            known.forget(tensor.untyped_storage()._cdata)
        return
    size, own = dist.get_world_size(group), dist.get_rank(group)
    with torch.no_grad(), mode.inside():
        given = [known.of(tensor).clone() for tensor in inputs]
        found = answer(given, size, own)
        for out, value in zip(outputs, found, strict=True):
            _put(known, out, _reduced(values.get("reduce_op"), value, size))
    if any(known.is_invented(tensor) for tensor in inputs):
        for tensor in outputs:
            known.record_invented(tensor)


def _is_even(values: Mapping[str, Any]) -> bool:
    """Whether all ranks get the same number of elements."""
    splits = (values.get("output_split_sizes"), values.get("input_split_sizes"))
    return all(len(set(sizes)) <= 1 for sizes in splits if sizes)


def _put(known: KnownValues, out: ForecastTensor, value: torch.Tensor) -> None:
    if out in known:
        known.of(out).copy_(value.reshape(out.shape))
    elif known.may_hold(out):
        known.set(out, value.reshape(out.shape))


def reduction_name(stated: Any) -> str:
    """ "sum" and the like, of the word that functional collectives take or of torch's object."""
    kinds: Any = dist.ReduceOp.RedOpType
    return stated if isinstance(stated, str) else str(kinds(stated.op()).name).lower()


def _reduced(reduction: Any, value: torch.Tensor, size: int) -> torch.Tensor:
    """Equal values of all ranks as one; but for a sum or a product that is the value."""
    name = "" if reduction is None else reduction_name(reduction)
    if name == "sum":
        return value * size
    return value**size if name == "product" else value
