"""How much of its scores a flex attention computes, found while Inductor lowers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neusight.fake_cuda.compiling.rules.constants import OnCPU
from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastMode

#: The name under which a template's kernel carries what is known of its attention.
_OPTION = "NEUSIGHT_ATTENTION"

#: Scores of a mask that are computed to find its blocks; of larger masks only some in each block.
#: A limit for the sake of time: half a second on one core.
_MAX_SCORES = 2**24

#: Blocks kept, and all, of a mask that rests on values which are not known while it is compiled.
_UNKNOWN = (0, 0)

#: Of them it is taken to keep as many as a causal one.
_UNKNOWN_SHARE = (1, 2)


class FlexAttention(NamedTuple):
    """An attention with a block mask: `num_visible` of `num_blocks` blocks of scores are kept.
    All are numbers, `is_backward` 0 or 1, as a template's constants are."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    num_visible: int
    num_blocks: int
    is_backward: int


def install_flex_attention(patches: Patches, mode: ForecastMode) -> None:
    """Its kernels say their sizes, and how many blocks of their mask they visit."""
    import torch._inductor.kernel.flex.flex_attention  # registers the lowerings
    from torch._inductor.lowering import lowerings

    higher_order: Any = torch.ops.higher_order
    for op, is_backward in (
        (higher_order.flex_attention, False),
        (higher_order.flex_attention_backward, True),
    ):
        patches.put(lowerings, op, _recording(lowerings[op], is_backward=is_backward))
    _install_tracing(patches, mode)


def _install_tracing(patches: Patches, mode: ForecastMode) -> None:
    """What torch traces of a score function, to run it eager, is nothing that the program does."""
    module: Any = import_module("torch._higher_order_ops.flex_attention")
    trace: Callable[..., Any] = module.create_fw_bw_graph

    def create_fw_bw_graph(*args: Any, **kwargs: Any) -> Any:
        with mode.inside(), mode:
            return trace(*args, **kwargs)

    patches.set(module, "create_fw_bw_graph", create_fw_bw_graph)


def attention_of(kernel: Any) -> tuple[int, ...]:
    """What the kernel of a template carries; nothing if it is another one."""
    return tuple(getattr(kernel, "meta", {}).get(_OPTION, ()))


def with_mask_known(warn: Callable[[str], None], attention: FlexAttention) -> FlexAttention:
    """The attention, with the usual share of blocks and a warning where its mask is not known."""
    if attention.num_blocks:
        return attention
    warn(
        "flex_attention whose mask reads tensors is forecast with half of its blocks: their values "
        "are not known"
    )
    visible, blocks = _UNKNOWN_SHARE
    return attention._replace(num_visible=visible, num_blocks=blocks)


def _recording(lower: Callable[..., Any], *, is_backward: bool) -> Callable[..., Any]:
    def recorded(*args: Any) -> Any:
        query, key, value = args[:3]
        mask, options = args[9:12:2] if is_backward else args[4:7:2]
        sizes = [tuple(map(number_of, tensor.get_size())) for tensor in (query, key, value)]
        visible = _visible(mask, has_buffers=bool(args[-1]))
        attention = _attention(sizes, visible, is_backward=is_backward)
        recorded_options = {**options, _OPTION: tuple(map(int, attention))}
        return lower(*(recorded_options if arg is options else arg for arg in args))

    return recorded


def _attention(
    sizes: list[tuple[int, ...]], visible: tuple[int, int], *, is_backward: bool
) -> FlexAttention:
    (batch, heads, seq_q, head_dim), (_, kv_heads, seq_kv, _), (*_, head_dim_v) = sizes
    return FlexAttention(
        batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v, *visible, is_backward
    )


def number_of(size: Any) -> int:
    """The number, or the one that stands for it while sizes are symbols."""
    from torch._inductor.virtualized import V

    return int(V.graph.sizevars.optimization_hint(size, fallback=1))


def _visible(mask: tuple[Any, ...], *, has_buffers: bool) -> tuple[int, int]:
    """How many blocks of a mask are visited, and how many it has."""
    seq_q, seq_kv = map(number_of, mask[:2])
    *_, block_q, block_kv, graph = mask
    batch, heads = (number_of(size) for size in mask[2].get_size()[:2])
    if has_buffers:
        return _UNKNOWN
    sizes = (batch, heads, seq_q, seq_kv)
    with _disable_current_modes(), OnCPU():  # type: ignore[no-untyped-call, unused-ignore]
        return visible_blocks(graph.graph_module, sizes, (int(block_q), int(block_kv)))


def visible_blocks(
    mask: Callable[..., Any], sizes: tuple[int, int, int, int], block: tuple[int, int]
) -> tuple[int, int]:
    """Blocks in which the mask keeps a score, and all blocks, for `sizes` (batch, heads, queries,
    keys).

    >>> visible_blocks(lambda b, h, q, k: q >= k, (1, 1, 512, 512), (128, 128))
    (10, 16)
    """
    batch, heads, seq_q, seq_kv = sizes
    block_q, block_kv = min(block[0], seq_q), min(block[1], seq_kv)
    step = 1
    while batch * heads * seq_q * seq_kv > _MAX_SCORES * step**2 and step < min(block_q, block_kv):
        step *= 2
    b = torch.arange(batch).view(-1, 1, 1, 1)
    h = torch.arange(heads).view(1, -1, 1, 1)
    columns = torch.tensor(list(_places(seq_kv, block_kv, step)))
    num_rows, num_columns = -(-seq_q // block_q), -(-seq_kv // block_kv)
    visible = 0
    for row in range(num_rows):
        rows = torch.tensor(list(_places(min(seq_q, (row + 1) * block_q), block_q, step, row)))
        kept = mask(b, h, rows.view(1, 1, -1, 1), columns.view(1, 1, 1, -1))
        kept = kept.expand(batch, heads, len(rows), len(columns)).any(2)
        found = torch.zeros(batch, heads, num_columns, dtype=torch.bool)
        found.index_put_(
            (b[..., 0], h[..., 0], (columns // block_kv).view(1, 1, -1)), kept, accumulate=True
        )
        visible += int(found.sum())
    return visible, batch * heads * num_rows * num_columns


def _places(length: int, block: int, step: int, first: int = 0) -> Iterator[int]:
    """Every `step`-th place of each block, and its last one."""
    for start in range(first * block, length, block):
        end = min(length, start + block)
        yield from range(start, end - 1, step)
        yield end - 1
