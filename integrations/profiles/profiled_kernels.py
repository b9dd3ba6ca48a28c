"""Kernels of whole programs out of public profiles, as tables: one row a call and kernel.

Each row is an operator call with shapes, strides, types and scalars, one of the kernels it launched
and how often and how long that ran. Calls are made again in a forecast, as those of a trace are.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from neusight.integrations.profiles.measurements import (
    RecordedCall,
    frozen,
    kernels_of_calls,
)
from neusight.predictors.errors import DataError, UnknownGPUError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import short_dtype
from neusight.predictors.predictor import Predictor
from neusight.predictors.training.dataset import Dataset, Group

#: What a table of profiled kernels must have; other columns are the reader's.
_COLUMNS = (
    "gpu", "program", "op", "input_dims", "input_strides", "input_types", "concrete_inputs",
    "kernel_name", "count", "median_us",
)  # fmt: skip


@dataclass(frozen=True)
class ProfiledCall:
    """A call of a program: what it launches here, how long its kernels took there, how often."""

    gpu_label: str
    gpu: GPU
    program: str
    op: str
    kernels: tuple[Kernel, ...]
    measured_us: float
    count: int


def is_profiled(folder: str | Path) -> bool:
    """Whether a folder holds tables of profiled kernels."""
    return any(_header(path) >= set(_COLUMNS) for path in Path(folder).glob("*.csv"))


def _header(path: Path) -> set[str]:
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        return set(next(csv.reader(stream), ()))


def read_profiled(
    folder: str | Path, *, torch_versions: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[ProfiledCall], list[str]]:
    """Every call of every table of the folder, with the kernels of the release of torch that ran
    each program (default: the newest), and what was left out, with the reason.

    DataError where a table is damaged; a GPU not known is left out.
    """
    found: list[ProfiledCall] = []
    left_out: list[str] = []
    for path in sorted(Path(folder).glob("*.csv")):
        if _header(path) >= set(_COLUMNS):
            with path.open(newline="", encoding="utf-8") as stream:
                rows = list(csv.DictReader(stream))
            found += _read_table(path, rows, torch_versions, left_out)
    return found, left_out


def _read_table(
    path: Path, rows: list[dict[str, str]], torch_versions: Mapping[str, str], left_out: list[str]
) -> Iterable[ProfiledCall]:
    calls: dict[tuple[str, str, RecordedCall], list[dict[str, str]]] = defaultdict(list)
    for number, row in enumerate(rows, start=2):
        try:
            version = torch_versions.get(row["program"], "")
            call = _call_of(row)._replace(torch_version=version)
            calls[row["gpu"], row["program"], call].append(row)
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error}.") from error
    for label in sorted({gpu for gpu, _, _ in calls}):
        try:
            target = find_gpu(label.removesuffix(" VF"))
        except UnknownGPUError:
            left_out.append(f"{path.name}: {label} is not known")
            continue
        own = {key: value for key, value in calls.items() if key[0] == label}
        yield from _calls_on(target, own, left_out)


def _calls_on(
    target: GPU,
    calls: Mapping[tuple[str, str, RecordedCall], list[dict[str, str]]],
    left_out: list[str],
) -> Iterable[ProfiledCall]:
    described = kernels_of_calls([call for _, _, call in calls], target)
    unused: dict[tuple[str, str], float] = defaultdict(float)
    for ((label, program, call), rows), kernels in zip(calls.items(), described, strict=True):
        times = [float(row["median_us"]) * int(row["count"]) for row in rows]
        if isinstance(kernels, str):
            unused[program, kernels] += sum(times)
            continue
        count = _num_calls(rows)
        yield ProfiledCall(label, target, program, call.name, kernels, sum(times) / count, count)
    left_out += [
        f"{label}, {program}: {reason} ({time_us / 1e3:.2f} ms)"
        for (program, reason), time_us in sorted(unused.items(), key=lambda item: -item[1])
    ]


def _num_calls(rows: Sequence[Mapping[str, str]]) -> int:
    """How often the operator was called: as often as the kernel ran that takes longest. Helpers may
    run several times a call (MIOpen's transposes of image, filter and result have one name)."""
    longest = max(rows, key=lambda row: float(row["median_us"]))
    return int(longest["count"])


def _call_of(row: Mapping[str, str]) -> RecordedCall:
    """The call of a row; ValueError where a column is no JSON or a figure is none."""
    if not float(row["median_us"]) > 0 or int(row["count"]) < 1:
        raise ValueError(f"median_us is {row['median_us']} and count {row['count']}; both are > 0")
    call = RecordedCall(
        name=row["op"],
        dims=frozen(_json(row, "input_dims")),
        strides=frozen(_json(row, "input_strides")),
        types=tuple(map(str, _json(row, "input_types"))),
        values=tuple(map(str, _json(row, "concrete_inputs"))),
        is_tf32="tf32" in row["kernel_name"].lower() or "s1688" in row["kernel_name"].lower(),
    )
    return _REWRITTEN[call.name](call) if call.name in _REWRITTEN else call


def _plain_convolution(call: RecordedCall, *, first_setting: int) -> RecordedCall:
    """A library's convolution, without a bias, as the operator that calls it, which any build of
    torch runs; its settings begin at that argument."""
    padding, stride, dilation, groups = call.values[first_setting : first_setting + 4]
    values = ("", "", "", stride, padding, dilation, "False", "[0, 0]", groups)
    rest = len(values) - 2
    return call._replace(
        name="aten::convolution",
        dims=(*call.dims[:2], *((),) * rest),
        strides=(*call.strides[:2], *((),) * rest),
        types=(*call.types[:2], "", *_CONVOLUTION_TYPES),
        values=values,
    )


#: Types of the arguments of aten::convolution behind the bias, as profiles write them.
_CONVOLUTION_TYPES = (*("ScalarList",) * 3, "Scalar", "ScalarList", "Scalar")


def _plain_attention(call: RecordedCall) -> RecordedCall:
    """FlashAttention's own entry, which takes [batch, sequence, head, depth], as torch calls it."""
    dropout, is_causal, debug, scale = call.values[7:11]
    rest = ((),) * 4
    return call._replace(
        name="aten::_scaled_dot_product_flash_attention",
        dims=(*map(_heads_first, call.dims[:3]), *rest),
        strides=(*map(_heads_first, call.strides[:3]), *rest),
        types=(*call.types[:3], *("Scalar",) * 4),
        values=("", "", "", dropout, is_causal, debug, scale),
    )


def _heads_first(sizes: tuple[int, ...]) -> tuple[int, ...]:
    batch, sequence, head, depth = sizes
    return batch, head, sequence, depth


_REWRITTEN: dict[str, Callable[[RecordedCall], RecordedCall]] = {
    "aten::cudnn_convolution": partial(_plain_convolution, first_setting=2),
    # Its bias is an aten::add_ of its own inside, with rows of its own.
    "aten::miopen_convolution": partial(_plain_convolution, first_setting=3),
    "aten::_flash_attention_forward": _plain_attention,
}


def _json(row: Mapping[str, str], column: str) -> list[Any]:
    value = json.loads(row[column])
    if not isinstance(value, list):
        raise ValueError(f"{column} is {row[column]!r}, no list")
    return value


def profiled_dataset(folder: str | Path) -> Dataset:
    """The calls as groups of rows, by operator, each call one row however often it ran."""
    calls, left_out = read_profiled(folder)
    groups: dict[tuple[str, str, str], list[ProfiledCall]] = defaultdict(list)
    for call in calls:
        groups[call.gpu_label, short_dtype(call.kernels[-1]), call.op].append(call)
    if not groups:
        raise DataError(f"{folder} holds no call that can be made again.")
    return Dataset(
        Path(folder),
        tuple(
            Group(
                gpu_label=label,
                gpu=own[0].gpu,
                table="profiled_kernels",
                dtype=dtype,
                phase_or_op=op.removeprefix("aten::"),
                launches=[call.kernels for call in own],
                latency_us=np.array([call.measured_us for call in own]),
                shape=np.array([_shape(call) for call in own], dtype=np.uint64),
            )
            for (label, dtype, op), own in sorted(groups.items())
        ),
        tuple(left_out),
    )


def _shape(call: ProfiledCall) -> int:
    """A number for each call, the same on every machine."""
    text = " ".join(kernel.key for kernel in call.kernels)
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def totals_table(calls: Iterable[ProfiledCall], chosen: Predictor) -> str:
    """Kernel time of each program, measured and forecast, ms: what can be made again."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for call in calls:
        estimates = chosen.predict(call.kernels, call.gpu)
        both = sums[call.gpu_label, call.program]
        both[0] += call.measured_us * call.count / 1e3
        both[1] += sum(estimate.latency_us for estimate in estimates) * call.count / 1e3
    lines = [f"{'program':<52} {'measured ms':>12} {'forecast ms':>12} {'error':>7}"]
    lines += [
        f"{label + ' ' + program:<52} {measured:>12.2f} {forecast:>12.2f}"
        f" {forecast / measured - 1.0:>+7.1%}"
        for (label, program), (measured, forecast) in sorted(sums.items())
    ]
    return "\n".join(lines)
