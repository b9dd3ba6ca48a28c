"""Dimensionless features of a kernel on a GPU: what the corrections see, and all that they see.

Sizes, remainders, and ratios of the physics' own terms. No hardware figure and no GPU's name, so
that what is fitted on one GPU means the same on another. Always at burst clocks: one factor serves
burst and sustained. A column's name stands beside the function that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel, KernelClass
from neusight.predictors.learned.network import log_of
from neusight.predictors.physics.attention import exponentials_per_clock
from neusight.predictors.physics.gemm import (
    GemmProblems,
    GemmTerms,
    constants_of,
    gemm_terms,
    problems_of,
)
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.power import filled_in
from neusight.predictors.physics.roofline import wire_bytes
from neusight.predictors.physics.tile import Candidates

Floats = NDArray[np.float64]

#: What the columns of a family are computed from: kernels and their physics, as arrays.
Seen = TypeVar("Seen")

#: Name of FP8 products with a scale for each 128 x 128 block (DeepGEMM), a library of their own.
BLOCK_SCALED = "gemm_block_scaled"

#: Name of the kernel that quantises activations to FP8 with a scale a row.
BY_ROW = "quantize_fp8_per_token"

#: Tiles whose waves are features whatever tile the physics chose: libraries choose otherwise.
_PROBED_TILES = ((128, 128), (128, 256), (256, 128), (64, 64), (64, 256))

#: A term below this share of the time is as good as none.
_LEAST_SHARE = 1e-3

#: Waves of an empty problem, so that their logarithm exists.
_LEAST_WAVES = 1e-3

#: Bytes per clock of the CTA that owns a row, at which `log_row_share` is stated.
_ROW_BYTES = 24.0

#: Elements of a row up to which softmax keeps it in a warp's registers (PersistentSoftmax.cuh).
_NARROW_ROW = 1024


@dataclass(frozen=True)
class Features(Generic[Seen]):
    """The features of a family of kernels: columns, each a name and how it is computed."""

    columns: tuple[tuple[str, Callable[[Seen], Floats]], ...]
    seen_of: Callable[[Sequence[Kernel], Sequence[PhysicalTime], GPU], Seen]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(name for name, _ in self.columns)

    def table(self, kernels: Sequence[Kernel], times: Sequence[PhysicalTime], gpu: GPU) -> Floats:
        """One row a kernel, one column a feature; all kernels compute on the same unit."""
        seen = self.seen_of(kernels, times, gpu)
        columns = [compute(seen).reshape(len(kernels), 1) for _, compute in self.columns]
        table: Floats = np.concatenate(columns, axis=1)
        return table


def log_of_counts(values: Floats) -> Floats:
    """Logarithm of counts, at least of one."""
    return log_of(np.maximum(values, 1.0))


def _share(term: Floats | float, time: Floats) -> Floats:
    """Logarithm of the share of the time that a term is."""
    return log_of(np.maximum(term / time, _LEAST_SHARE))


def _fill(values: Floats, step: Floats | float) -> Floats:
    """How much of the steps that they begin the values fill, up to 1."""
    filled: Floats = values / (np.ceil(values / step) * step)
    return filled


def flags(values: Iterable[bool]) -> Floats:
    """1 where it is so, 0 elsewhere."""
    return np.array([*values], dtype=np.float64)


# -- matrix products -----------------------------------------------------------------------------


class _Products(NamedTuple):
    """Products under the tile that the physics chose, and under each probed one."""

    kernels: Sequence[Kernel]
    problems: GemmProblems
    tiles: Candidates
    terms: GemmTerms
    time: Floats
    probes: GemmTerms
    probe_time: Floats
    l2_bytes: int


def _products_of(
    kernels: Sequence[Kernel],
    times: Sequence[PhysicalTime],
    gpu: GPU,
    *,
    is_convolution: bool = False,
) -> _Products:
    compute = kernels[0].compute
    constants = constants_of(gpu, compute, is_convolution=is_convolution)
    problems = problems_of([_as_measured(kernel) for kernel in kernels], gpu)
    chosen = np.array(
        [(*(time.tile or (128, 128)), time.split_k) for time in times], dtype=np.float64
    ).reshape(len(times), 3)
    tiles = Candidates(chosen[:, 0:1], chosen[:, 1:2], chosen[:, 2:3])
    terms = gemm_terms(problems, tiles, gpu, compute, constants=constants)
    probed = np.array(_PROBED_TILES, dtype=np.float64).T
    probe_tiles = Candidates(probed[0:1], probed[1:2], np.ones((1, len(_PROBED_TILES))))
    probes = gemm_terms(problems, probe_tiles, gpu, compute, constants=constants)
    return _Products(
        kernels=kernels,
        problems=problems,
        tiles=tiles,
        terms=terms,
        time=terms.time_us(),
        probes=probes,
        probe_time=probes.time_us(),
        l2_bytes=gpu.l2_bytes,
    )


def _as_measured(kernel: Kernel) -> Kernel:
    """A weight gradient ("tn") as the tables know products: the second operand a weight, cold in
    the L2. No table has one without, and the networks take that for something slow: 8192 cubed
    in BF16 came out 26 % slower on A100 and 19 % on H100 than with a weight."""
    is_gradient = kernel.layout == "tn" and isinstance(kernel.size, GemmSize)
    return replace(kernel, layout="nt") if is_gradient else kernel


def _per_l2(num_bytes: Floats, seen: _Products) -> Floats:
    return log_of(np.maximum(num_bytes, 1.0) / seen.l2_bytes)


def _waves(terms: GemmTerms) -> Floats:
    return np.maximum(terms.waves, _LEAST_WAVES)


def _probe_columns(
    name: str, compute: Callable[[_Products], Floats]
) -> tuple[tuple[str, Callable[[_Products], Floats]], ...]:
    """One column a probed tile, of a table that has one."""

    def column(index: int) -> Callable[[_Products], Floats]:
        return lambda seen: compute(seen)[:, index]

    return tuple(
        (f"{name}_{tile_m}x{tile_n}", column(index))
        for index, (tile_m, tile_n) in enumerate(_PROBED_TILES)
    )


_GEMM_COLUMNS: tuple[tuple[str, Callable[[_Products], Floats]], ...] = (
    ("log_m", lambda seen: log_of_counts(seen.problems.m)),
    ("log_n", lambda seen: log_of_counts(seen.problems.n)),
    ("log_k", lambda seen: log_of_counts(seen.problems.k)),
    ("m_mod_8", lambda seen: np.mod(seen.problems.m, 8) / 8),
    ("m_mod_64", lambda seen: np.mod(seen.problems.m, 64) / 64),
    ("m_mod_128", lambda seen: np.mod(seen.problems.m, 128) / 128),
    ("n_mod_8", lambda seen: np.mod(seen.problems.n, 8) / 8),
    ("n_mod_64", lambda seen: np.mod(seen.problems.n, 64) / 64),
    ("n_mod_256", lambda seen: np.mod(seen.problems.n, 256) / 256),
    ("k_mod_8", lambda seen: np.mod(seen.problems.k, 8) / 8),
    ("k_mod_64", lambda seen: np.mod(seen.problems.k, 64) / 64),
    ("log_tile_m", lambda seen: log_of(seen.tiles.tile_m)),
    ("log_tile_n", lambda seen: log_of(seen.tiles.tile_n)),
    ("log_split", lambda seen: log_of(seen.tiles.split)),
    ("fill_m", lambda seen: _fill(np.maximum(seen.problems.m, 1.0), seen.tiles.tile_m)),
    ("fill_n", lambda seen: _fill(np.maximum(seen.problems.n, 1.0), seen.tiles.tile_n)),
    ("log_waves", lambda seen: log_of(_waves(seen.terms))),
    ("wave_fill", lambda seen: _fill(_waves(seen.terms), 1.0)),
    (
        "log_footprint_per_l2",
        lambda seen: _per_l2(seen.problems.weight_bytes + seen.problems.activation_bytes, seen),
    ),
    ("log_weights_per_l2", lambda seen: _per_l2(seen.problems.weight_bytes, seen)),
    ("log_activations_per_l2", lambda seen: _per_l2(seen.problems.activation_bytes, seen)),
    ("log_floor_share", lambda seen: _share(seen.terms.floor_us, seen.time)),
    ("log_ctas_share", lambda seen: _share(seen.terms.ctas_us, seen.time)),
    ("log_math_share", lambda seen: _share(seen.terms.math_us, seen.time)),
    ("log_l2_share", lambda seen: _share(seen.terms.l2_us, seen.time)),
    ("log_dram_share", lambda seen: _share(seen.terms.dram_us, seen.time)),
    ("log_stages_share", lambda seen: _share(seen.terms.stages_us, seen.time)),
    ("log_split_share", lambda seen: _share(seen.terms.split_us, seen.time)),
    *_probe_columns("log_waves", lambda seen: log_of(_waves(seen.probes))),
    *_probe_columns("wave_fill", lambda seen: _fill(_waves(seen.probes), 1.0)),
    *_probe_columns("log_time", lambda seen: log_of(seen.probe_time / seen.time)),
    ("block_scaled", lambda seen: flags(item.name == BLOCK_SCALED for item in seen.kernels)),
)

GEMM_FEATURES = Features(_GEMM_COLUMNS, _products_of)


def _batch(seen: _Products) -> Floats:
    return np.maximum(seen.problems.batch, 1.0)


#: FP32 products: batched ones (bmm) too.
FP32_GEMM_FEATURES = Features(
    (
        *_GEMM_COLUMNS,
        ("log_batch", lambda seen: log_of(_batch(seen))),
        ("is_batched", lambda seen: np.where(_batch(seen) > 1, 1.0, 0.0)),
    ),
    _products_of,
)


# -- rows ----------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Kernels over whole rows."""

    kernels: Sequence[Kernel]
    rows: Floats
    width: Floats
    moved: Floats
    read: Floats
    time: Floats
    gpu: GPU

    @property
    def rows_per_sm(self) -> Floats:
        """Rows that each SM gets."""
        return self.rows / self.gpu.num_sms


def _rows_of(kernels: Sequence[Kernel], times: Sequence[PhysicalTime], gpu: GPU) -> _Rows:
    table = np.array(
        [(*kernel.size, kernel.num_bytes, kernel.bytes_read) for kernel in kernels],
        dtype=np.float64,
    )
    rows, width, moved, read = (np.maximum(column, 1.0) for column in table.T)
    return _Rows(kernels, rows, width, moved, read, np.array([t.time_us for t in times]), gpu)


def _row_share(seen: _Rows) -> Floats:
    clock = seen.gpu.clock_hz * 1e-6
    row_us = np.maximum(1.0, seen.rows_per_sm) * seen.read / seen.rows / (_ROW_BYTES * clock)
    return log_of(row_us / seen.time)


_ROW_SHARES: tuple[tuple[str, Callable[[_Rows], Floats]], ...] = (
    ("log_rows_per_sm", lambda seen: log_of(seen.rows_per_sm)),
    ("rows_fill", lambda seen: seen.rows_per_sm / np.ceil(seen.rows_per_sm)),
    ("log_bytes_per_l2", lambda seen: log_of(seen.moved / seen.gpu.l2_bytes)),
    ("log_floor_share", lambda seen: log_of(seen.gpu.floor_us / seen.time)),
    ("log_dram_share", lambda seen: log_of(seen.moved / seen.gpu.dram_bytes_per_us / seen.time)),
    ("log_row_share", _row_share),
)

#: Activations quantised to FP8.
QUANTISATION_FEATURES: Features[_Rows] = Features(
    (
        ("log_rows", lambda seen: log_of(seen.rows)),
        ("log_width", lambda seen: log_of(seen.width)),
        ("width_mod_512", lambda seen: np.mod(seen.width, 512) / 512),
        *_ROW_SHARES,
        ("by_row", lambda seen: flags(item.name == BY_ROW for item in seen.kernels)),
    ),
    _rows_of,
)


#: Softmax and layer norm.
ROW_FEATURES: Features[_Rows] = Features(
    (
        ("log_rows", lambda seen: log_of(seen.rows)),
        ("log_width", lambda seen: log_of(seen.width)),
        ("width_mod_4", lambda seen: np.where(np.mod(seen.width, 4) == 0, 1.0, 0.0)),
        ("is_narrow", lambda seen: np.where(seen.width <= _NARROW_ROW, 1.0, 0.0)),
        *_ROW_SHARES,
        (
            "is_softmax",
            lambda seen: flags(item.kernel_class is KernelClass.SOFTMAX for item in seen.kernels),
        ),
    ),
    _rows_of,
)


# -- attention -----------------------------------------------------------------------------------


class _Attention(NamedTuple):
    """Fused attention, and the terms of its time, µs."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    seq_q: Floats
    seq_kv: Floats
    head_dim: Floats
    causal: Floats
    moved: Floats
    flops: Floats
    time: Floats
    split: Floats
    #: FLOPs per µs that large products reach.
    reached: float
    gpu: GPU

    @property
    def tiles_per_sm(self) -> Floats:
        """Query tiles of 128 rows that each SM gets."""
        return self.batch * self.heads * np.ceil(self.seq_q / 128) / self.gpu.num_sms

    @property
    def units_per_sm(self) -> Floats:
        """Work units that each SM gets where the query heads of a group share a tile."""
        return self.batch * self.kv_heads / self.gpu.num_sms

    @property
    def exponential_us(self) -> Floats:
        """All exponentials on all SMs."""
        rate = exponentials_per_clock(self.gpu) * self.gpu.clock_hz * 1e-6 * self.gpu.num_sms
        return self.flops / (4.0 * self.head_dim) / rate

    @property
    def dram_us(self) -> Floats:
        """Every operand moved once from or to DRAM."""
        return self.moved / self.gpu.dram_bytes_per_us

    @property
    def serial_us(self) -> Floats:
        """One SM's products for one tile, along all keys."""
        rows = np.minimum(self.seq_q, 128.0)
        flops = self.seq_kv * rows * 4.0 * self.head_dim
        return flops / (self.reached / self.gpu.num_sms)


def _attention_of(kernels: Sequence[Kernel], times: Sequence[PhysicalTime], gpu: GPU) -> _Attention:
    table = np.array(
        [
            (*kernel.size, kernel.num_bytes, kernel.flops, time.time_us, time.split_k)
            for kernel, time in zip(kernels, times, strict=True)
        ],
        dtype=np.float64,
    )
    batch, heads, kv_heads, seq_q, seq_kv, head_dim = table.T[:6]
    moved, flops, time_us, split = table.T[9:]
    return _Attention(
        batch, heads, kv_heads, seq_q, seq_kv, head_dim, table.T[7], moved, flops, time_us, split,
        reached=gpu.peak_flops(kernels[0].compute, matrix=True)
        * 1e-6
        * filled_in(gpu).gemm_utilization,
        gpu=gpu,
    )  # fmt: skip


ATTENTION_FEATURES: Features[_Attention] = Features(
    (
        ("log_batch", lambda seen: log_of(seen.batch)),
        ("log_heads", lambda seen: log_of(seen.heads)),
        ("log_group", lambda seen: log_of(seen.heads / seen.kv_heads)),
        ("log_seq_q", lambda seen: log_of(seen.seq_q)),
        ("log_seq_kv", lambda seen: log_of(seen.seq_kv)),
        ("log_head_dim", lambda seen: log_of(seen.head_dim)),
        ("head_dim_fill", lambda seen: _fill(seen.head_dim, 64)),
        ("causal", lambda seen: seen.causal),
        ("seq_q_fill_64", lambda seen: _fill(seen.seq_q, 64)),
        ("seq_q_fill_128", lambda seen: _fill(seen.seq_q, 128)),
        ("seq_kv_fill_128", lambda seen: _fill(seen.seq_kv, 128)),
        ("log_tiles_per_sm", lambda seen: log_of(seen.tiles_per_sm)),
        ("tiles_fill", lambda seen: _fill(seen.tiles_per_sm, 1)),
        ("log_units_per_sm", lambda seen: log_of(seen.units_per_sm)),
        ("units_fill", lambda seen: _fill(seen.units_per_sm, 1)),
        ("log_split", lambda seen: log_of(seen.split)),
        ("log_bytes_per_l2", lambda seen: log_of(seen.moved / seen.gpu.l2_bytes)),
        ("log_floor_share", lambda seen: _share(seen.gpu.floor_us, seen.time)),
        ("log_matrix_share", lambda seen: _share(seen.flops / seen.reached, seen.time)),
        ("log_exponential_share", lambda seen: _share(seen.exponential_us, seen.time)),
        ("log_dram_share", lambda seen: _share(seen.dram_us, seen.time)),
        ("log_serial_share", lambda seen: _share(seen.serial_us, seen.time)),
    ),
    _attention_of,
)


# -- collectives ---------------------------------------------------------------------------------

_MEASURED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class _Collectives(NamedTuple):
    """Collectives, and the time that their bytes take over the link, µs."""

    kernels: Sequence[Kernel]
    moved: Floats
    ranks: Floats
    time: Floats
    wire_us: Floats
    gpu: GPU


def _collectives_of(
    kernels: Sequence[Kernel], times: Sequence[PhysicalTime], gpu: GPU
) -> _Collectives:
    table = np.array(
        [
            (*kernel.size[:2], wire_bytes(kernel), time.time_us)
            for kernel, time in zip(kernels, times, strict=True)
        ],
        dtype=np.float64,
    )
    moved, ranks, wire, time_us = table.T
    wire_us = np.maximum(wire, 1.0) / (gpu.link_gbps * 1e3)
    return _Collectives(kernels, moved, ranks, time_us, wire_us, gpu)


def _is_collective(name: str) -> Callable[[_Collectives], Floats]:
    return lambda seen: flags(kernel.name == name for kernel in seen.kernels)


COLLECTIVE_FEATURES: Features[_Collectives] = Features(
    (
        ("log_ranks", lambda seen: log_of(seen.ranks)),
        ("log_wire_per_floor", lambda seen: log_of(seen.wire_us / seen.gpu.link_floor_us)),
        ("log_bytes", lambda seen: log_of_counts(seen.moved)),
        ("log_bytes_per_rank", lambda seen: log_of_counts(seen.moved / seen.ranks)),
        ("log_wire_share", lambda seen: _share(seen.wire_us, seen.time)),
        ("log_floor_share", lambda seen: log_of(seen.gpu.link_floor_us / seen.time)),
        ("is_8_bit", lambda seen: flags(kernel.dtype == "int8" for kernel in seen.kernels)),
        *((f"is_{name}", _is_collective(name)) for name in _MEASURED_COLLECTIVES),
    ),
    _collectives_of,
)
