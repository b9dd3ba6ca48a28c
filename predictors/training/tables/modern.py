"""The modern tables: products, attention, collectives and rows in bf16, fp16 and fp8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass, Layout, Variant
from neusight.predictors.learned.features import BLOCK_SCALED, BY_ROW
from neusight.predictors.training.dataset import Bools, Group, Launches
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.tables.files import (
    DTYPES,
    DataFrame,
    Table,
    by_regime,
    group_of,
    grouped,
    regimes,
)


def quantisation(rows: int, width: int, *, by_row: bool) -> Kernel:
    """The kernel that turns bf16 activations into fp8 before an fp8 product: with a scale a row,
    which it finds first, or a scale for each 128 elements, which a warp finds on the way."""
    return Kernel.rows(
        KernelClass.NORMALIZATION if by_row else KernelClass.ELEMENTWISE,
        BY_ROW if by_row else "quantize_fp8_per_block",
        rows,
        width,
        dtype="bfloat16",
        out_dtype="float8_e4m3fn",
        bytes_read=2 * rows * width,
        bytes_written=rows * width,
    )


def _gemm_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    for (label, dtype), target, rows in grouped(frame, ("gpu", "dtype"), book, "gemm", left_out):
        name = DTYPES.get(dtype)
        if name is None or (name.startswith("float8") and "fp8" not in target.peak_tflops):
            left_out.append(f"gemm: {len(rows)} rows of {label}: no kernel for dtype {dtype}")
            continue
        is_fp8 = name.startswith("float8")
        group = group_of(
            rows,
            target,
            (label, "gemm", dtype, "gemm"),
            _products(rows, dtype, name),
            (rows["m"], rows["n"], rows["k"]),
            sustained=_TRANSPOSED[0] in rows.columns,  # hundreds of calls in a row
            parts_us=rows["act_quant_us"].to_numpy(dtype=np.float64)
            if is_fp8 and "act_quant_us" in rows.columns
            else None,
            is_model_shape=_is_aligned(rows),
        )
        yield from by_regime(group, regimes(rows))


def _products(rows: DataFrame, dtype: str, name: str) -> list[Launches]:
    if _TRANSPOSED[0] in rows.columns:
        return [(_column_major(*sizes, dtype=name),) for sizes in _tuples(rows, _BLAS)]
    is_block_scaled = dtype == "fp8_block128"
    return [
        _gemm_launches(*sizes, dtype=name, is_block_scaled=is_block_scaled)
        for sizes in _tuples(rows, ("m", "n", "k"))
    ]


#: What tables of BLAS calls say besides the sizes.
_TRANSPOSED = ("a_transposed", "b_transposed")
_BLAS = ("m", "n", "k", *_TRANSPOSED)


def _column_major(
    m: int, n: int, k: int, is_a_turned: bool, is_b_turned: bool, *, dtype: str
) -> Kernel:
    """The product of a BLAS call, C[m, n] = op(A) op(B) in columns: row by row it is that of
    op(B)ᵀ and op(A)ᵀ, whose rows are the columns of B and A."""
    layout: Layout = _ROW_MAJOR[bool(is_b_turned), bool(is_a_turned)]
    return Kernel.gemm(n, m, k, dtype=dtype, layout=layout)


#: Layouts in rows, by whether BLAS was given its second and its first operand turned.
_ROW_MAJOR: dict[tuple[bool, bool], Layout] = {
    (False, False): "nn",
    (False, True): "nt",
    (True, False): "tn",
    (True, True): "tt",
}


def _gemm_launches(m: int, n: int, k: int, *, dtype: str, is_block_scaled: bool) -> Launches:
    """A product; of FP8 after the quantisation of its activations."""
    if not dtype.startswith("float8"):
        return (Kernel.gemm(m, n, k, dtype=dtype),)
    name = BLOCK_SCALED if is_block_scaled else "gemm"
    product = Kernel.gemm(m, n, k, dtype=dtype, out_dtype="bfloat16", name=name)
    return quantisation(m, k, by_row=not is_block_scaled), product


def _tuples(rows: DataFrame, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[column].to_numpy().tolist() for column in columns), strict=True)


def _is_aligned(rows: DataFrame) -> Bools:
    """Layers as language models have them: both weight sizes 1024 and more, in steps of 128."""
    n, k = rows["n"].to_numpy(), rows["k"].to_numpy()
    aligned: Bools = (n % 128 == 0) & (k % 128 == 0) & (n >= 1024) & (k >= 1024)
    return aligned


def _attention_name(source: str, target: GPU) -> Variant:
    """The kernel's name as neusight has it, from the library's; by architecture where unsaid."""
    if "fa4" in source:
        return "flash_attention_4"
    if "fa3" in source:
        return "flash_attention_3"
    if "trtllm" in source or "flashinfer" in source or "cudnn" in source:
        return "cudnn_attention"
    if "fa2" in source or "flash_attn" in source or target.compute_capability[0] < 9:
        return "flash_attention"
    return "flash_attention_3" if target.compute_capability[0] == 9 else "cudnn_attention"


def _attention_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "phase")
    for (label, dtype, phase), target, rows in grouped(frame, keys, book, "attention", left_out):
        name = DTYPES.get(dtype)
        if name not in ("bfloat16", "float16"):
            left_out.append(f"attention: {len(rows)} rows of {label}: no kernel for {dtype}")
            continue
        rows = _without_windows(rows, f"{phase} rows of {label}", left_out)
        if not len(rows):
            continue
        sources = [""] * len(rows)
        if "kernel_source" in rows.columns:
            sources = rows["kernel_source"].fillna("").astype(str).tolist()
        launches = [
            _attention_launches(*sizes, phase=phase, dtype=name, source=source, target=target)
            for sizes, source in zip(_tuples(rows, _ATTENTION_SIZES), sources, strict=True)
        ]
        names = (label, "attention", dtype, phase)
        shape = [rows[name] for name in _ATTENTION_SIZES]
        group = group_of(rows, target, names, launches, shape)
        yield from by_regime(group, regimes(rows))


def _without_windows(rows: DataFrame, shown: str, left_out: list[str]) -> DataFrame:
    if "window" not in rows.columns or not (rows["window"] > 0).any():
        return rows
    windowed = rows["window"] > 0
    left_out.append(f"attention: {int(windowed.sum())} {shown}: no kernel has a sliding window yet")
    return rows[~windowed]


def _attention_launches(
    batch: int,
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_kv: float,
    head_dim: int,
    *,
    phase: str,
    dtype: str,
    source: str,
    target: GPU,
) -> Launches:
    """An attention, after what its library launches before."""
    sizes = (batch, heads, kv_heads, seq_q, int(seq_kv), head_dim)
    library = _attention_name(source, target)
    attention = Kernel.attention(
        *sizes, causal=phase == "prefill_causal", dtype=dtype, name=library
    )
    return *_around_attention(phase, batch, kv_heads, seq_q, head_dim, dtype, source), attention


def _around_attention(
    phase: str, batch: int, kv_heads: int, seq_q: int, head_dim: int, dtype: str, source: str
) -> Launches:
    """What serving libraries launch before an attention that reads its cache, and their rows hold:
    the new keys and values written into the cache, and FlashAttention-3's plan of the tiles."""
    if phase == "encoder_full":
        return ()
    tokens, width = batch * seq_q, 2 * kv_heads * head_dim
    moved = 2 * tokens * width
    cache = Kernel.rows(
        KernelClass.COPY,
        "reshape_and_cache",
        tokens,
        width,
        dtype=dtype,
        bytes_read=moved,
        bytes_written=moved,
    )
    if "fa3" not in source:
        return (cache,)
    plan = Kernel.elementwise("prepare_varlen_num_blocks", batch, dtype="int32")
    return cache, plan


_ATTENTION_SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")

_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send_recv": "send_recv",
}


def _collective_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "op")
    for (label, dtype, op), target, rows in grouped(frame, keys, book, "collectives", left_out):
        name = _COLLECTIVES.get(op)
        if name is None:
            left_out.append(f"collectives: {len(rows)} rows of {label}: {op} is not NCCL's")
            continue
        launches = _collective_launches(rows, name, DTYPES.get(dtype, "bfloat16"))
        shape = (rows["message_bytes"], rows["num_gpus"])
        group = group_of(rows, target, (label, "collectives", dtype, op), launches, shape)
        yield from _by_source(group, rows)


def _collective_launches(rows: DataFrame, name: str, dtype: str) -> list[Launches]:
    nodes = rows["num_nodes"].tolist() if "num_nodes" in rows.columns else [1] * len(rows)
    return [
        (Kernel.collective(name, size, ranks, dtype=dtype, num_nodes=hosts),)
        for (size, ranks), hosts in zip(
            _tuples(rows, ("message_bytes", "num_gpus")), nodes, strict=True
        )
    ]


def _by_source(group: Group, rows: DataFrame) -> Iterator[Group]:
    """The group in two: rows of a benchmark, and profiled ones, where there are any."""
    profiled = np.zeros(len(rows), dtype=np.bool_)
    if "source" in rows.columns:
        profiled |= rows["source"].astype(str).str.startswith(_WAITING_SOURCES).to_numpy()
    if not profiled.all():
        yield group.chosen(~profiled)
    if profiled.any():
        named = f"{group.phase_or_op} (profiled)"
        yield replace(group.chosen(profiled), phase_or_op=named, is_for_training=False)


#: Sources whose rows are profiled kernels of a running program: they hold the wait for the last
#: rank (60 MB over 8 A100: 0.4 to 15 ms), so nothing is fitted to them.
_WAITING_SOURCES = "vidur"

_ROW_CLASSES = {
    "rms_norm": KernelClass.NORMALIZATION,
    "layer_norm": KernelClass.NORMALIZATION,
    "quant_fp8_per_token": KernelClass.NORMALIZATION,
    "embedding": KernelClass.GATHER,
    "softmax": KernelClass.SOFTMAX,
}


def _memory_groups(frame: DataFrame, book: KnownGPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "op")
    for (label, dtype, op), target, rows in grouped(frame, keys, book, "memory_bound", left_out):
        first, _, last = dtype.partition("->")
        if first not in DTYPES:
            left_out.append(f"memory_bound: {len(rows)} rows of {label}: no dtype {dtype}")
            continue
        out_dtype = "float8_e4m3fn" if last.startswith("fp8") else DTYPES[first]
        launches = [
            (_row_kernel(op, *sizes, dtype=DTYPES[first], out_dtype=out_dtype),)
            for sizes in _tuples(rows, ("rows", "width", "bytes_moved"))
        ]
        names = (label, "memory_bound", dtype, op)
        yield group_of(rows, target, names, launches, (rows["rows"], rows["width"]))


def _row_kernel(
    op: str, rows: int, width: int, moved: int, *, dtype: str, out_dtype: str
) -> Kernel:
    """A kernel over rows that moves so many bytes, of which it writes its result."""
    out_bytes = 1 if out_dtype == "float8_e4m3fn" else 2
    written = min(rows * width * out_bytes, moved // 2)
    return Kernel.rows(
        _ROW_CLASSES.get(op, KernelClass.ELEMENTWISE),
        BY_ROW if op == "quant_fp8_per_token" else op,
        rows,
        width,
        dtype=dtype,
        out_dtype=out_dtype,
        layout="scalar" if op == "embedding" else "contiguous",  # torch before 2.8
        bytes_read=moved - written,
        bytes_written=written,
    )


MODERN_TABLES: dict[str, Table] = {
    "gemm": Table(("gpu", "dtype", "m", "n", "k", "latency_us"), ("m", "n", "k"), _gemm_groups),
    "attention": Table(
        ("gpu", "phase", "dtype", *_ATTENTION_SIZES, "latency_us"),
        _ATTENTION_SIZES,
        _attention_groups,
    ),
    "collectives": Table(
        ("gpu", "op", "dtype", "num_gpus", "message_bytes", "latency_us"),
        ("num_gpus", "message_bytes"),
        _collective_groups,
        least=0.0,
    ),
    "memory_bound": Table(
        ("gpu", "op", "dtype", "rows", "width", "bytes_moved", "latency_us"),
        ("rows", "width", "bytes_moved"),
        _memory_groups,
    ),
}
