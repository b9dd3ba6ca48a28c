"""Collectives between GPUs: c10d, functional and symmetric-memory ops.

The number of ranks is read off shapes where they show it, else from the op's own argument, else
from the text that stands for the process group, which holds "size=8", "nodes=2" if there are
several, "per_node=8" for how many ranks a node holds, "ranks=0..7" for those of the group, and
"intra_node=1" where torch's own all-reduce is turned on (ENABLE_INTRA_NODE_COMM).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from neusight.ops.operands import (
    copy_kernel,
    fill_kernel,
    gpu_tensors,
    memory_kernel,
)
from neusight.ops.registry import register_op
from neusight.predictors.clusters.placement import ranks_from
from neusight.predictors.kernel import Kernel, KernelClass, Variant
from neusight.recording.recording import Argument, OpSignature, TensorSpec

_SIZE = re.compile(r"\bsize=(\d+)")
_INTRA_NODE = re.compile(r"\bintra_node=1(?!\S)")
_NODES = re.compile(r"\bnodes=(\d+)")
_PER_NODE = re.compile(r"\bper_node=([1-9]\d{0,5})(?!\S)")
#: Ranks, and ranges of them; no cluster has a million.
_RANK = r"\d{1,6}(?:\.\.\d{1,6}(?:/[1-9]\d{0,5})?)?"
_RANKS = re.compile(rf"\branks=({_RANK}(?:,{_RANK})*)(?!\S)")


def _group_text(call: OpSignature) -> str:
    for name in ("process_group", "group_name", "group", "hdl", "symm"):
        value = call.by_name.get(name)
        if isinstance(value, str):
            return value
    return ""


def _world_size(call: OpSignature) -> int:
    """The ranks of the group; ValueError where nothing says them."""
    for name in ("group_size", "process_group", "group_name"):
        size = call.by_name.get(name)
        if isinstance(size, int):
            return size
    found = _SIZE.search(_group_text(call))
    if found is None:
        raise ValueError(f"{call.op}: its process group does not state its size")
    return int(found.group(1))


def _place(call: OpSignature, num_ranks: int) -> dict[str, Any]:
    """Where that many ranks of the group lie, for `Kernel.collective`."""
    text = _group_text(call)
    nodes, per_node, ranks = (form.search(text) for form in (_NODES, _PER_NODE, _RANKS))
    place: dict[str, Any] = {"num_nodes": min(num_ranks, int(nodes.group(1)) if nodes else 1)}
    if ranks is not None and per_node is not None and ranks_from(ranks.group(1)):
        place |= {"ranks": ranks.group(1), "gpus_per_node": int(per_node.group(1))}
    return place


def _collective(
    call: OpSignature, name: str, tensors: tuple[TensorSpec, ...], world_size: int | None = None
) -> list[Kernel]:
    """One collective over all these tensors; none in a group of one."""
    ranks = _world_size(call) if world_size is None else world_size
    moved = sum(spec.num_bytes for spec in tensors)
    if ranks <= 1 or not moved:
        return []
    place = _place(call, ranks)
    return [Kernel.collective(name, moved, ranks, dtype=tensors[0].dtype, **place)]


#: Ops whose buffer is their tensors, as they are.
_IN_PLACE = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    "c10d::send": "send_recv",
    "c10d::recv_": "send_recv",
    "c10d::recv_any_source_": "send_recv",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
    "_c10d_functional::all_reduce_coalesced": "all_reduce",
    "_c10d_functional::all_reduce_coalesced_": "all_reduce",
    "_c10d_functional::broadcast": "broadcast",
    "_c10d_functional::broadcast_": "broadcast",
    "_c10d_functional::isend": "send_recv",
    "_c10d_functional::irecv": "send_recv",
    "symm_mem::multimem_all_reduce_": "all_reduce",
    "symm_mem::multimem_one_shot_all_reduce": "all_reduce",
    "symm_mem::one_shot_all_reduce": "all_reduce",
    "symm_mem::two_shot_all_reduce_": "all_reduce",
}
_DIRECT: dict[str, Variant] = {
    "symm_mem::one_shot_all_reduce": "one_shot",
    "symm_mem::two_shot_all_reduce_": "two_shot",
}

#: What torch's own all-reduce takes: sums of these types, in one shot and in two up to so many
#: bytes (c10d/symm_mem/intra_node_comm.cu, selectAllReduceAlgo).
_INTRA_NODE_DTYPES = ("bfloat16", "float32")
_INTRA_NODE_BYTES: tuple[tuple[int, Variant], ...] = (
    (256 * 2**10, "one_shot"), (10 * 2**20, "two_shot"),
)  # fmt: skip


@register_op(*_IN_PLACE)
def same_buffer(
    call: OpSignature,
    *,
    tensors: tuple[TensorSpec, ...] = (),
    inputs: tuple[TensorSpec, ...] = (),
    input: tuple[TensorSpec, ...] = (),
    tensor: tuple[TensorSpec, ...] = (),
    **others: Argument,
) -> list[Kernel]:
    """A collective whose buffer is its input; out-of-place functional forms copy first."""
    tensors = gpu_tensors(tensors or inputs or input or tensor)
    kind = _IN_PLACE[call.op]
    copies: list[Kernel] = []
    if call.op.startswith("_c10d_functional::all_reduce") and not call.op.endswith("_"):
        copies = [k for spec in tensors for k in copy_kernel(spec, spec)]
    world_size = 2 if kind == "send_recv" else None  # a pair, however large the group
    kernels = _collective(call, kind, tensors, world_size)
    if kind == "all_reduce" and kernels:
        kernels = _reading_directly(call, kernels[0], tensors)
    return copies + kernels if kernels else copies


def _reading_directly(
    call: OpSignature, kernel: Kernel, tensors: tuple[TensorSpec, ...]
) -> list[Kernel]:
    """The all-reduce as one in which ranks read each other's memory, if it is one; torch's own
    copies its input there first, and in two shots the sum back."""
    if call.op in _DIRECT:
        return [replace(kernel, variant=_DIRECT[call.op])]
    is_sum = call.by_name.get("reduce_op") == "sum"
    found = (name for most, name in _INTRA_NODE_BYTES if kernel.bytes_read <= most)
    variant: Variant = next(found, "")
    is_taken = is_sum and len(tensors) == 1 and kernel.dtype in _INTRA_NODE_DTYPES
    if not (variant and is_taken and _INTRA_NODE.search(_group_text(call))):
        return [kernel]
    copy = copy_kernel(tensors[0], tensors[0])
    direct = replace(kernel, variant=variant)
    return [*copy, direct, *(copy if variant == "two_shot" else [])]


@register_op("_c10d_functional::batch_p2p_ops")
def transfers(
    call: OpSignature, *, op_list: Argument, tensors: tuple[TensorSpec, ...], **others: Argument
) -> list[Kernel]:
    """One kernel for all of a batch; a link carries both directions at once."""
    kinds = op_list if isinstance(op_list, tuple) else ()
    sent = tuple(s for kind, s in zip(kinds, tensors, strict=True) if kind == "isend")
    received = tuple(s for kind, s in zip(kinds, tensors, strict=True) if kind != "isend")
    larger = max(sent, received, key=lambda specs: sum(spec.num_bytes for spec in specs))
    return _collective(call, "send_recv", larger, 2)


def _ratio(large: tuple[TensorSpec, ...], small: tuple[TensorSpec, ...]) -> int | None:
    """How many ranks' shares the large buffer holds."""
    share = sum(spec.numel for spec in small)
    return max(1, sum(spec.numel for spec in large) // share) if share else None


@register_op(
    "c10d::_allgather_base_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::_reduce_scatter_base_",
    "c10d::reduce_scatter_tensor_coalesced_",
)
def flat_buffers(
    call: OpSignature,
    *,
    output_tensor: tuple[TensorSpec, ...] = (),
    input_tensor: tuple[TensorSpec, ...] = (),
    outputs: tuple[TensorSpec, ...] = (),
    inputs: tuple[TensorSpec, ...] = (),
) -> list[Kernel]:
    """An all-gather into one tensor, or a reduce-scatter of one."""
    large, small = gpu_tensors(output_tensor + outputs), gpu_tensors(input_tensor + inputs)
    if "reduce_scatter" in call.op:
        return _collective(call, "reduce_scatter", small, _ratio(small, large))
    return _collective(call, "all_gather", large, _ratio(large, small))


@register_op("c10d::allgather_", "c10d::allgather_coalesced_")
def all_gather_list(
    call: OpSignature,
    *,
    output_tensors: tuple[TensorSpec, ...] = (),
    input_tensors: tuple[TensorSpec, ...] = (),
    output_lists: tuple[TensorSpec, ...] = (),
    input_list: tuple[TensorSpec, ...] = (),
) -> list[Kernel]:
    """An all-gather into a flat buffer, then a copy a rank."""
    outputs = gpu_tensors(output_tensors + output_lists)
    inputs = gpu_tensors(input_tensors + input_list)
    kernels = _collective(call, "all_gather", outputs, _ratio(outputs, inputs))
    return kernels + [k for spec in outputs for k in copy_kernel(spec, spec) if kernels]


@register_op(
    "_c10d_functional::all_gather_into_tensor",
    "_c10d_functional::all_gather_into_tensor_coalesced",
    "_c10d_functional::all_gather_into_tensor_out",
    "_c10d_functional_autograd::all_gather_into_tensor",
    "symm_mem::multimem_all_gather_out",
)
def all_gather_functional(call: OpSignature) -> list[Kernel]:
    """An all-gather into a new tensor."""
    return _collective(call, "all_gather", gpu_tensors(call.output_tensors))


@register_op("c10d::reduce_scatter_")
def reduce_scatter_list(
    call: OpSignature,
    *,
    output_tensors: tuple[TensorSpec, ...],
    input_tensors: tuple[TensorSpec, ...],
) -> list[Kernel]:
    """A copy a rank into a flat buffer, then a reduce-scatter."""
    inputs, outputs = gpu_tensors(input_tensors), gpu_tensors(output_tensors)
    kernels = _collective(call, "reduce_scatter", inputs, _ratio(inputs, outputs))
    return [k for spec in inputs for k in copy_kernel(spec, spec) if kernels] + kernels


@register_op(
    "_c10d_functional::reduce_scatter_tensor",
    "_c10d_functional::reduce_scatter_tensor_coalesced",
    "_c10d_functional::reduce_scatter_tensor_out",
    "_c10d_functional_autograd::reduce_scatter_tensor",
    "symm_mem::reduce_scatter_out",
)
def reduce_scatter_functional(
    call: OpSignature,
    *,
    input: tuple[TensorSpec, ...] = (),
    inputs: tuple[TensorSpec, ...] = (),
    **others: Argument,
) -> list[Kernel]:
    """A reduce-scatter into a new tensor."""
    return _collective(call, "reduce_scatter", gpu_tensors(input + inputs))


@register_op(
    "c10d::alltoall_base_",
    "c10d::alltoall_",
    "_c10d_functional::all_to_all_single",
    "_c10d_functional_autograd::all_to_all_single",
    "symm_mem::nvshmem_all_to_all",
)
def all_to_all(
    call: OpSignature,
    *,
    input: tuple[TensorSpec, ...] = (),
    input_split_sizes: tuple[int, ...] = (),
    input_tensors: tuple[TensorSpec, ...] = (),
    **others: Argument,
) -> list[Kernel]:
    """An exchange of every rank's shares."""
    ranks = len(input_tensors) or len(input_split_sizes)
    return _collective(call, "all_to_all", gpu_tensors(input + input_tensors), ranks or None)


@register_op("c10d::gather_", "c10d::scatter_")
def gather_scatter(
    call: OpSignature,
    *,
    output_tensors: tuple[TensorSpec, ...],
    input_tensors: tuple[TensorSpec, ...],
) -> list[Kernel]:
    """Shares to or from one rank; the other ranks know only their own."""
    kind = "gather" if call.op == "c10d::gather_" else "scatter"
    large, small = gpu_tensors(output_tensors), gpu_tensors(input_tensors)
    if kind == "scatter":
        large, small = small, large
    if large:
        return _collective(call, kind, large, _ratio(large, small))
    ranks = _world_size(call)
    return _collective(call, kind, small * ranks, ranks)


@register_op("c10d::barrier", "c10d::monitored_barrier_")
def barrier(call: OpSignature, *, tensor: TensorSpec) -> list[Kernel]:
    """An all-reduce of one element, as ProcessGroupNCCL does it."""
    one = TensorSpec((1,), (1,), "float32", tensor.device)
    kernels = _collective(call, "all_reduce", (one,))
    return fill_kernel(one) + kernels if kernels else []


@register_op("c10d::check_for_nan")
def check_for_nan(call: OpSignature, *, tensor: TensorSpec) -> list[Kernel]:
    """One pass."""
    return [memory_kernel(KernelClass.REDUCTION, "check_for_nan", reads=(tensor,))]


@register_op(
    "_c10d_functional::wait_tensor", "c10d::wait", "symm_mem::_barrier", "symm_mem::_rendezvous"
)
def wait(call: OpSignature) -> list[Kernel]:
    """The stream waits; nothing is launched."""
    return []
