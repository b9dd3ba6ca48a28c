"""Tables of measured kernels, as kernels and durations: the only file that knows their columns.

Two schemas: the modern one (gemm, attention, collectives, memory_bound; bf16, fp16, fp8) and the
FP32 one (kernels, conv_kernels), whose labels hold the host's overhead. A folder may hold any of
these tables, as .parquet or .csv, and describes GPUs that neusight does not know in gpus.csv.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError, RegistrationError, UnknownGPUError
from neusight.predictors.files import read_bytes, shown
from neusight.predictors.gpu import GPU, find_gpu, gpus
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.learned.features import BLOCK_SCALED, BY_ROW

#: A table: pandas comes with an extra and has no types of its own.
DataFrame = Any

__all__ = [
    "TABLES",
    "Dataset",
    "Group",
    "data_hash",
    "disagreement",
    "is_held_out",
    "prior_constants",
    "read_dataset",
    "read_gpu_rows",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Launches that one row stands for: an fp8_dynamic row is a quantisation and a product.
Launches = tuple[Kernel, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one GPU, table, dtype and operation: what was launched and how long it took.

    `sustained` says at which clocks. `shape` identifies a row's shape on every GPU: splits are
    made by it. `is_for_training` is false of second opinions. `has_overhead` where the label holds
    the host's share; `parts_us` is the measured share of all launches but the last, NaN where it
    was not measured.
    """

    gpu_label: str
    gpu: GPU
    table: str
    dtype: str
    phase_or_op: str
    launches: Sequence[Launches]
    latency_us: Floats
    shape: NDArray[np.uint64]
    sustained: bool = False
    has_overhead: bool = False
    is_for_training: bool = True
    parts_us: Floats | None = None
    is_model_shape: Bools | None = None

    def chosen(self, mask: Bools) -> Group:
        """The rows where `mask` is true."""
        indices = np.flatnonzero(mask).tolist()
        return replace(
            self,
            launches=[self.launches[index] for index in indices],
            latency_us=self.latency_us[mask],
            shape=self.shape[mask],
            parts_us=None if self.parts_us is None else self.parts_us[mask],
            is_model_shape=None if self.is_model_shape is None else self.is_model_shape[mask],
        )


@dataclass(frozen=True)
class Dataset:
    """All groups of a folder, and what was left out with the reason."""

    folder: Path
    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = field(default=())


def read_dataset(folder: str | Path, *, tables: Sequence[str] | None = None) -> Dataset:
    """Reads the tables of a folder, all or those named.

    DataError where the folder has none, a column is missing, a figure is impossible, or pandas is.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"There is no folder {place} with tables of measurements.")
    if (place / "environment.json").exists():  # written by `neusight measure`, in its own form
        from neusight.predictors.training.measured import measured_dataset

        return measured_dataset(place, tables=tables)
    known = {name: _found(place, name) for name in tables or TABLES}
    present = {name: path for name, path in known.items() if path is not None}
    if not present:
        raise DataError(
            f"{place} holds no table that neusight knows; it reads"
            f" {', '.join(f'{name}.parquet' for name in TABLES)} (or .csv)."
        )
    book = _GPUs(place)
    groups: list[Group] = []
    left_out: list[str] = []
    for name, path in present.items():
        frame = _read(path, name)
        groups += list(TABLES[name].groups(frame, book, left_out))
    return Dataset(place, tuple(groups), tuple(left_out))


def data_hash(folder: str | Path, names: Sequence[str]) -> str:
    """Twelve hex digits of the bytes of those tables; for provenance."""
    digest = hashlib.sha256()
    for name in names:
        path = _found(Path(folder), name)
        if path is not None:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def is_held_out(shape: NDArray[np.uint64], *, share: float = 0.1, salt: int = 0) -> Bools:
    """The shapes kept out of training: about that share, the same on every GPU and machine."""
    mixed = (shape ^ np.uint64(salt * 0x9E3779B9)) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    result: Bools = (mixed >> np.uint64(33)) % np.uint64(1000) < np.uint64(round(share * 1000))
    return result


# -- files -------------------------------------------------------------------------------------


def disagreement(folder: str | Path, name: str) -> list[tuple[str, str, int, float]]:
    """How far two measurements of the same shape lie apart: (GPU, dtype, number of shapes, mean of
    larger over smaller less one), for a table that several sources filled. The noise floor: no
    predictor can be nearer to one of them than half of it, whatever it knows."""
    path = _found(Path(folder), name)
    if path is None or name not in _REPEATED:
        return []
    frame = _raw(path)
    keys = [column for column in ("gpu", "dtype", *_REPEATED[name]) if column in frame.columns]
    if "clock_regime" in frame.columns:
        frame = frame[frame["clock_regime"].astype(str) != "sustained"]
    if name == "collectives" and "source" in frame.columns:  # others wait for ranks, or are no NCCL
        frame = frame[frame["source"].astype(str).str.contains("nccl-tests")]
    spread = frame.groupby(keys, observed=True)["latency_us"].agg(["min", "max", "count"])
    spread = spread[spread["count"] >= _LEAST_OPINIONS].reset_index()
    spread["apart"] = spread["max"] / spread["min"] - 1.0
    return [
        (str(label), str(dtype), len(rows), float(rows["apart"].mean()))
        for (label, dtype), rows in spread.groupby(["gpu", "dtype"], observed=True)
    ]


#: What identifies a shape, in the tables that hold several measurements of the same.
_REPEATED = {
    "gemm": ("m", "n", "k"),
    "attention": (
        "phase",
        "batch",
        "seq_q",
        "seq_kv",
        "heads",
        "kv_heads",
        "head_dim",
        "window",
    ),
    "collectives": ("op", "num_gpus", "num_nodes", "message_bytes"),
}
_LEAST_OPINIONS = 2


def _found(folder: Path, name: str) -> Path | None:
    for suffix in (".parquet", ".csv"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    return None


def _pandas() -> Any:
    try:
        pandas = import_module("pandas")
        import_module("pyarrow")  # pandas reads .parquet through it
    except ImportError as error:
        raise DataError(
            "Reading tables of measurements needs pandas and pyarrow:"
            " pip install 'neusight-hooks[data]'."
        ) from error
    return pandas


def _raw(path: Path) -> DataFrame:
    """A file's rows as they are."""
    pandas = _pandas()
    try:
        return pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except Exception as error:  # pyarrow and pandas raise many kinds for a damaged file
        raise DataError(f"{path} cannot be read: {error}") from error


def _read(path: Path, name: str) -> DataFrame:
    frame = _raw(path)
    missing = [column for column in TABLES[name].columns if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it has {len(frame)} rows.")
    if "primary" in frame.columns:
        frame = frame[frame["primary"].astype(bool)]
    _require(frame, path, "latency_us", least=0.0, inclusive=False)
    for column in TABLES[name].sizes:
        if frame[column].notna().any():
            _require(frame, path, column, least=TABLES[name].least, inclusive=True)
    if "consensus_us" in frame.columns:
        frame = frame.assign(latency_us=frame["consensus_us"].fillna(frame["latency_us"]))
        _require(frame, path, "latency_us", least=0.0, inclusive=False)
    return frame


def _require(frame: DataFrame, path: Path, column: str, *, least: float, inclusive: bool) -> None:
    """DataError where a figure is missing, infinite or too small; columns that some rows need
    (m of a matrix product) are looked at where they are filled."""
    values = frame[column]
    if column != "latency_us":
        values = values.dropna()
    try:
        numbers = values.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: column {column} holds what is no number ({error}).") from error
    wrong = ~np.isfinite(numbers) | (numbers < least if inclusive else numbers <= least)
    if wrong.any():
        first = numbers[wrong][0]
        bound = f"at least {least:g}" if inclusive else f"above {least:g}"
        raise DataError(
            f"{path}: column {column} has {int(wrong.sum())} of {len(numbers)} rows with a value"
            f" that cannot be (the first is {first:g}); it must be finite and {bound}."
        )


# -- GPUs --------------------------------------------------------------------------------------


def read_gpu_rows(path: Path) -> dict[str, dict[str, str]]:
    """The rows of a gpus.csv by the name of the GPU; DataError where it cannot be read."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        table = csv.DictReader(io.StringIO(text))
        rows = [{key: value or "" for key, value in row.items() if key} for row in table]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}. It must be a table in UTF-8.") from error
    return {row.get("gpu", ""): row for row in rows}


class _GPUs:
    """The GPUs of a folder: neusight's own, else those of its gpus.csv, else None."""

    def __init__(self, folder: Path) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        path = folder / "gpus.csv"
        if path.exists():
            self._rows = read_gpu_rows(path)
        self._known: dict[str, GPU | str] = {}

    def find(self, name: str) -> GPU | str:
        """The GPU, or the reason why there is none."""
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> GPU | str:
        row = self._rows.get(name, {})
        for label in (name, row.get("alias", "")):
            try:
                return find_gpu(label)
            except UnknownGPUError:
                continue
        if not row:
            return "neither neusight nor gpus.csv knows this GPU"
        try:
            return gpu_of_row(row)
        except ValueError as error:
            return f"its row in gpus.csv cannot be used ({error})"


#: Registers and threads of an SM, shared memory of a block and peaks hardly differ within an
#: architecture: what gpus.csv does not say comes from the nearest GPU that neusight has.
def gpu_of_row(row: dict[str, str]) -> GPU:
    """A GPU from its datasheet row alone, with prior constants.

    ValueError where a figure is missing, or no CUDA or ROCm GPU resembles it.
    """

    def number(name: str) -> float:
        text = (row.get(name) or "").strip()
        value = float(text) if text else 0.0
        if not abs(value) <= _MOST_FIGURE:
            raise ValueError(f"its {name} is {shown(text)}")
        return value

    capability = row.get("sm_version", "").strip()
    is_amd = capability.startswith("gfx")
    if not capability or not (is_amd or capability.replace(".", "").isdigit()):
        raise ValueError("it has no CUDA compute capability")
    version = (9, 0) if is_amd else _capability(float(capability[:_MOST_CAPABILITY_CHARS]))
    template = _nearest(version, "amd" if is_amd else "nvidia")
    peaks = {unit: number(column) for column, unit in _PEAK_COLUMNS.items() if number(column) > 0}
    if "bf16" in peaks and "fp16" not in peaks:
        peaks["fp16"] = peaks["bf16"]
    peaks.setdefault("fp64", peaks.get("fp32", 0.0) * _FP64_SHARE)
    shared = int(number("smem_kb_per_sm") * 1024) or template.shared_memory_per_sm_bytes
    try:
        made = GPU.from_json(
            {
                **template.to_json(),
                "matrix_units": None,  # of the row's own peaks
                "name": row.get("gpu", ""),
                "driver_name": row.get("gpu", ""),
                "architecture": row.get("arch") or template.architecture,
                "compute_capability": list(version),
                "num_sms": int(number("sms")),
                "boost_clock_mhz": number("boost_mhz"),
                "memory_bytes": int(number("hbm_gb") * 1e9),
                "bandwidth_gbps": number("mem_bw_gbps"),
                "l2_bytes": int(number("l2_mb") * 2**20),
                "shared_memory_per_sm_bytes": shared,
                "tdp_w": number("tdp_w") or template.tdp_w,
                "peak_tflops": peaks,
                "link_kind": row.get("link_kind") or "",
                "link_gbps": number("link_gbps_unidir"),
                "aliases": [],
            }
        )
    except RegistrationError as error:
        raise ValueError(str(error)) from error
    return prior_constants(made)


def _capability(number: float) -> tuple[int, int]:
    """(9, 0) of both 9.0 and 90: tables spell it as CUDA or as the compiler does."""
    tenths = round(number) if number >= _FIRST_COMPILER_NUMBER else round(number * 10)
    return tenths // 10, tenths % 10


_FIRST_COMPILER_NUMBER = 20.0

#: Largest figure of a datasheet, and the longest text of a capability ("12.0", "gfx1100").
_MOST_FIGURE = 1e9
_MOST_CAPABILITY_CHARS = 8

_PEAK_COLUMNS = {
    "fp32_tflops": "fp32",
    "fp32_matrix_tflops": "fp32_matrix",
    "tf32_dense_tflops": "tf32",
    "bf16_dense_tflops": "bf16",
    "fp16_dense_tflops": "fp16",
    "fp8_dense_tflops": "fp8",
}
#: FP64 cores a data-centre GPU has for each FP32 core; no table here needs it.
_FP64_SHARE = 0.5


def _nearest(version: tuple[int, int], vendor: str) -> GPU:
    choices = [find_gpu(name) for name in gpus() if find_gpu(name).vendor == vendor]
    return min(
        choices,
        key=lambda item: (
            abs(item.compute_capability[0] - version[0]),
            abs(item.compute_capability[1] - version[1]),
            not item.constants_origin.startswith("fitted"),
            item.name,
        ),
    )


#: Constants whose mean over measured GPUs is the prior of another.
_CONSTANTS = (
    "gemm_utilization",
    "fp32_gemm_utilization",
    "sustained_factor",
    "bandwidth_utilization",
    "floor_us",
    "gemm_floor_us",
)


def prior_constants(target: GPU, *, without: Callable[[GPU], bool] | None = None) -> GPU:
    """The GPU with constants as if it had never been measured: the mean over measured GPUs of its
    compute capability's major number, else over all; `without` leaves GPUs out of the means."""
    measured = [
        item
        for item in map(find_gpu, gpus())
        if item.constants_origin.startswith("fitted on data/modern")
        and item.name != target.name
        and not (without is not None and without(item))
    ]
    alike = [
        item for item in measured if item.compute_capability[0] == target.compute_capability[0]
    ]
    chosen = alike or measured
    if not chosen:
        return replace(target, **{"constants_origin": "prior", **_defaults()})
    means = {
        name: float(np.mean([_constant(item, name) for item in chosen])) for name in _CONSTANTS
    }
    floors: dict[str, Any] = {
        "link_floor_us": float(np.median([item.link_floor_us for item in chosen])),
        "constants_origin": f"prior, the mean of {len(chosen)} measured GPUs",
    }
    return replace(target, **{name: round(value, 4) for name, value in means.items()} | floors)


def _defaults() -> dict[str, Any]:
    """What `GPU` assumes where a file says nothing."""
    values = {item.name: item.default for item in fields(GPU) if item.name in _CONSTANTS}
    return {name: float(value) for name, value in values.items() if isinstance(value, float)}


def _constant(item: GPU, name: str) -> float:
    if name == "gemm_floor_us":
        return item.gemm_floor_us or item.floor_us
    return float(getattr(item, name))


# -- tables ------------------------------------------------------------------------------------

#: torch's names of the dtypes in the tables.
_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp8_dynamic": "float8_e4m3fn",
    "fp8_block128": "float8_e4m3fn",
    "int8": "int8",
}

#: Sources whose rows come from long profiler loops: on one GPU and shape they are as fast as burst
#: rows up to 0.3 ms and 10-17 % slower above, as sustained clocks are.
_SUSTAINED_SOURCES = "vidur"


def _grouped(
    frame: DataFrame, keys: Sequence[str], book: _GPUs, table: str, left_out: list[str]
) -> Iterator[tuple[tuple[str, ...], GPU, DataFrame]]:
    """The rows of each key; groups that cannot be priced are told in `left_out`."""
    for key, rows in frame.groupby(list(keys), observed=True, sort=True):
        names = tuple(str(part) for part in key)
        found = book.find(names[0])
        if isinstance(found, str):
            left_out.append(f"{table}: {len(rows)} rows of {names[0]}: {found}")
            continue
        yield names, found, rows


def _regimes(rows: DataFrame) -> NDArray[np.bool_]:
    sustained = np.zeros(len(rows), dtype=np.bool_)
    if "clock_regime" in rows.columns:
        sustained |= (rows["clock_regime"].astype(str) == "sustained").to_numpy()
    if "source" in rows.columns:
        sustained |= rows["source"].astype(str).str.startswith(_SUSTAINED_SOURCES).to_numpy()
    return sustained


def _by_regime(group: Group, sustained: Bools) -> Iterator[Group]:
    for regime in (False, True):
        mask = sustained == regime
        if mask.any():
            yield replace(group.chosen(mask), sustained=regime)


def _shape(*columns: Any) -> NDArray[np.uint64]:
    """A number for each row's shape."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        values = np.asarray(column, dtype=np.float64).astype(np.int64).astype(np.uint64)
        mixed = (mixed ^ values) * np.uint64(0x100000001B3) + np.uint64(0x9E3779B97F4A7C15)
    return mixed


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


def _gemm_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    for (label, dtype), target, rows in _grouped(frame, ("gpu", "dtype"), book, "gemm", left_out):
        name = _DTYPES.get(dtype)
        if name is None or (name.startswith("float8") and "fp8" not in target.peak_tflops):
            left_out.append(f"gemm: {len(rows)} rows of {label}: no kernel for dtype {dtype}")
            continue
        fp8 = name.startswith("float8")
        sizes = [rows[column].to_numpy().tolist() for column in ("m", "n", "k")]
        launches: list[Launches] = []
        for m, n, k in zip(*sizes, strict=True):
            product = Kernel.gemm(
                m,
                n,
                k,
                dtype=name,
                out_dtype="bfloat16" if fp8 else None,
                name=BLOCK_SCALED if dtype == "fp8_block128" else "gemm",
            )
            if fp8:
                first = quantisation(m, k, by_row=dtype != "fp8_block128")
                launches.append((first, product))
            else:
                launches.append((product,))
        parts = None
        if fp8 and "act_quant_us" in rows.columns:
            parts = rows["act_quant_us"].to_numpy(dtype=np.float64)
        group = Group(
            gpu_label=label,
            gpu=target,
            table="gemm",
            dtype=dtype,
            phase_or_op="gemm",
            launches=launches,
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(rows["m"], rows["n"], rows["k"]),
            parts_us=parts,
            is_model_shape=_is_aligned(rows),
        )
        yield from _by_regime(group, _regimes(rows))


def _is_aligned(rows: DataFrame) -> Bools:
    """Layers as language models have them: both weight sizes 1024 and more, in steps of 128."""
    n, k = rows["n"].to_numpy(), rows["k"].to_numpy()
    aligned: Bools = (n % 128 == 0) & (k % 128 == 0) & (n >= 1024) & (k >= 1024)
    return aligned


def _attention_name(source: str, target: GPU) -> str:
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


def _attention_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "phase")
    for (label, dtype, phase), target, rows in _grouped(frame, keys, book, "attention", left_out):
        name = _DTYPES.get(dtype)
        if name not in ("bfloat16", "float16"):
            left_out.append(f"attention: {len(rows)} rows of {label}: no kernel for {dtype}")
            continue
        if "window" in rows.columns:
            windowed = rows["window"] > 0
            if windowed.any():
                left_out.append(
                    f"attention: {int(windowed.sum())} {phase} rows of {label}: no kernel has a"
                    " sliding window yet"
                )
                rows = rows[~windowed]
        seq_kv = rows["seq_kv"].to_numpy()
        sources = (
            rows["kernel_source"].astype(str).tolist()
            if "kernel_source" in rows.columns
            else [""] * len(rows)
        )
        columns = [
            rows[column].to_numpy().tolist()
            for column in ("batch", "heads", "kv_heads", "seq_q", "head_dim")
        ]
        launches: list[Launches] = [
            (
                *_around_attention(phase, batch, kv_heads, seq_q, head_dim, name, source),
                Kernel.attention(
                    batch,
                    heads,
                    kv_heads,
                    seq_q,
                    int(kv),
                    head_dim,
                    causal=phase == "prefill_causal",
                    dtype=name,
                    name=_attention_name(source, target),
                ),
            )
            for batch, heads, kv_heads, seq_q, head_dim, kv, source in zip(
                *columns, seq_kv, sources, strict=True
            )
        ]
        if not launches:
            continue
        group = Group(
            gpu_label=label,
            gpu=target,
            table="attention",
            dtype=dtype,
            phase_or_op=phase,
            launches=launches,
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(*(rows[name] for name in _ATTENTION_SIZES)),
        )
        yield from _by_regime(group, _regimes(rows))


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


def _collective_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "op")
    for (label, dtype, op), target, rows in _grouped(frame, keys, book, "collectives", left_out):
        name = _COLLECTIVES.get(op)
        if name is None:
            left_out.append(f"collectives: {len(rows)} rows of {label}: {op} is not NCCL's")
            continue
        profiled = np.zeros(len(rows), dtype=np.bool_)
        if "source" in rows.columns:
            profiled |= rows["source"].astype(str).str.startswith(_WAITING_SOURCES).to_numpy()
        nodes = rows["num_nodes"].tolist() if "num_nodes" in rows.columns else [1] * len(rows)
        group = Group(
            gpu_label=label,
            gpu=target,
            table="collectives",
            dtype=dtype,
            phase_or_op=op,
            launches=[
                (
                    Kernel.collective(
                        name, size, ranks, dtype=_DTYPES.get(dtype, "bfloat16"), num_nodes=hosts
                    ),
                )
                for size, ranks, hosts in zip(
                    rows["message_bytes"].tolist(), rows["num_gpus"].tolist(), nodes, strict=True
                )
            ],
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(rows["message_bytes"], rows["num_gpus"]),
        )
        if not profiled.all():
            yield group.chosen(~profiled)
        if profiled.any():
            yield replace(
                group.chosen(profiled), phase_or_op=f"{op} (profiled)", is_for_training=False
            )


#: Sources whose rows are profiled kernels of a running program: they hold the wait for the last
#: rank (60 MB over 8 A100: 0.4 to 15 ms), so nothing is learnt from them.
_WAITING_SOURCES = "vidur"

_ROW_CLASSES = {
    "rms_norm": KernelClass.NORMALIZATION,
    "layer_norm": KernelClass.NORMALIZATION,
    "quant_fp8_per_token": KernelClass.NORMALIZATION,
    "embedding": KernelClass.GATHER,
    "softmax": KernelClass.SOFTMAX,
}


def _memory_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    keys = ("gpu", "dtype", "op")
    for (label, dtype, op), target, rows in _grouped(frame, keys, book, "memory_bound", left_out):
        first, _, last = dtype.partition("->")
        if first not in _DTYPES:
            left_out.append(f"memory_bound: {len(rows)} rows of {label}: no dtype {dtype}")
            continue
        out_bytes = 1 if last.startswith("fp8") else 2
        launches: list[Launches] = []
        for count, width, moved in zip(
            rows["rows"].tolist(),
            rows["width"].tolist(),
            rows["bytes_moved"].tolist(),
            strict=True,
        ):
            written = min(count * width * out_bytes, moved // 2)
            launches.append(
                (
                    Kernel.rows(
                        _ROW_CLASSES.get(op, KernelClass.ELEMENTWISE),
                        BY_ROW if op == "quant_fp8_per_token" else op,
                        count,
                        width,
                        dtype=_DTYPES[first],
                        out_dtype="float8_e4m3fn" if out_bytes == 1 else _DTYPES[first],
                        bytes_read=moved - written,
                        bytes_written=written,
                    ),
                )
            )
        yield Group(
            gpu_label=label,
            gpu=target,
            table="memory_bound",
            dtype=dtype,
            phase_or_op=op,
            launches=launches,
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(rows["rows"], rows["width"]),
        )


#: Inputs of the FP32 vector ops; a trailing u (addu, divu, mulu, powu): with a scalar.
_VECTOR_INPUTS = {"add": 2, "div": 2, "mul": 2, "pow": 2}
_WITH_SCALAR = "u"


def _fp32_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    for (label, op), target, rows in _grouped(frame, ("gpu", "op"), book, "kernels", left_out):
        columns = {
            name: rows[name].fillna(0).astype(np.int64).tolist()
            for name in ("B", "M", "N", "K", "H")
        }
        launches: list[Launches] = []
        for batch, m, inner, outer, width in zip(*columns.values(), strict=True):
            if op == "linear":
                kernel = Kernel.gemm(m, outer, inner, dtype="float32", bias=True)
            elif op == "bmm":
                kernel = Kernel.gemm(m, outer, inner, batch=batch, dtype="float32", layout="nn")
            else:
                kernel = _vector_op(op, batch, width)
            launches.append((kernel,))
        yield Group(
            gpu_label=label,
            gpu=target,
            table="kernels",
            dtype="fp32",
            phase_or_op=op,
            launches=launches,
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(*columns.values()),
            has_overhead=True,
            is_model_shape=(rows["split"] == "model_shapes").to_numpy()
            if "split" in rows.columns
            else None,
        )


def _vector_op(op: str, rows: int, width: int) -> Kernel:
    if op not in ("softmax", "ln"):
        stem = op.removesuffix(_WITH_SCALAR)
        return Kernel.elementwise(
            stem if stem in _VECTOR_INPUTS else op,
            rows * width,
            dtype="float32",
            num_inputs=_VECTOR_INPUTS.get(op, 1),
        )
    kernel_class, name = (
        (KernelClass.SOFTMAX, "softmax")
        if op == "softmax"
        else (KernelClass.NORMALIZATION, "layer_norm")
    )
    return Kernel.rows(
        kernel_class,
        name,
        rows,
        width,
        dtype="float32",
        bytes_read=4 * rows * width,
        bytes_written=4 * rows * width,
    )


def _convolution_groups(frame: DataFrame, book: _GPUs, left_out: list[str]) -> Iterator[Group]:
    for (label,), target, rows in _grouped(frame, ("gpu",), book, "conv_kernels", left_out):
        sizes = [rows[column].astype(np.int64).tolist() for column in _CONVOLUTION_SIZES]
        launches: list[Launches] = []
        fits = np.ones(len(rows), dtype=np.bool_)
        for index, (batch, inputs, outputs, edge, image, stride, padding) in enumerate(
            zip(*sizes, strict=True)
        ):
            result = (image + 2 * padding - edge) // max(1, stride) + 1
            fits[index] = result > 0 and stride > 0
            size = ConvolutionSize(
                batch,
                inputs,
                outputs,
                1,
                (image, image),
                (max(1, result), max(1, result)),
                (edge, edge),
                (max(1, stride), max(1, stride)),
                "forward",
            )
            launches.append((Kernel.convolution(size, dtype="float32"),))
        yield Group(
            gpu_label=label,
            gpu=target,
            table="conv_kernels",
            dtype="fp32",
            phase_or_op="conv",
            launches=launches,
            latency_us=rows["latency_us"].to_numpy(dtype=np.float64),
            shape=_shape(*sizes),
            has_overhead=True,
        ).chosen(fits)


#: Kernel_Szie is the table's own spelling.
_CONVOLUTION_SIZES = (
    "B",
    "Input_Channel",
    "Output_Channel",
    "Kernel_Szie",
    "Input_Size",
    "Stride",
    "Padding",
)


@dataclass(frozen=True)
class Table:
    """What a table must have, and how its rows become kernels."""

    columns: tuple[str, ...]
    sizes: tuple[str, ...]
    groups: Callable[[Any, _GPUs, list[str]], Iterator[Group]]
    least: float = 1.0


TABLES: dict[str, Table] = {
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
    "kernels": Table(
        ("op", "latency_us", "gpu", "B", "M", "N", "K", "H"),
        ("B", "M", "N", "K", "H"),
        _fp32_groups,
    ),
    "conv_kernels": Table(
        ("latency_us", "gpu", *_CONVOLUTION_SIZES),
        ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride"),
        _convolution_groups,
    ),
}
