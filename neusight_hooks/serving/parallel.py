"""A model's kernels on one of several GPUs that share each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neusight.predictors.errors import OptionError
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    AttentionSize,
    GemmSize,
    Kernel,
    KernelClass,
    RowsSize,
)
from neusight.serving.fusion import joined_products
from neusight.serving.launches import EXPERTS, LaunchedKernel

__all__ = ["is_router", "tensor_parallel"]


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
    last_product = max((group[0] for group in groups), default=-1)
    found: list[LaunchedKernel] = []
    is_cut = False
    column = -1  # the group that cut the hidden state
    for at, launch in enumerate(launches):
        kernel = launch.kernel
        if kernel.kernel_class is KernelClass.ATTENTION:
            found.append(launch._replace(kernel=_fewer_heads(kernel, ranks)))
            is_cut = True
        elif kernel.kernel_class is KernelClass.GEMM and isinstance(kernel.size, GemmSize):
            if first_of.get(at, at) == last_product:
                found.append(launch._replace(kernel=_by_columns(kernel, ranks)))
                found.append(_collective("all_gather", kernel.bytes_written, launch, ranks))
            elif is_router(launches, at) or _is_low_rank(launches, at):
                found.append(launch)
            elif kernel.size.batch > 1 and kernel.name != EXPERTS:  # a problem for each head
                found.append(launch._replace(kernel=_share(kernel, ranks)))
            elif is_cut and first_of.get(at, at) != column:
                cut = _share if expert_parallel and kernel.name == EXPERTS else _by_rows
                found.append(launch._replace(kernel=cut(kernel, ranks)))
                is_cut = False
                if kernel.name != EXPERTS:
                    found.append(_collective("all_reduce", kernel.bytes_written, launch, ranks))
            else:
                cut = _share if expert_parallel and kernel.name == EXPERTS else _by_columns
                found.append(launch._replace(kernel=cut(kernel, ranks)))
                is_cut, column = True, first_of.get(at, at)
        else:
            found.append(launch._replace(kernel=_share(kernel, ranks)) if is_cut else launch)
            if kernel.name in ("embedding", "add_experts"):
                found.append(_collective("all_reduce", kernel.bytes_written, launch, ranks))
    return tuple(found)


def _require_experts(launches: Sequence[LaunchedKernel], ranks: int) -> None:
    counts = {
        item.kernel.size.batch
        for item in launches
        if item.kernel.name == EXPERTS and isinstance(item.kernel.size, GemmSize)
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
    size = launches[at].kernel.size
    assert isinstance(size, GemmSize)
    following = launches[at + 1 : at + 1 + _LOOKAHEAD]
    if not following or following[0].kernel.name != "rms_norm":
        return False
    normed = following[0].kernel.size
    assert isinstance(normed, RowsSize)
    is_normed = size.m * size.n / 2 <= normed.rows * normed.width <= size.m * size.n
    products = [item.kernel.kernel_class for item in following[1:]
                if not item.kernel.name.startswith("add_")]  # fmt: skip
    return is_normed and products[:1] == [KernelClass.GEMM]


def _collective(name: str, num_bytes: int, like: LaunchedKernel, ranks: int) -> LaunchedKernel:
    kernel = Kernel.collective(name, num_bytes, ranks, dtype=like.kernel.out_dtype)
    return LaunchedKernel(kernel, like.module)


def _item(kernel: Kernel) -> float:
    return DTYPE_BYTES[kernel.dtype]


def _by_columns(kernel: Kernel, ranks: int) -> Kernel:
    size = kernel.size
    assert isinstance(size, GemmSize)
    rows = int(size.batch * size.m * size.k * _item(kernel))
    weight = kernel.bytes_read - rows
    return replace(
        kernel,
        size=size._replace(n=-(-size.n // ranks)),
        flops=kernel.flops // ranks,
        bytes_read=rows + weight // ranks,
        bytes_written=kernel.bytes_written // ranks,
    )


def _by_rows(kernel: Kernel, ranks: int) -> Kernel:
    size = kernel.size
    assert isinstance(size, GemmSize)
    return replace(
        kernel,
        size=size._replace(k=-(-size.k // ranks)),
        flops=kernel.flops // ranks,
        bytes_read=kernel.bytes_read // ranks,
    )


def _fewer_heads(kernel: Kernel, ranks: int) -> Kernel:
    size = kernel.size
    assert isinstance(size, AttentionSize)
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
