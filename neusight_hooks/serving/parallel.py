"""A model's kernels on one of several GPUs that share each layer."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from neusight.predictors.errors import OptionError
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    AttentionSize,
    GemmSize,
    Kernel,
    KernelClass,
    RowsSize,
    size_of,
)
from neusight.serving.fusion import joined_products
from neusight.serving.launches import EXPERTS, SCAN, LaunchedKernel

#: The number of a layer in the path of a module.
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
#: What a stage sends for each token: the hidden state, and the residual beside it, which the first
#: norm of the next stage adds (vllm/model_executor/models/llama.py, `IntermediateTensors`).
_SENT_TENSORS = 2


def stages_of(
    launches: Sequence[LaunchedKernel], stages: int, *, tokens: int
) -> list[tuple[LaunchedKernel, ...]]:
    """The kernels of each stage of a pipeline: as many layers each as can be, the later stages one
    more, but not the last, which has the logits (vllm/distributed/utils.py, `get_pp_indices`);
    each but the first receives the hidden state. OptionError where there are fewer layers."""
    matches = [_NUMBER.search(launch.module) for launch in launches]
    layers = [None if match is None else int(match[1]) for match in matches]
    num_layers = 1 + max((layer for layer in layers if layer is not None), default=-1)
    if num_layers < stages:
        raise OptionError(
            f"--pp {stages} needs as many layers in a numbered list; the model has {num_layers}"
        )
    first_layers = _first_layers(num_layers, stages)
    found: list[list[LaunchedKernel]] = [[] for _ in range(stages)]
    stage = 0
    last = max(at for at, layer in enumerate(layers) if layer is not None)
    for at, launch in enumerate(launches):
        layer = layers[at]
        if at > last:
            stage = stages - 1
        elif layer is not None:
            stage = bisect_right(first_layers, layer) - 1
        found[stage].append(launch)
    hidden = next(
        item.kernel.size.k for item in reversed(launches) if isinstance(item.kernel.size, GemmSize)
    )
    for part in found[1:]:
        like = next(item for item in part if isinstance(item.kernel.size, GemmSize))
        num_bytes = int(_SENT_TENSORS * tokens * hidden * DTYPE_BYTES[like.kernel.out_dtype])
        part.insert(0, _collective("send_recv", num_bytes, like, 2))
    return [tuple(part) for part in found]


def _first_layers(num_layers: int, stages: int) -> list[int]:
    """The first layer of each stage.

    >>> _first_layers(10, 4)
    [0, 2, 5, 8]
    """
    counts = [num_layers // stages] * stages
    for at in range(num_layers % stages):
        counts[stages - 2 - at] += 1
    return list(accumulate([0, *counts[:-1]]))


def tensor_parallel(
    launches: Sequence[LaunchedKernel], ranks: int, *, expert_parallel: bool = False
) -> tuple[LaunchedKernel, ...]:
    """What one of `ranks` GPUs launches under tensor parallelism, as Megatron cuts layers: the
    products that read the hidden state by columns, those that write it by rows with an all-reduce
    after them, attention by heads, embedding and logits by words. `expert_parallel`: each GPU has
    its share of the experts whole, all taken to be chosen equally often. OptionError where heads
    or experts cannot be shared evenly.
    """
    if expert_parallel:
        _require_experts(launches, ranks)
    if ranks == 1:
        return tuple(launches)
    groups = joined_products(launches)
    first_of = {at: group[0] for group in groups for at in group}
    last_product = max((group[0] for group in groups), default=None)
    found: list[LaunchedKernel] = []
    is_cut = False
    column: int | None = None  # the group that cut the hidden state
    for at, launch in enumerate(launches):
        kernel = launch.kernel
        if kernel.kernel_class is KernelClass.ATTENTION:
            found.append(launch._replace(kernel=_fewer_heads(kernel, ranks)))
            is_cut = True
        elif kernel.name == SCAN:
            found.append(launch)
            is_cut = True
        elif isinstance(kernel.size, GemmSize):
            group, is_experts = first_of.get(at, at), kernel.name == EXPERTS
            if group == last_product:
                found.append(launch._replace(kernel=_by_columns(kernel, ranks)))
                found.append(_collective("all_gather", kernel.bytes_written, launch, ranks))
            elif kernel.size.n == 1 or is_router(launches, at) or _is_low_rank(launches, at):
                found.append(launch)
            elif kernel.size.batch > 1 and not is_experts:  # a problem for each head
                found.append(launch._replace(kernel=_share(kernel, ranks)))
            elif is_cut and group != column:
                cut = _share if expert_parallel and is_experts else _by_rows
                found.append(launch._replace(kernel=cut(kernel, ranks)))
                is_cut = False
                if not is_experts:
                    found.append(_collective("all_reduce", kernel.bytes_written, launch, ranks))
            else:
                cut = _share if expert_parallel and is_experts else _by_columns
                found.append(launch._replace(kernel=cut(kernel, ranks)))
                is_cut, column = True, group
        else:
            found.append(launch._replace(kernel=_share(kernel, ranks)) if is_cut else launch)
            if kernel.name in ("embedding", "add_experts"):
                found.append(_collective("all_reduce", kernel.bytes_written, launch, ranks))
    return tuple(found)


def _require_experts(launches: Sequence[LaunchedKernel], ranks: int) -> None:
    counts = {
        size_of(item.kernel, GemmSize).batch for item in launches if item.kernel.name == EXPERTS
    }
    if not counts:
        raise OptionError("--enable-expert-parallel: the model has no experts that are recognized")
    for count in counts:
        if count % ranks:
            raise OptionError(
                f"--enable-expert-parallel with --tp {ranks} does not share {count} experts "
                "evenly. Choose a divisor."
            )


#: Kernels after a router's product: what chooses experts.
_CHOOSING = ("topk_softmax", "softmax", "topk")
_LOOKAHEAD = 3


def is_router(launches: Sequence[LaunchedKernel], at: int) -> bool:
    """Whether the product there scores experts: what chooses among them follows."""
    following = launches[at + 1 : at + 1 + _LOOKAHEAD]
    return any(item.kernel.name in _CHOOSING for item in following) and not any(
        item.kernel.kernel_class is KernelClass.ATTENTION for item in following
    )


def _is_low_rank(launches: Sequence[LaunchedKernel], at: int) -> bool:
    """Whether the product only makes a few values, which a norm and then another product read: each
    rank computes all of them."""
    size = size_of(launches[at].kernel, GemmSize)
    following = launches[at + 1 : at + 1 + _LOOKAHEAD]
    if not following or following[0].kernel.name != "rms_norm":
        return False
    normed = size_of(following[0].kernel, RowsSize)
    is_normed = size.m * size.n / 2 <= normed.rows * normed.width <= size.m * size.n
    products = [item.kernel.kernel_class for item in following[1:]
                if not item.kernel.name.startswith("add_")]  # fmt: skip
    return is_normed and products[:1] == [KernelClass.GEMM]


def _collective(name: str, num_bytes: int, like: LaunchedKernel, ranks: int) -> LaunchedKernel:
    kernel = Kernel.collective(name, num_bytes, ranks, dtype=like.kernel.out_dtype)
    return LaunchedKernel(kernel, like.module)


def _by_columns(kernel: Kernel, ranks: int) -> Kernel:
    size = size_of(kernel, GemmSize)
    rows = int(size.batch * size.m * size.k * DTYPE_BYTES[kernel.dtype])
    weight = kernel.bytes_read - rows
    return replace(
        kernel,
        size=size._replace(n=-(-size.n // ranks)),
        flops=kernel.flops // ranks,
        bytes_read=rows + weight // ranks,
        bytes_written=kernel.bytes_written // ranks,
    )


def _by_rows(kernel: Kernel, ranks: int) -> Kernel:
    size = size_of(kernel, GemmSize)
    return replace(
        kernel,
        size=size._replace(k=-(-size.k // ranks)),
        flops=kernel.flops // ranks,
        bytes_read=kernel.bytes_read // ranks,
    )


def _fewer_heads(kernel: Kernel, ranks: int) -> Kernel:
    size = size_of(kernel, AttentionSize)
    if size.heads % ranks or (size.kv_heads % ranks and ranks % size.kv_heads):
        raise OptionError(
            f"--tp {ranks} does not share {size.heads} heads and {size.kv_heads} heads of keys "
            "evenly. Choose a divisor of both, or of the first and a multiple of the second."
        )
    return Kernel.attention(
        size.batch, size.heads // ranks, max(1, size.kv_heads // ranks), size.seq_q, size.seq_kv,
        size.head_dim, causal=size.causal, dtype=kernel.dtype, head_dim_v=size.head_dim_v,
        name=kernel.variant or "flash_attention",
    )  # fmt: skip


def _share(kernel: Kernel, ranks: int) -> Kernel:
    size = kernel.size
    if isinstance(size, RowsSize):
        if size.width % ranks == 0:
            size = size._replace(width=size.width // ranks)
        elif size.rows % ranks == 0:
            size = size._replace(rows=size.rows // ranks)
    elif isinstance(size, GemmSize):
        size = size._replace(batch=size.batch // ranks)
    return replace(
        kernel,
        size=size,
        flops=kernel.flops // ranks,
        bytes_read=kernel.bytes_read // ranks,
        bytes_written=kernel.bytes_written // ranks,
    )
