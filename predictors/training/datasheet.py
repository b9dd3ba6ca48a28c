"""GPUs from the rows of a gpus.csv: the datasheet alone, and constants as a prior."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.predictors.errors import DataError, RegistrationError, UnknownGPUError
from neusight.predictors.files import read_bytes, shown
from neusight.predictors.gpu import GPU, find_gpu, gpus
from neusight.predictors.physics.power import filled_in


def read_gpu_rows(path: Path) -> dict[str, dict[str, str]]:
    """The rows of a gpus.csv by the name of the GPU; DataError where it cannot be read."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        table = csv.DictReader(io.StringIO(text))
        rows = [{key: value or "" for key, value in row.items() if key} for row in table]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}. It must be a table in UTF-8.") from error
    return {row.get("gpu", ""): row for row in rows}


#: What tables add to a GPU's name: the system that it was in, in brackets.
_REMARK = re.compile(r" \([^)]*\)$")


class KnownGPUs:
    """The GPUs of a folder: neusight's own, else those of its gpus.csv, else None; with `only`,
    that one alone."""

    def __init__(self, folder: Path, only: GPU | None = None) -> None:
        self._only = only
        self._rows: dict[str, dict[str, str]] = {}
        path = folder / "gpus.csv"
        if path.exists():
            self._rows = read_gpu_rows(path)
        self._known: dict[str, GPU | str] = {}

    def find(self, name: str) -> GPU | str:
        """The GPU, or the reason why there is none."""
        if name not in self._known:
            found = self._look_up(name)
            only = self._only
            if only is not None and isinstance(found, GPU) and found.model != only.model:
                found = "another GPU was asked for"
            self._known[name] = found
        return self._known[name]

    def _look_up(self, name: str) -> GPU | str:
        row = self._rows.get(name, {})
        for label in (name, row.get("alias", ""), _REMARK.sub("", name)):
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
    version, vendor = _version_of(row)
    template = _nearest(version, vendor)
    shared = int(_figure(row, "smem_kb_per_sm") * 1024) or template.shared_memory_per_sm_bytes
    try:
        made = GPU.from_json(
            {
                **template.to_json(),
                "matrix_units": None,  # of the row's own peaks
                "name": row.get("gpu", ""),
                "driver_name": row.get("gpu", ""),
                "architecture": row.get("arch") or template.architecture,
                "compute_capability": list(version),
                "num_sms": int(_figure(row, "sms")),
                "boost_clock_mhz": _figure(row, "boost_mhz"),
                "memory_bytes": int(_figure(row, "hbm_gb") * 1e9),
                "bandwidth_gbps": _figure(row, "mem_bw_gbps"),
                "l2_bytes": int(_figure(row, "l2_mb") * 2**20),
                "shared_memory_per_sm_bytes": shared,
                "tdp_w": _figure(row, "tdp_w") or template.tdp_w,
                "peak_tflops": _peaks_of(row),
                "link_kind": row.get("link_kind") or "",
                "link_gbps": _figure(row, "link_gbps_unidir"),
                "aliases": [],
            }
        )
    except RegistrationError as error:
        raise ValueError(str(error)) from error
    return prior_constants(made)


def _figure(row: dict[str, str], name: str) -> float:
    """A figure of the row, 0 where it is empty."""
    text = (row.get(name) or "").strip()
    value = float(text) if text else 0.0
    if not abs(value) <= _MOST_FIGURE:
        raise ValueError(f"its {name} is {shown(text)}")
    return value


def _version_of(row: dict[str, str]) -> tuple[tuple[int, int], str]:
    """Compute capability and vendor."""
    capability = row.get("sm_version", "").strip()
    is_amd = capability.startswith("gfx")
    if not capability or not (is_amd or capability.replace(".", "").isdigit()):
        raise ValueError("it has no CUDA compute capability")
    if is_amd:
        return (9, 0), "amd"
    number = float(capability[:_MOST_CAPABILITY_CHARS])
    # (9, 0) of both 9.0 and 90: tables spell it as CUDA or as the compiler does.
    tenths = round(number if number >= _FIRST_COMPILER_NUMBER else number * 10)
    return divmod(tenths, 10), "nvidia"


def _peaks_of(row: dict[str, str]) -> dict[str, float]:
    """Peaks in 1e12 FLOP/s by unit."""
    figures = {unit: _figure(row, column) for column, unit in _PEAK_COLUMNS.items()}
    peaks = {unit: figure for unit, figure in figures.items() if figure > 0}
    if "bf16" in peaks and "fp16" not in peaks:
        peaks["fp16"] = peaks["bf16"]
    peaks.setdefault("fp64", peaks.get("fp32", 0.0) * _FP64_SHARE)
    return peaks


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


#: What the power limit says of a product, where that was not measured (`physics/power.py`).
_OF_POWER = ("gemm_utilization", "fp32_gemm_utilization", "sustained_factor")

#: The other constants, whose mean over measured GPUs is the prior of another.
_OF_RELATED = ("bandwidth_utilization", "floor_us", "gemm_floor_us")


def prior_constants(target: GPU, *, without: Callable[[GPU], bool] | None = None) -> GPU:
    """The GPU with constants as if it had never been measured: the mean over measured GPUs of its
    compute capability's major number, else over all; products go by the power limit.

    `without` leaves GPUs out of the means, to score what is left: then products go by the means
    too, as the power model's energies know every measured GPU.
    """
    chosen = _measured_related(target, without or (lambda item: False))
    prior: dict[str, Any] = dict.fromkeys((*_OF_POWER, "stream_utilization"), 0.0)
    if not chosen:  # what `GPU` assumes where a file says nothing
        assumed = {item.name: item.default for item in fields(GPU) if item.name in _OF_RELATED}
        return replace(target, **{**prior, "constants_origin": "prior", **assumed})
    names = _OF_RELATED if without is None else (*_OF_POWER, *_OF_RELATED)
    for name in names:
        prior[name] = round(float(np.mean([_constant(item, name) for item in chosen])), 4)
    prior["link_floor_us"] = float(np.median([item.link_floor_us for item in chosen]))
    prior["constants_origin"] = f"prior, the mean of {len(chosen)} measured GPUs"
    return replace(target, **prior)


def _measured_related(target: GPU, without: Callable[[GPU], bool]) -> list[GPU]:
    """Measured GPUs of its compute capability's major number, else all measured ones."""
    measured = [
        item
        for item in map(find_gpu, gpus())
        if item.constants_origin.startswith("fitted on data/modern")
        and item.name != target.name
        and not without(item)
    ]
    major = target.compute_capability[0]
    return [item for item in measured if item.compute_capability[0] == major] or measured


def _constant(item: GPU, name: str) -> float:
    if name == "gemm_floor_us":
        return item.gemm_floor_us or item.floor_us
    return float(getattr(filled_in(item), name))
