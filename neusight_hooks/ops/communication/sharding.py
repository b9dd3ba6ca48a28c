"""The copies around the collectives of fully sharded parameters (torch.distributed.fsdp)."""

from __future__ import annotations

from neusight.ops.operands import gpu_tensors, memory_kernel
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, OpSignature, TensorSpec


@register_op("fsdp::all_gather_copy_in")
def all_gather_copy_in(
    call: OpSignature, *, all_gather_inputs: tuple[TensorSpec, ...], **others: Argument
) -> list[Kernel]:
    """One kernel that concatenates the shards of a rank."""
    return _copy("foreach_copy", gpu_tensors(all_gather_inputs), gpu_tensors(all_gather_inputs))


@register_op("fsdp::split_with_sizes_copy")
def split_with_sizes_copy(
    call: OpSignature,
    *,
    all_gather_output: TensorSpec,
    out: tuple[TensorSpec, ...],
    **others: Argument,
) -> list[Kernel]:
    """One kernel that splits what was gathered into parameters."""
    return _copy("split_with_sizes_copy", (all_gather_output,), gpu_tensors(out))


@register_op("fsdp::chunk_cat")
def chunk_cat(
    call: OpSignature, *, tensors: tuple[TensorSpec, ...], out: TensorSpec, **others: Argument
) -> list[Kernel]:
    """One kernel that lays the gradients out by ranks, in the type in which they are reduced."""
    return _copy("chunk_cat", gpu_tensors(tensors), (out,))


def _copy(name: str, reads: tuple[TensorSpec, ...], writes: tuple[TensorSpec, ...]) -> list[Kernel]:
    return [memory_kernel(KernelClass.COPY, name, reads=reads, writes=writes)]
