"""The samples of `neusight measure` as groups of rows, for `evaluate` and `fit`."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from neusight.predictors.errors import DataError, UnknownGPUError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import (
    Sample,
    main_kernel,
    read_measured,
    short_dtype,
    table_of,
)
from neusight.predictors.training.dataset import Dataset, Group
from neusight.predictors.training.datasheet import gpu_of_row, read_gpu_rows


def measured_dataset(folder: Path, *, tables: Sequence[str] | None = None) -> Dataset:
    """All samples of a folder, of these tables or all; what was launched is what was described.

    DataError where the folder is damaged, has no sample, or its GPU is unknown.
    """
    measured = read_measured(folder)
    label = measured.environment.gpu
    target = _gpu_of(folder, label)
    groups: defaultdict[tuple[str, str, str, bool], list[Sample]] = defaultdict(list)
    for sample in measured.samples:
        table = table_of(sample)
        if tables is None or table in tables:
            name = f"{_operation(sample)} ({sample.l2} L2)"
            sustained = sample.clock_regime == "sustained"
            groups[table, short_dtype(main_kernel(sample)), name, sustained].append(sample)
    if not groups:
        raise DataError(f"{folder} holds no measured kernels.")
    return Dataset(
        folder,
        tuple(
            Group(
                gpu_label=label,
                gpu=target,
                table=table,
                dtype=dtype,
                phase_or_op=name,
                launches=[_main_last(sample) for sample in samples],
                latency_us=np.array([sample.latency_us for sample in samples]),
                shape=np.array([_number(sample.probe) for sample in samples], dtype=np.uint64),
                sustained=sustained,
            )
            for (table, dtype, name, sustained), samples in sorted(groups.items())
        ),
        measured.notes,
    )


def _operation(sample: Sample) -> str:
    """What was run, by what distinguishes kernels of one class: layout, pass, library."""
    words = dict(part.partition("=")[::2] for part in sample.probe.split()[1:])
    reported = ("layout", "backend", "direction", "implementation", "memory_format")
    parts = [sample.op, *(words[name] for name in reported if name in words)]
    if "part" in words:
        parts.append(main_kernel(sample).name)
    return " ".join(parts)


def _gpu_of(folder: Path, label: str) -> GPU:
    """The GPU of that driver name; else, by the datasheet in gpus.csv, what is known of it."""
    try:
        return find_gpu(label)
    except UnknownGPUError:
        path = folder / "gpus.csv"
        if not path.exists():
            raise
    rows = read_gpu_rows(path)
    if label not in rows:
        raise DataError(f"{path} does not describe {label}.")
    try:
        return find_gpu(rows[label].get("alias", ""))
    except UnknownGPUError:
        pass
    try:
        return gpu_of_row(rows[label])
    except ValueError as error:
        raise DataError(f"{path}: the row of {label} cannot be used: {error}") from error


def _main_last(sample: Sample) -> tuple[Kernel, ...]:
    """The kernels launched, with the one that is fitted last."""
    kernels, main = list(sample.kernels), main_kernel(sample)
    kernels.remove(main)
    return (*kernels, main)


def _number(probe: str) -> int:
    """A number for the sizes of each probe, the same on every machine, whatever its dtype, layout
    and pass: what is held out has sizes that no other row has."""
    op, *arguments = probe.partition(" part=")[0].split()
    pairs = ((part, *part.partition("=")[::2]) for part in arguments)
    sizes = [part for part, name, value in pairs if value.isdigit() and name != "benchmark"]
    text = " ".join([op, *sizes])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
