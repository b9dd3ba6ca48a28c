"""The kernels that a serving engine launches for a model that was recorded eagerly, by patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neusight.predictors.kernel import (
    DTYPE_BYTES,
    AttentionSize,
    GemmSize,
    Kernel,
    KernelClass,
    RowsSize,
    size_of,
)
from neusight.serving.launches import (
    EXPERTS,
    SCAN,
    LaunchedKernel,
    expert_rows,
    is_plain_product,
)

#: Classes of the kernels between products that a compiler joins.
_POINTWISE = (KernelClass.ELEMENTWISE, KernelClass.COPY)
#: Kernels of an RMSNorm written in ops, after its square: mean, epsilon, reciprocal root.
_ROOT = ("rsqrt", "sqrt", "reciprocal")
#: Kernels of a norm until its root: mean, difference, square, mean, difference, sum, root.
_MOST_OF_NORM = 7
#: Kernels that change embeddings before the first layer. A mask may be of their size by chance.
_OF_EMBEDDINGS = ("add", "mul")
#: Kernels that write the cache in place, or place tokens in it.
_CACHE_WRITES = ("cat", "index_copy", "index_put", "copy")


def with_attention(
    launches: Sequence[LaunchedKernel], *, sequences: int = 1
) -> tuple[LaunchedKernel, ...]:
    """The same with attention that is written as products, softmax and products as one kernel, of
    so many sequences."""
    found: list[LaunchedKernel] = []
    at = 0
    while at < len(launches):
        end = _explicit_attention(launches, at)
        if end is None:
            found.append(launches[at])
            at += 1
            continue
        found.append(_as_attention(launches, at, end, sequences))
        at = end + 1
    return tuple(found)


#: Kernels between the two products of an attention at most: scale, mask, cap, casts.
_MOST_BETWEEN = 16


def _explicit_attention(launches: Sequence[LaunchedKernel], start: int) -> int | None:
    """Where the attention ends whose first product stands there."""
    scores = launches[start].kernel
    if not _is_batched(scores):
        return None
    has_softmax = False
    for at in range(start + 1, min(len(launches), start + 2 + _MOST_BETWEEN)):
        kernel = launches[at].kernel
        if kernel.kernel_class is KernelClass.SOFTMAX:
            has_softmax = True
        elif kernel.kernel_class is KernelClass.GEMM:
            return at if has_softmax and _is_batched(kernel) else None
        elif kernel.kernel_class not in (*_POINTWISE, KernelClass.REDUCTION):
            return None
    return None


def _is_batched(kernel: Kernel) -> bool:
    size = kernel.size
    return isinstance(size, GemmSize) and size.batch > 1 and kernel.name != EXPERTS


def _as_attention(
    launches: Sequence[LaunchedKernel], start: int, end: int, sequences: int
) -> LaunchedKernel:
    scores, values = launches[start].kernel, launches[end].kernel
    size, out = size_of(scores, GemmSize), size_of(values, GemmSize)
    heads = size.batch // sequences
    projections = (item.kernel for item in reversed(launches[:start]))
    # torch's math attention upcasts what the cache holds in the dtype of the projections
    dtype = next((one.dtype for one in projections if is_plain_product(one)), scores.dtype)
    kernel = Kernel.attention(
        sequences, heads, heads, size.m, size.n, size.k,
        causal=True, dtype=dtype, head_dim_v=out.n,
    )  # fmt: skip
    return launches[start]._replace(kernel=kernel)


#: Kernels before an attention among which the product is looked for that expands its cache.
_MOST_BEFORE = 48


def with_latent_attention(launches: Sequence[LaunchedKernel]) -> tuple[LaunchedKernel, ...]:
    """The same where keys and values are expanded from a latent vector of each cached token, in
    each step again: engines keep the latent vectors alone, multiply queries and results by the
    expansion instead, a problem for each head, and attend over the latent ones (DeepSeek-V2, arXiv
    2405.04434, section 2.1.2)."""
    found = list(launches)
    for at in range(len(found) - 1, -1, -1):
        expansion = _expansion_of(found, at)
        if expansion is not None:
            attention = found[at]
            queries, latent, results = _latent(found[expansion].kernel, attention.kernel)
            found[at : at + 1] = [
                attention._replace(kernel=latent),
                attention._replace(kernel=results),
            ]
            found[expansion] = found[expansion]._replace(kernel=queries)
    return tuple(found)


def _expansion_of(launches: Sequence[LaunchedKernel], at: int) -> int | None:
    """Where the product with a row for each token that the attention there reads is, if any."""
    size = launches[at].kernel.size
    if not isinstance(size, AttentionSize) or size.seq_q == size.seq_kv:
        return None
    for before in range(at - 1, max(-1, at - 1 - _MOST_BEFORE), -1):
        product = launches[before].kernel.size
        if isinstance(product, AttentionSize):
            return None
        if isinstance(product, GemmSize) and product.batch == 1:
            expands = product.n > size.heads * size.head_dim_v  # to values and parts of keys
            if product.m == size.batch * size.seq_kv and expands:
                return before
    return None


def _latent(expansion: Kernel, attention: Kernel) -> tuple[Kernel, Kernel, Kernel]:
    """The products with queries and results, and the attention between them."""
    product, size = size_of(expansion, GemmSize), size_of(attention, AttentionSize)
    rank, own = product.k, product.n // size.heads - size.head_dim_v
    tokens, dtype = size.batch * size.seq_q, expansion.dtype
    rotated = size.head_dim - own  # elements of a key that are not expanded
    latent = Kernel.attention(
        size.batch, size.heads, 1, size.seq_q, size.seq_kv, rank + rotated, causal=True,
        dtype=attention.dtype, head_dim_v=rank,
    )  # fmt: skip
    return (
        Kernel.gemm(tokens, rank, own, batch=size.heads, dtype=dtype),
        latent,
        Kernel.gemm(tokens, size.head_dim_v, rank, batch=size.heads, dtype=dtype),
    )


def joined_products(launches: Sequence[LaunchedKernel]) -> list[tuple[int, ...]]:
    """Positions of the products, those together that read the same tensor: siblings of one module
    with as many rows and columns, between which nothing computes what the later ones read."""
    found: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for at, launch in enumerate(launches):
        if at in taken or not is_plain_product(launch.kernel):
            continue
        group = [at, *_siblings(launches, at)]
        taken.update(group)
        found.append(tuple(group))
    return found


def _siblings(launches: Sequence[LaunchedKernel], first: int) -> Iterator[int]:
    start = launches[first]
    size = size_of(start.kernel, GemmSize)
    if not start.module:
        return
    for at in range(first + 1, len(launches)):
        other = launches[at]
        kernel = other.kernel
        if is_plain_product(kernel):
            like = size_of(kernel, GemmSize)
            if other.parent != start.parent or (like.m, like.k) != (size.m, size.k):
                return
            yield at
        elif not _may_lie_between(kernel, size):
            return


def _may_lie_between(kernel: Kernel, size: GemmSize) -> bool:
    """Not an attention, another kind of product, nor a residual sum of the products' input."""
    if kernel.kernel_class in (KernelClass.ATTENTION, KernelClass.GEMM):
        return False
    return not (kernel.name == "add" and _numel(kernel) == size.m * size.k and _reads_two(kernel))


def _numel(kernel: Kernel) -> int:
    size = kernel.size
    return size.rows * size.width if isinstance(size, RowsSize) else 0


def _reads_two(kernel: Kernel) -> bool:
    """Whether it reads two tensors as large as what it writes."""
    return kernel.bytes_read >= 2 * kernel.bytes_written


# -- an engine's kernels --------------------------------------------------------------------------


def engine_launches(
    launches: Sequence[LaunchedKernel], *, tokens: int, sequences: int = 1, merges: bool = True
) -> tuple[LaunchedKernel, ...]:
    """What vLLM's layers launch for the recorded ones: merged products, norms with the residual sum
    in them, rotary embedding, cache writes and activations as a kernel each. Without `merges`
    products stay as they are, as torch.compile leaves them.

    Masks, positions and tables of sines are made once, not in each step; attention reads the cache
    by pages and repeats no keys. `tokens` is how many enter, of `sequences` together.
    """
    whole = with_latent_attention(with_attention(launches, sequences=sequences))
    groups = joined_products(whole)
    if not merges:
        groups = [(at,) for group in groups for at in group]
    merged = {group[0]: _merged([whole[at] for at in group]) for group in groups}
    later = {at for group in groups for at in group[1:]}
    anchors = [
        at
        for at, launch in enumerate(whole)
        if at not in later
        and launch.kernel.kernel_class in (KernelClass.GEMM, KernelClass.ATTENTION)
    ]
    found: list[LaunchedKernel] = []
    before: LaunchedKernel | None = None
    start = 0
    for at in [*anchors, len(whole)]:
        between = [whole[item] for item in range(start, at) if item not in later]
        after = merged.get(at, whole[at]) if at < len(whole) else None
        span = _Span(before, between, after, tokens)
        found += _span_launches(span)
        if after is not None:
            if after.kernel.kernel_class is KernelClass.ATTENTION:
                after = _paged(after, between)
            found.append(after)
        before, start = after, at + 1
    return tuple(found)


def _merged(group: Sequence[LaunchedKernel]) -> LaunchedKernel:
    """One product with the columns of all."""
    first = group[0].kernel
    if len(group) == 1:
        return group[0]
    size = size_of(first, GemmSize)
    read_once = int(size.m * size.k * DTYPE_BYTES[first.dtype])
    kernels = [launch.kernel for launch in group]
    kernel = replace(
        first,
        size=size._replace(n=sum(size_of(kernel, GemmSize).n for kernel in kernels)),
        flops=sum(kernel.flops for kernel in kernels),
        bytes_read=sum(kernel.bytes_read for kernel in kernels) - (len(group) - 1) * read_once,
        bytes_written=sum(kernel.bytes_written for kernel in kernels),
    )
    return group[0]._replace(kernel=kernel)


class _Span(NamedTuple):
    """The kernels between two products, or attention, and what stands before and after them."""

    before: LaunchedKernel | None
    between: list[LaunchedKernel]
    after: LaunchedKernel | None
    tokens: int


def _span_launches(span: _Span) -> list[LaunchedKernel]:
    """The kernels of an engine between two products."""
    before = None if span.before is None else span.before.kernel
    after = None if span.after is None else span.after.kernel
    if before is None:
        return _opening(span.between)
    if after is not None and after.kernel_class is KernelClass.ATTENTION:
        return _before_attention(span)
    if after is not None and after.name == EXPERTS and before.name != EXPERTS:
        return _routing(span, after)
    between = span.between
    combined: list[LaunchedKernel] = []
    if before.name == EXPERTS and (after is None or after.name != EXPERTS):
        between, combined = _combining(span)
    if before.kernel_class is KernelClass.ATTENTION:  # written in the layout that is read next
        between = [item for item in between if item.kernel.kernel_class is not KernelClass.COPY]
    return [*combined, *_between_products(between, before)]


def _opening(between: list[LaunchedKernel]) -> list[LaunchedKernel]:
    """Embeddings and the first norm; positions, masks and tables are not made in each step."""
    kept: list[LaunchedKernel] = []
    widths = [
        _numel(item.kernel)
        for item in between
        if item.kernel.kernel_class is KernelClass.GATHER and "embedding" in item.kernel.name
    ]
    for piece in _pieces(between):
        first = piece[0]
        if len(piece) > 1 or first.kernel.kernel_class is KernelClass.NORMALIZATION:
            kept.append(_norm(piece, None))
        elif first.kernel.kernel_class is KernelClass.GATHER or (
            first.kernel.name in _OF_EMBEDDINGS and _numel(first.kernel) in widths
        ):
            kept.append(first)
    return kept


def _before_attention(span: _Span) -> list[LaunchedKernel]:
    """Norms of queries and keys, the rotary embedding, and the write of keys and values."""
    attention = span.after
    assert attention is not None
    size = size_of(attention.kernel, AttentionSize)
    kv_heads = cached_heads(attention, span.between)
    item = DTYPE_BYTES[attention.kernel.dtype]
    kept: list[LaunchedKernel] = []
    rotated = False
    for piece in _pieces(span.between):
        first = piece[0].kernel
        if len(piece) > 1 or first.kernel_class is KernelClass.NORMALIZATION:
            kept.append(_norm(piece, None))
        elif first.name in ("neg", "cos", "sin", "view_as_complex", "mul") and not rotated:
            rotated = _numel(first) >= span.tokens * size.head_dim // 2
    if rotated:
        moved = int(span.tokens * (size.heads + kv_heads) * size.head_dim * item)
        table = int(span.tokens * size.head_dim * item)
        kept.append(_rows("rotary", moved + table, moved, attention, item))
    written = int(span.tokens * kv_heads * (size.head_dim + size.head_dim_v) * item)
    kept.append(_rows("cache_write", written, written, attention, item))
    return kept


def _rows(name: str, read: int, written: int, like: LaunchedKernel, item: float) -> LaunchedKernel:
    """A kernel that passes over its tensors once, several elements at a time."""
    kernel = Kernel.rows(
        KernelClass.ELEMENTWISE, name, 1, int(written / item),
        dtype=like.kernel.dtype, bytes_read=read, bytes_written=written,
    )  # fmt: skip
    return LaunchedKernel(kernel, like.module)


def cached_heads(attention: LaunchedKernel, before: Sequence[LaunchedKernel]) -> int:
    """Heads of keys in the cache: those that are joined with the cache, as some models repeat keys
    for each query head before attention; else those that attention reads."""
    size = size_of(attention.kernel, AttentionSize)
    a_head = size.batch * size.seq_kv * size.head_dim
    for launch in reversed(before):  # after the rotary embedding, which joins halves as well
        numel = _numel(launch.kernel)
        is_write = launch.kernel.name in _CACHE_WRITES
        if is_write and numel and numel % a_head == 0 and numel // a_head < size.kv_heads:
            return numel // a_head
    return size.kv_heads


def _paged(attention: LaunchedKernel, between: Sequence[LaunchedKernel]) -> LaunchedKernel:
    """Attention over pages: keys are not repeated for the heads that share them."""
    size = size_of(attention.kernel, AttentionSize)
    kernel = Kernel.attention(
        size.batch, size.heads, cached_heads(attention, between), size.seq_q, size.seq_kv,
        size.head_dim, causal=True, dtype=attention.kernel.dtype, head_dim_v=size.head_dim_v,
    )  # fmt: skip
    return attention._replace(kernel=kernel)


def _routing(span: _Span, experts: Kernel) -> list[LaunchedKernel]:
    """From the router's scores to the experts: top-k of the softmax, and the experts' rows."""
    like = span.before
    assert like is not None
    rows = expert_rows(experts)
    scores = 4 * span.tokens * size_of(experts, GemmSize).batch
    topk = _rows("topk_softmax", scores, 8 * rows, like, DTYPE_BYTES[experts.dtype])
    align = _rows("align_experts", 8 * rows, 8 * rows, like, DTYPE_BYTES[experts.dtype])
    return [topk, align, align]


def _combining(span: _Span) -> tuple[list[LaunchedKernel], list[LaunchedKernel]]:
    """What follows the experts, and the kernel that adds their results up for each token."""
    assert span.before is not None
    experts = span.before.kernel
    rest = [item for item in span.between if item.module != span.before.module]
    item, width = DTYPE_BYTES[experts.dtype], size_of(experts, GemmSize).n
    read = int(expert_rows(experts) * width * item)
    combined = _rows("add_experts", read, int(span.tokens * width * item), span.before, item)
    return rest, [combined]


def _between_products(between: list[LaunchedKernel], before: Kernel) -> list[LaunchedKernel]:
    """Residual sums join the norm that follows, other pointwise kernels one another."""
    kept: list[LaunchedKernel] = []
    pointwise: list[LaunchedKernel] = []

    def join() -> None:
        if pointwise:
            kept.append(_joined(pointwise, before))
            pointwise.clear()

    for piece in _pieces(between):
        first = piece[0]
        kernel_class = first.kernel.kernel_class
        if len(piece) > 1 or kernel_class is KernelClass.NORMALIZATION:
            residual = pointwise.pop() if pointwise and _is_residual(pointwise[-1]) else None
            join()
            kept.append(_norm(piece, residual))
        elif kernel_class in _POINTWISE:
            if first.kernel.name != "grouped_gemm_setup":
                pointwise.append(first)
        else:
            join()
            kept.append(first._replace(is_unmatched=first.kernel.name != SCAN))
    join()
    return kept


def _is_residual(launch: LaunchedKernel) -> bool:
    return launch.kernel.name == "add" and _reads_two(launch.kernel)


def _joined(pointwise: Sequence[LaunchedKernel], before: Kernel) -> LaunchedKernel:
    """One kernel that reads what the product wrote, and the residual where it is added."""
    last = pointwise[-1].kernel
    if len(pointwise) == 1 and not isinstance(before.size, GemmSize):
        return pointwise[0]
    gated = _is_residual(pointwise[-1])
    read = before.bytes_written + (last.bytes_written if gated else 0)
    if not isinstance(before.size, GemmSize):
        read = sum(item.kernel.bytes_read - item.kernel.bytes_written for item in pointwise[:-1])
        read = max(last.bytes_written, read + last.bytes_read)
    kernel = replace(last, bytes_read=read, layout="contiguous")
    name = pointwise[0].kernel.name
    if len(pointwise) > 1:
        name += f"_{last.name}"
    return LaunchedKernel(replace(kernel, name=name), pointwise[0].module)


def _pieces(launches: Sequence[LaunchedKernel]) -> Iterator[list[LaunchedKernel]]:
    """Single kernels, and those of a norm that is written in ops together."""
    at = 0
    while at < len(launches):
        end = _norm_end(launches, at)
        yield list(launches[at:end])
        at = end


def _norm_end(launches: Sequence[LaunchedKernel], start: int) -> int:
    """Where the norm ends that begins there, of rows or of rows less their mean; the next kernel
    where none does."""
    at = start
    if launches[at].kernel.name == "copy" and at + 1 < len(launches):
        at += 1
    names = [item.kernel.name for item in launches[at : at + _MOST_OF_NORM]]
    centred = 2 if names[:2] == ["mean", "sub"] else 0  # a layer norm
    found = _variance_end(names, centred)
    if found is None:
        return start + 1
    square = launches[at + centred].kernel
    module = launches[at].module
    width = _numel(square)
    at += found
    while at < len(launches):
        kernel = launches[at].kernel
        is_scaling = kernel.name in ("mul", "copy") or (
            kernel.name == "add" and not _reads_two(kernel)
        )
        is_of_it = launches[at].module == module and _numel(kernel) <= width
        if not (is_scaling and is_of_it):
            break
        at += 1
    return at


def _variance_end(names: Sequence[str], at: int) -> int | None:
    """Behind a square, its mean, epsilon and the root; None where they do not stand there. What is
    scaled afterwards may be centred in between."""
    if at >= len(names) or not (names[at].startswith(("pow", "square")) or names[at] == "mul"):
        return None
    at += 1
    for expected in (("mean",), ("add",), _ROOT):
        at += at < len(names) and names[at] == "sub"
        if at >= len(names) or names[at] not in expected:
            return None
        at += 1
    return at


def _norm(piece: Sequence[LaunchedKernel], residual: LaunchedKernel | None) -> LaunchedKernel:
    """A norm as one kernel that passes over its rows once, with the residual sum before it in it:
    two tensors more, one read and one written. Of data/llm_layers (RTX 4090, vLLM) such kernels
    take what as many bytes of a pointwise kernel do, 2 us for up to 64 rows."""
    last = piece[-1].kernel
    moved = last.bytes_written
    name = last.name if len(piece) == 1 else "rms_norm"
    if len(piece) == 1:  # statistics for a backward are not written
        size = size_of(last, RowsSize)
        moved = int(size.rows * size.width * DTYPE_BYTES[last.out_dtype])
    read = written = moved
    if residual is not None:
        name, read, written = f"add_{name}", 2 * moved, 2 * moved
    item = DTYPE_BYTES[last.out_dtype]
    kernel = Kernel.rows(
        KernelClass.ELEMENTWISE, name, 1, int(moved / item),
        dtype=last.out_dtype, bytes_read=read, bytes_written=written,
    )  # fmt: skip
    return LaunchedKernel(kernel, piece[-1].module)
