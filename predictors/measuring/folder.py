"""A folder of measurements of one GPU: its environment, kernels, constants and workloads.

    environment.json           the GPU and the software that was measured
    quick.json                 the constants of the GPU, from a minute of samples
    gemm.csv.gz, …             kernels, in the columns of the tables that `evaluate` reads
    gpus.csv                   the datasheet of the GPU, as those tables need it
    workloads/NAME.json        whole training and inference steps
    workloads/NAME.pt.trace.json.gz    a profile of three of them

What is measured goes to journal.jsonl at once, a line each, and from there into the tables when a
run ends; `read_measured` reads both, so an interrupted run loses at most one line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from neusight.predictors.errors import DataError
from neusight.predictors.files import (
    Fields,
    json_value,
    read_bytes,
    read_json_document,
    shown,
    write_atomically,
)
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
    KernelClass,
)
from neusight.predictors.measuring.kernel_rows import kernel_from_row, row_of_kernel

#: Raised when the form of the files changes.
SCHEMA_VERSION = 1

#: Fields that must agree for measurements to share a folder.
_IDENTITY = ("gpu", "driver", "torch", "cuda")


#: How the GPU of a rehearsal is named (`neusight measure --rehearse`): nothing of it was measured.
REHEARSAL_PREFIX = "forecast of "


def rehearsed_gpu(name: str) -> str:
    """The GPU whose forecasts stand where a folder should have measurements; "" for a real one.

    >>> rehearsed_gpu("forecast of L4"), rehearsed_gpu("NVIDIA L4")
    ('L4', '')
    """
    return name.removeprefix(REHEARSAL_PREFIX) if name.startswith(REHEARSAL_PREFIX) else ""


@dataclass(frozen=True)
class Environment:
    """What was measured, and with what. `gpu` is the driver's name, `host` the name of the CPU."""

    gpu: str
    compute_capability: str
    num_sms: int
    memory_bytes: int
    driver: str
    torch: str
    cuda: str
    python: str
    date: str
    neusight_version: str
    host: str

    @property
    def identity(self) -> tuple[str, ...]:
        """What all measurements in one folder have in common."""
        return tuple(str(getattr(self, name)) for name in _IDENTITY)


@dataclass(frozen=True)
class Sample:
    """One measured kernel, or the few kernels of one op where they could not be distinguished.

    `op` is what was run ("linear", "softmax_backward"), `probe` identifies it with its shapes.
    `kernel_us` is the sum of the kernels' own durations (the profiler's; None where there was no
    profiler), `event_us` the op's time between events on the stream, with gaps. `l2` is "cold" or
    "hot", `clock_regime` "burst" or "sustained", `spread` half the range of the middle 80 % of the
    runs over their median, `kernel_name` the names the GPU's library gave its kernels.
    """

    op: str
    probe: str
    kernels: tuple[Kernel, ...]
    kernel_us: float | None
    event_us: float | None
    l2: str = "hot"
    clock_regime: str = "burst"
    spread: float = 0.0
    num_runs: int = 1
    num_launches: int = 1
    kernel_name: str = ""
    clock_mhz: float | None = None
    power_w: float | None = None

    @property
    def latency_us(self) -> float:
        """The kernels' own durations, or the time between events where that is all there is."""
        value = self.event_us if self.kernel_us is None else self.kernel_us
        assert value is not None
        return value

    @property
    def key(self) -> tuple[str, str, str]:
        """What no two samples of a folder share."""
        return self.probe, self.l2, self.clock_regime


@dataclass(frozen=True)
class Quick:
    """The constants of a GPU, and the samples they were read from, by kind.

    `constants`: "gemm_utilization" by dtype, "bandwidth_utilization", "floor_us" and
    "link_floor_us" (None on one GPU), and under "spread" the spread of each.
    """

    samples: tuple[tuple[str, Sample], ...]
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class Workload:
    """Whole steps of one model and setting. `command` is the script with its arguments, as
    `neusight run` takes them; times in microseconds; counts and `gpu_busy_us` are per step.

    Where no profiler could be used, `num_kernels` is 0, `kernels` empty and `trace` "".
    """

    workload: str
    command: tuple[str, ...]
    arguments: Mapping[str, Any]
    mode: str
    environment: Mapping[str, Any]
    step_us: Mapping[str, Any]
    profiled_step_us: float | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_kernels: float
    gpu_busy_us: float
    host_bound: bool
    kernels: tuple[Mapping[str, Any], ...] = ()
    trace: str = ""


@dataclass(frozen=True)
class Measured:
    """All that a folder holds; `notes` show what could not be read."""

    folder: Path
    environment: Environment
    samples: tuple[Sample, ...]
    quick: Quick | None = None
    workloads: tuple[Workload, ...] = ()
    notes: tuple[str, ...] = ()


def read_measured(folder: str | Path) -> Measured:
    """Reads a folder that `neusight measure` wrote, also one whose run was interrupted.

    DataError where there is no such folder, or a file in it is damaged or of another version.
    """
    place = Path(folder)
    environment = read_environment(place)
    notes: list[str] = []
    found = _samples(place, notes)
    workloads = sorted((place / "workloads").glob("*.json"))
    return Measured(
        folder=place,
        environment=environment,
        samples=tuple(found.values()),
        quick=_read_quick(place),
        workloads=tuple(read_workload(path) for path in workloads),
        notes=tuple(notes),
    )


# -- environment -------------------------------------------------------------------------------


def write_environment(folder: Path, environment: Environment) -> None:
    """Names what is measured in this folder; DataError where that was something else."""
    path = folder / "environment.json"
    if path.exists():
        there = read_environment(folder)
        if there.identity != environment.identity:
            differ = ", ".join(
                f"{name} {old} there, {new} here"
                for name, old, new in zip(
                    _IDENTITY, there.identity, environment.identity, strict=True
                )
                if old != new
            )
            raise DataError(
                f"{folder} holds measurements of another environment ({differ}). Two of them in "
                "one folder cannot be distinguished: give another folder with --out."
            )
        return
    _write_json(path, asdict(environment))


def read_environment(folder: str | Path) -> Environment:
    """What was measured in this folder; DataError where it holds no measurements."""
    place = Path(folder)
    path = place / "environment.json"
    if not path.exists():
        raise DataError(
            f"{place} is no folder of measurements: it holds no environment.json."
            " `neusight measure --out DIR` makes one, on a machine with a GPU."
        )
    data = _read_json(path)
    return Environment(
        gpu=data.text("gpu"),
        num_sms=data.count("num_sms"),
        memory_bytes=data.count("memory_bytes"),
        **{name: data.text(name, default="") for name in _DESCRIPTIONS},
    )


#: Fields of an environment that are shown and not computed with.
_DESCRIPTIONS = (
    "compute_capability",
    "driver",
    "torch",
    "cuda",
    "python",
    "date",
    "neusight_version",
    "host",
)


# -- samples -----------------------------------------------------------------------------------

#: The tables, and which kernel classes they hold; all others are bound by memory.
_TABLE_OF = {
    KernelClass.GEMM: "gemm",
    KernelClass.ATTENTION: "attention",
    KernelClass.CONVOLUTION: "convolution",
    KernelClass.COLLECTIVE: "collectives",
}
_TABLES = (*_TABLE_OF.values(), "memory_bound")

#: How the tables call the arithmetic, or the type where that says more.
_SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8_e5m2",
}

_COMMON = (
    "kernel_us",
    "event_us",
    "latency_us",
    "l2",
    "clock_regime",
    "spread",
    "num_runs",
    "num_launches",
    "clock_mhz",
    "power_w",
    "kernel_name",
    "probe",
)


def table_of(sample: Sample) -> str:
    """The table that the sample belongs to, by the class of its main kernel."""
    return _TABLE_OF.get(main_kernel(sample).kernel_class, "memory_bound")


def append_sample(folder: Path, sample: Sample) -> None:
    """Adds a sample to the journal at once; OSError where the disk is full."""
    line = json.dumps(sample_to_json(sample), separators=(",", ":"), allow_nan=False) + "\n"
    path = folder / "journal.jsonl"
    with path.open("ab") as stream:
        if stream.tell() and not _ends_with_newline(path):
            stream.write(b"\n")  # the line before was cut off
        stream.write(line.encode())


def compact(folder: Path) -> int:
    """Moves the journal into the tables, later samples of a probe over earlier ones; how many
    samples the tables then hold."""
    gpu = read_environment(folder).gpu
    found = _samples(folder, [])
    for name in _TABLES:
        samples = sorted(
            (sample for sample in found.values() if table_of(sample) == name),
            key=lambda sample: sample.key,
        )
        if samples:
            rows = [_row(sample, gpu) for sample in samples]
            # Equal rows to equal bytes: without the time of writing.
            write_atomically(folder / f"{name}.csv.gz", gzip.compress(_csv(rows), mtime=0))
    (folder / "journal.jsonl").unlink(missing_ok=True)
    return len(found)


def main_kernel(sample: Sample) -> Kernel:
    """The kernel that a sample is mostly about: the most FLOPs, then the most bytes."""
    special = [kernel for kernel in sample.kernels if kernel.kernel_class in _TABLE_OF]
    return max(special or sample.kernels, key=lambda kernel: (kernel.flops, kernel.num_bytes))


def sample_to_json(sample: Sample) -> dict[str, Any]:
    """A sample as plain values; `sample_from_json` reads it back."""
    plain = {item.name: getattr(sample, item.name) for item in fields(Sample)}
    plain["kernels"] = [row_of_kernel(kernel) for kernel in sample.kernels]
    return plain


def sample_from_json(data: object, source: Path | str) -> Sample:
    """The sample that `sample_to_json` wrote; DataError, which names the source, where it is none
    or has no time that can be."""
    if not isinstance(data, dict):
        raise DataError(f"{source} holds a sample that cannot be read: {shown(data)}.")
    row = Fields(data, "file of measurements", str(source), error=DataError, remedy=_REMEDY)
    try:
        kernels = tuple(kernel_from_row(item) for item in row.items("kernels"))
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    if not kernels:
        row.refuse("kernels", "a list of one kernel or more")
    sample = Sample(
        op=row.text("op"),
        probe=row.text("probe" if "probe" in data else "case"),  # the word of earlier files
        kernels=kernels,
        kernel_us=_time(row, "kernel_us"),
        event_us=_time(row, "event_us"),
        l2=row.text("l2", default="hot"),
        clock_regime=row.text("clock_regime", default="burst"),
        spread=row.number("spread", default=0.0),
        num_runs=row.count("num_runs", default=1),
        num_launches=row.count("num_launches", default=1),
        kernel_name=row.text("kernel_name", default=""),
        clock_mhz=row.number("clock_mhz") if row.optional("clock_mhz") else None,
        power_w=row.number("power_w") if row.optional("power_w") else None,
    )
    if sample.kernel_us is None and sample.event_us is None:
        raise DataError(f"{source}: the sample {shown(sample.probe)} has no time.")
    return sample


def _samples(folder: Path, notes: list[str]) -> dict[tuple[str, str, str], Sample]:
    """Of the tables and of the journal, which counts where both have one."""
    return {sample.key: sample for sample in (*_table_samples(folder), *_journal(folder, notes))}


def _time(row: Fields, name: str) -> float | None:
    return row.number(name, least=_LEAST_US, most=_MOST_US) if row.optional(name) else None


#: Times outside these were not measured: a clock tick, a month.
_LEAST_US, _MOST_US = 1e-6, 1e13


def _journal(folder: Path, notes: list[str]) -> Iterator[Sample]:
    """The samples of the journal; a line that was cut off is shown and left out."""
    path = folder / "journal.jsonl"
    if not path.exists():
        return
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip(b"\0 "):
            continue
        try:
            data = json_value(line)
        except ValueError as error:
            if line.rstrip().endswith(b"}"):
                raise DataError(f"{path}: line {number} cannot be read: {error}.") from error
            notes.append(f"{path.name}: line {number} was cut off and left out")
            continue
        yield sample_from_json(data, path)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


# -- tables ------------------------------------------------------------------------------------


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _row(sample: Sample, gpu: str) -> dict[str, Any]:
    kernel = main_kernel(sample)
    row: dict[str, Any] = {
        "gpu": gpu,
        "op": sample.op,
        "dtype": short_dtype(kernel),
        **_shape_columns(kernel),
    }
    common = {item: getattr(sample, item) for item in _COMMON}
    common["kernels"] = json.dumps(
        [row_of_kernel(item) for item in sample.kernels], separators=(",", ":")
    )
    return row | {name: "" if value is None else value for name, value in common.items()}


def short_dtype(kernel: Kernel) -> str:
    """What tables call its dtype: "bf16", "fp32", or "tf32" where it computes so."""
    return "tf32" if kernel.compute == "tf32" else _SHORT_DTYPES.get(kernel.dtype, kernel.dtype)


def _shape_columns(kernel: Kernel) -> dict[str, Any]:
    """The columns that a person, or a reader of data of that kind, looks at."""
    size = kernel.size
    if isinstance(size, GemmSize):
        return {**size._asdict(), "layout": kernel.layout, "out_dtype": kernel.out_dtype}
    if isinstance(size, AttentionSize):
        prefill = "prefill_causal" if size.causal else "full"
        phase = "decode" if size.seq_q == 1 else prefill
        return {**size._asdict(), "phase": phase, "window": 0}
    if isinstance(size, ConvolutionSize):
        return {
            **{
                name: " ".join(map(str, value)) if isinstance(value, tuple) else value
                for name, value in size._asdict().items()
            },
            "memory_format": kernel.layout,
        }
    if isinstance(size, CollectiveSize):
        return {
            "message_bytes": size.num_bytes,
            "num_gpus": size.world_size,
            "num_nodes": size.num_nodes,
        }
    return {
        **size._asdict(),
        "bytes_moved": kernel.num_bytes,
        "kernel_class": kernel.kernel_class.value,
        "layout": kernel.layout,
    }


def _table_samples(folder: Path) -> Iterator[Sample]:
    for name in _TABLES:
        path = folder / f"{name}.csv.gz"
        if not path.exists():
            continue
        try:
            table = csv.DictReader(io.StringIO(_read(path).decode()))
            if "kernels" not in (table.fieldnames or ()):
                raise ValueError("it is no table of kernels")
            for row in table:
                yield _sample_of(row, path)
        except (ValueError, csv.Error) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read: {error}. {_REMEDY}") from error


def _sample_of(row: Mapping[str, Any], path: Path) -> Sample:
    try:
        data: dict[str, Any] = {
            "op": row["op"],
            "probe": row["probe"] if "probe" in row else row["case"],
            "kernels": json_value(row["kernels"]),
            "l2": row["l2"],
            "clock_regime": row["clock_regime"],
            "spread": float(row["spread"]),
            "num_runs": int(row["num_runs"]),
            "num_launches": int(row["num_launches"]),
            "kernel_name": row["kernel_name"],
        }
        for name in ("kernel_us", "event_us", "clock_mhz", "power_w"):
            data[name] = float(row[name]) if row[name] else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds a row that cannot be read ({shown(error)}).") from error
    return sample_from_json(data, path)


# -- constants, workloads, GPUs ----------------------------------------------------------------


def write_quick(folder: Path, quick: Quick) -> None:
    """Writes quick.json."""
    samples = [
        {"kind": kind, **_shape_columns(main_kernel(sample)), **sample_to_json(sample)}
        for kind, sample in quick.samples
    ]
    content = {"samples": samples, "constants": dict(quick.constants)}
    _write_json(folder / "quick.json", content)


def _read_quick(folder: Path) -> Quick | None:
    path = folder / "quick.json"
    if not path.exists():
        return None
    data = _read_json(path)
    samples = tuple(
        (row.text("kind"), sample_from_json(row.values, path)) for row in data.rows("samples")
    )
    return Quick(samples, data.mapping("constants"))


def write_workload(folder: Path, workload: Workload) -> Path:
    """Writes workloads/NAME.json and gives its path."""
    path = folder / "workloads" / f"{workload.workload}.json"
    _write_json(path, asdict(workload))
    return path


def read_workload(path: str | Path) -> Workload:
    """One measured workload; DataError where the file is damaged or of another version."""
    source = Path(path)
    data = _read_json(source)
    times = data.fields("step_us")
    times.number("median", least=_LEAST_US, most=_MOST_US)
    return Workload(
        workload=data.text("workload"),
        command=data.texts("command"),
        arguments=data.mapping("arguments"),
        mode=data.text("mode"),
        environment=data.mapping("environment"),
        step_us=times.values,
        profiled_step_us=_time(data, "profiled_step_us"),
        peak_allocated_bytes=data.count("peak_allocated_bytes"),
        peak_reserved_bytes=data.count("peak_reserved_bytes"),
        num_kernels=data.number("num_kernels", least=0.0),
        gpu_busy_us=data.number("gpu_busy_us", least=0.0),
        host_bound=data.flag("host_bound"),
        kernels=tuple(row.values for row in data.rows("kernels")),
        trace=data.text("trace", default=""),
    )


def write_gpus(folder: Path, gpu: GPU, *, label: str) -> None:
    """Writes gpus.csv: the datasheet under the name that the tables use."""
    peaks = gpu.peak_tflops
    row = {
        "gpu": label,
        "alias": gpu.name,
        "arch": gpu.architecture,
        "sm_version": ".".join(map(str, gpu.compute_capability)),
        "sms": gpu.num_sms,
        "boost_mhz": gpu.boost_clock_mhz,
        "fp32_tflops": peaks.get("fp32", ""),
        **{f"{unit}_dense_tflops": peaks.get(unit, "") for unit in ("tf32", "bf16", "fp16", "fp8")},
        "hbm_gb": gpu.memory_bytes / 1e9,
        "mem_bw_gbps": gpu.bandwidth_gbps,
        "l2_mb": gpu.l2_bytes / 2**20,
        "link_gbps_unidir": gpu.link_gbps,
        "link_kind": gpu.link_kind,
        "tdp_w": gpu.tdp_w,
        "smem_kb_per_sm": gpu.shared_memory_per_sm_bytes / 1024,
    }
    write_atomically(folder / "gpus.csv", _csv([row]))


# -- files -------------------------------------------------------------------------------------


_REMEDY = "Measure again, or use the neusight that wrote it."


def _read_json(path: Path) -> Fields:
    return read_json_document(
        path, kind="file of measurements", error=DataError, remedy=_REMEDY, version=SCHEMA_VERSION
    )


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. {_REMEDY}") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    document = {"schema_version": SCHEMA_VERSION, **content}
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_atomically(path, text.encode())
