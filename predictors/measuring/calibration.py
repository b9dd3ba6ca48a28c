"""A predictor fitted to a user's measurements: constants of the GPU, corrections, host costs.

A `Calibration` is a small JSON file. It belongs to one GPU and one version of one predictor: it
holds what that predictor got wrong, and would mislead any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from neusight.predictors.errors import CalibrationError, UnsupportedKernelError
from neusight.predictors.files import Fields, read_json_document, shown, write_atomically
from neusight.predictors.formatting import aligned
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    AttentionSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
    KernelClass,
)
from neusight.predictors.physics.physical_time import whole_nanoseconds
from neusight.predictors.physics.roofline import flop_roofline_us
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.terminal_text import printable_lines

#: Raised when the form of the file changes.
SCHEMA_VERSION = 1
_FORMAT = "neusight calibration"
_KIND = "calibration"
_REMEDY = "`neusight calibrate` makes one from the measurements."

#: What a calibration may change of a GPU: field of `GPU`, and its largest value.
CONSTANTS: Mapping[str, float] = MappingProxyType(
    {
        "floor_us": math.inf,
        "bandwidth_utilization": 1.0,
        "gemm_utilization": 1.0,
        "fp32_gemm_utilization": 1.0,
        "sustained_factor": 1.0,
        "link_floor_us": math.inf,
    }
)

#: How far beyond the measured times a correction still counts as measured, and how much wider its
#: interval is past that. Assumptions.
_REACH = 3.0
_WIDENING = 1.5

#: How far beyond the measured times half of a correction is left, log: ten times. What is wrong
#: with short kernels need not be with long ones; slow enough that longer forecasts stay longer.
_FADE = math.log(10.0)

#: A host's costs by the names of its profile's fields, µs (`backward_share`: a share).
HostCosts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: what was launched, and how many µs it took on the GPU.

    `launches` ran one after the other; the time is theirs alone, without launch and gaps.
    `sustained`: at the clocks of a long, busy run, as training is; else of a short burst.

    >>> Measurement((Kernel.gemm(4096, 4096, 4096),), 231.5).latency_us
    231.5
    """

    launches: tuple[Kernel, ...]
    latency_us: float
    sustained: bool = True


@dataclass(frozen=True, slots=True)
class ClassCorrection:
    """What measurements say of one kernel class and dtype, or one variant of it.

    A forecast of t µs becomes `factor` · t · (t / `center_us`)^`slope` for t between `low_us` and
    `high_us`, the forecast times of what was measured; beyond, the correction fades. `spread` is
    the half width of the 80 % interval as a share. `variant` "" stands for all variants that have
    no row of their own. The errors are means of |forecast / measured − 1|, each problem forecast by
    the others alone; where that showed no gain, `is_applied` is false and the factor 1: the row
    states the spread alone. Where the constants made the class worse, `keeps_constants` is false:
    it is priced without.
    """

    kernel_class: str
    dtype: str
    factor: float
    spread: float
    num_samples: int
    loo_error_before: float
    loo_error_after: float
    variant: str = ""
    slope: float = 0.0
    center_us: float = 1.0
    low_us: float = 0.0
    high_us: float = math.inf
    is_applied: bool = True
    keeps_constants: bool = True

    def factor_at(self, time_us: float) -> float:
        """What a forecast of `time_us` is multiplied by; it fades towards 1 far from what was
        measured, where nothing proves it."""
        within = min(max(time_us, self.low_us), self.high_us)
        level = math.log(self.factor)
        if self.slope:
            level += self.slope * math.log(within / self.center_us)
        beyond = math.log(time_us / within) / _FADE if within > 0.0 else 0.0
        return math.exp(level / (1.0 + beyond * beyond))

    def covers(self, time_us: float) -> bool:
        """Whether there are measurements near that forecast time."""
        return self.low_us / _REACH <= time_us <= self.high_us * _REACH


@dataclass(frozen=True)
class Calibration:
    """What is known of one GPU; made by `neusight.calibrate`, kept in a small file.

    `constants` are fields of `GPU` that replace the shipped ones. `plain_host` and `profiled_host`
    are the costs of that machine's host without and with a profiler, None where not measured.
    `predictor` and `behaviour` say for which predictor it holds, `torch_version` with which torch
    was measured ("" unknown). `source` shows where it comes from and what it gained.
    """

    gpu: str
    predictor: str
    behaviour: str
    constants: Mapping[str, float] = field(default_factory=dict)
    corrections: tuple[ClassCorrection, ...] = ()
    plain_host: HostCosts | None = None
    profiled_host: HostCosts | None = None
    torch_version: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)

    def applied_to(self, predictor: Predictor, gpu: GPU) -> Calibrated:
        """The predictor with what was fitted.

        CalibrationError where the calibration is of another GPU, another predictor, or another
        version of it.
        """
        if self.gpu != gpu.name:
            raise CalibrationError(
                f"The calibration is for {shown(self.gpu)}, the forecast for {gpu.name}. "
                f"Calibrate for {gpu.name}, or forecast without it."
            )
        base = predictor.base if isinstance(predictor, Calibrated) else predictor
        if self.predictor != base.name:
            raise CalibrationError(
                f"The calibration corrects predictor {shown(self.predictor)}, the forecast asks "
                f"for {base.name!r}. Calibrate with --predictor {base.name}, or leave that out."
            )
        if self.behaviour != behaviour_of(base, gpu):
            raise CalibrationError(
                f"The calibration was made for another version of neusight, or of the GPU's "
                f"figures: its predictor {self.predictor!r} priced {gpu.name} differently. "
                "Calibrate again from the same measurements (`neusight calibrate`)."
            )
        return Calibrated(base, self)

    def tuned(self, gpu: GPU) -> GPU:
        """The GPU with the constants that were fitted."""
        return with_constants(gpu, self.constants) if self.constants else gpu

    def save(self, path: str | Path) -> None:
        """Writes the file, equal calibrations to equal bytes."""
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, allow_nan=False) + "\n"
        write_atomically(path, text.encode())

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads what `save` wrote; CalibrationError where that cannot be used."""
        return cls._of(read_json_document(path, kind=_KIND, error=CalibrationError, remedy=_REMEDY))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values; `from_json` reads it back."""
        return {
            "format": _FORMAT,
            "schema_version": SCHEMA_VERSION,
            "gpu": self.gpu,
            "predictor": self.predictor,
            "behaviour": self.behaviour,
            "torch": self.torch_version,
            "source": dict(self.source),
            "constants": dict(self.constants),
            "corrections": [asdict(row) for row in self.corrections],
            "host": {
                "plain": None if self.plain_host is None else dict(self.plain_host),
                "profiled": None if self.profiled_host is None else dict(self.profiled_host),
            },
        }

    @classmethod
    def from_json(cls, document: object, *, source: str = "it") -> Calibration:
        """The calibration that `to_json` wrote; CalibrationError names what is wrong."""
        values = document if isinstance(document, dict) else {}
        return cls._of(Fields(values, _KIND, source, error=CalibrationError, remedy=_REMEDY))

    @classmethod
    def _of(cls, document: Fields) -> Calibration:
        if document.values.get("format") != _FORMAT:
            raise CalibrationError(
                f"{document.source} is no calibration. `neusight calibrate` makes one from a "
                "profiler trace or a folder of measurements."
            )
        document.require_version("schema_version", SCHEMA_VERSION)
        host = document.fields("host")
        return cls(
            gpu=document.text("gpu"),
            predictor=document.text("predictor"),
            behaviour=document.text("behaviour"),
            constants=_read_constants(document.fields("constants")),
            corrections=tuple(map(_read_correction, document.rows("corrections"))),
            plain_host=_read_costs(host, "plain"),
            profiled_host=_read_costs(host, "profiled"),
            torch_version=document.text("torch", default=""),
            source=_read_source(document.fields("source")),
        )

    def headline(self) -> str:
        """A line: by how many measurements it corrects, and what that gained."""
        if "loo_error_before" not in self.source:
            return "calibrated to the host that was measured"
        return (
            f"calibrated by {self.source['num_problems']} measured problems: error "
            f"{self.source['loo_error_before']:.0%} before, {self.source['loo_error_after']:.0%} "
            "after, on those left out"
        )

    def table(self) -> str:
        """What was fitted and how much it helps, as a text table."""
        return printable_lines([*_headlines(self), *_rows(self), *_host_lines(self)])


def _read_constants(found: Fields) -> dict[str, float]:
    found.require_only(CONSTANTS)
    return {
        name: found.number(name, least=_LEAST, most=min(most, _MOST))
        for name, most in CONSTANTS.items()
        if name in found.values
    }


def _read_costs(host: Fields, name: str) -> dict[str, float] | None:
    if not host.optional(name):
        return None
    found = host.fields(name)
    return {cost: found.number(cost, least=0.0, most=_MOST) for cost in sorted(found.values)}


def _read_source(found: Fields) -> dict[str, Any]:
    """Checks only the values that are printed."""
    for reported, needs in _TOGETHER.items():
        for name in needs if reported in found.values else ():
            found.number(name, least=0.0, most=_MOST)
    if "shipped_constants" in found.values:
        shipped = found.fields("shipped_constants")
        for name in shipped.values:
            shipped.number(name, least=0.0, most=_MOST)
    for name in ("constants_kept", "notes", "files"):
        found.texts(name, default=[])
    return dict(found.values)


def _read_correction(row: Fields) -> ClassCorrection:
    row.require_only([item.name for item in fields(ClassCorrection)])
    numbers: dict[str, Any] = {
        name: row.number(name, least=least, most=most) for name, least, most in _LIMITS
    }
    return ClassCorrection(
        kernel_class=row.choice("kernel_class", [item.value for item in KernelClass]),
        dtype=row.text("dtype"),
        variant=row.text("variant", default=""),
        is_applied=row.flag("is_applied"),
        keeps_constants=row.flag("keeps_constants"),
        num_samples=row.count("num_samples"),
        **numbers,
    )


#: Figures of `source` that are printed together, by the one that decides whether they are.
_TOGETHER = {
    "num_measurements": ("num_measurements", "num_problems"),
    "loo_error_before": ("loo_error_before", "loo_error_after", "num_problems"),
}

#: Values outside these are damage, not measurements.
_LEAST, _MOST = 1e-6, 1e12
_LIMITS = (
    ("factor", 0.05, 20.0),
    ("spread", 0.0, 100.0),
    ("slope", -0.9, 0.9),
    ("center_us", _LEAST, _MOST),
    ("low_us", 0.0, _MOST),
    ("high_us", 0.0, _MOST),
    ("loo_error_before", 0.0, _MOST),
    ("loo_error_after", 0.0, _MOST),
)


class Calibrated:
    """A predictor with what is known of one GPU; `Calibration.applied_to` makes it."""

    def __init__(self, base: Predictor, calibration: Calibration) -> None:
        self.base = base
        self.calibration = calibration
        self._rows = {
            (row.kernel_class, row.dtype, row.variant): row for row in calibration.corrections
        }
        self._tuned: dict[str, GPU] = {}

    @property
    def name(self) -> str:
        """The predictor's name with a mark that it is calibrated."""
        return f"{self.base.name}, calibrated"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; those that the calibration affects say so by name."""
        tuned = self._tuned.get(gpu.fingerprint)
        if tuned is None:
            tuned = self._tuned[gpu.fingerprint] = self.calibration.tuned(gpu)
        rows = [self.row_of(kernel) for kernel in kernels]
        found: dict[int, Estimate] = {}
        for target, keeps in ((tuned, True), (gpu, False)):
            own = [
                index
                for index, row in enumerate(rows)
                if (row is None or row.keeps_constants) == keeps
            ]
            estimates = self.base.predict([kernels[index] for index in own], target)
            found.update(zip(own, estimates, strict=True))
        return [
            self._corrected(kernel, found[index], rows[index], gpu)
            for index, kernel in enumerate(kernels)
        ]

    def row_of(self, kernel: Kernel) -> ClassCorrection | None:
        """The correction of such a kernel; None if there were no measurements."""
        kind = kernel.kernel_class.value
        own = self._rows.get((kind, kernel.dtype, variant_of(kernel)))
        return own if own is not None else self._rows.get((kind, kernel.dtype, ""))

    def _corrected(
        self, kernel: Kernel, estimate: Estimate, row: ClassCorrection | None, gpu: GPU
    ) -> Estimate:
        if row is None:
            named = self.name if self.calibration.constants else estimate.predictor
            return replace(estimate, predictor=named)
        time_us = estimate.latency_us * row.factor_at(estimate.latency_us)
        least_us = flop_roofline_us(kernel, gpu)
        latency_us = whole_nanoseconds(max(time_us, least_us))
        is_near = row.covers(estimate.latency_us)
        width = 1.0 + row.spread * (1.0 if is_near else _WIDENING)
        return replace(
            estimate,
            latency_us=latency_us,
            low_us=min(latency_us, whole_nanoseconds(max(latency_us / width, least_us))),
            high_us=max(latency_us, whole_nanoseconds(latency_us * width)),
            predictor=self.name,
            in_range=estimate.in_range or (is_near and row.is_applied),
            utilization=min(1.0, least_us / latency_us),
        )


def with_constants(gpu: GPU, constants: Mapping[str, float]) -> GPU:
    """The GPU with those constants, which count as fitted."""
    return replace(moved(gpu, constants), constants_origin="fitted by calibration")


def moved(gpu: GPU, constants: Mapping[str, float]) -> GPU:
    """The GPU with other constants, nothing else said of it; what kernels that only move bytes
    reach of the bandwidth goes with what all reach."""
    changed: dict[str, Any] = dict(constants)
    if "bandwidth_utilization" in constants:
        ratio = constants["bandwidth_utilization"] / gpu.bandwidth_utilization
        changed["stream_utilization"] = min(1.0, gpu.stream_utilization * ratio)
    return replace(gpu, **changed)


def variant_of(kernel: Kernel) -> str:
    """What distinguishes kernels of one class and dtype: layout, direction, phase or operation.

    >>> variant_of(Kernel.gemm(8, 8, 8, batch=4, layout="nn"))
    'nn batched'
    """
    size = kernel.size
    if isinstance(size, GemmSize):
        return f"{kernel.layout} batched" if size.batch > 1 else kernel.layout
    if isinstance(size, ConvolutionSize):
        return size.direction
    if isinstance(size, AttentionSize):
        if size.backward:
            return "backward"
        return "decode" if size.seq_q == 1 else "forward"
    return kernel.name


def behaviour_of(predictor: Predictor, gpu: GPU) -> str:
    """Twelve hex digits that change when the predictor prices such kernels differently."""
    prices = []
    for kernel in _probes():
        try:
            [estimate] = predictor.predict([kernel], gpu)
        except UnsupportedKernelError:
            prices.append("none")
        else:
            prices.append(f"{kernel.key} {estimate.latency_us:.3f}")
    return sha256("\n".join(prices).encode()).hexdigest()[:12]


def _probes() -> list[Kernel]:
    """A large and a small kernel of each family."""
    image = ConvolutionSize(32, 64, 128, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
    return [
        *(Kernel.gemm(4096, 4096, 1024, dtype=dtype) for dtype in ("bfloat16", "float32")),
        Kernel.gemm(64, 640, 2560, dtype="float16", layout="nn"),
        Kernel.gemm(128, 128, 64, batch=96, dtype="bfloat16", layout="tn"),
        Kernel.convolution(image, dtype="float32", compute="tf32"),
        Kernel.convolution(image._replace(direction="weight_gradient"), dtype="float16"),
        *(
            Kernel.attention(4, 16, 16, 1024, 1024, 64, causal=True, dtype="bfloat16", backward=b)
            for b in (False, True)
        ),
        Kernel.elementwise("add", 1 << 24, dtype="float32", num_inputs=2),
        Kernel.elementwise("gelu", 1 << 12, dtype="bfloat16"),
        *(
            Kernel.rows(
                kind, kind.value, 4096, 1024, dtype="bfloat16",
                bytes_read=1 << 23, bytes_written=1 << 23,
            )
            for kind in _MEMORY_CLASSES
        ),
        Kernel.collective("all_reduce", 1 << 24, 8),
    ]  # fmt: skip


_MEMORY_CLASSES = (
    KernelClass.REDUCTION,
    KernelClass.SOFTMAX,
    KernelClass.NORMALIZATION,
    KernelClass.GATHER,
    KernelClass.COPY,
    KernelClass.SORT,
    KernelClass.OPTIMIZER,
    KernelClass.CUSTOM,
    KernelClass.UNKNOWN,
)


# -- words -----------------------------------------------------------------------------------------


def _headlines(calibration: Calibration) -> list[str]:
    source = calibration.source
    lines = [f"{calibration.gpu}, predictor {calibration.predictor}"]
    if "num_measurements" in source:
        lines.append(
            f"  measured    {source['num_measurements']} times, {source['num_problems']} different "
            "problems"
        )
    if "loo_error_before" in source:
        lines.append(
            f"  error       {source['loo_error_before']:.1%} before, "
            f"{source['loo_error_after']:.1%} after, each problem left out in turn"
        )
    shipped: Mapping[str, Any] = source.get("shipped_constants", {})
    for name, value in calibration.constants.items():
        was = f" (was {shipped[name]:.4g})" if name in shipped else ""
        lines.append(f"  constant    {name} {value:.4g}{was}")
    for name in source.get("constants_kept", ()):
        lines.append(f"  constant    {name} stays: a fit did not help")
    return lines


def _rows(calibration: Calibration) -> list[str]:
    if not calibration.corrections:
        return []
    head = ("class", "dtype", "variant", "problems", "factor", "±", "before", "after", "")
    table = [head]
    for row in calibration.corrections:
        table.append(
            (
                row.kernel_class,
                row.dtype,
                row.variant or "(all)",
                str(row.num_samples),
                f"{row.factor:.3f}",
                f"{row.spread:.0%}",
                f"{row.loo_error_before:.1%}",
                f"{row.loo_error_after:.1%}",
                _why_not(row),
            )
        )
    return [f"  {line}" for line in aligned(table, left=(0, 1, 2, 8))]


def _why_not(row: ClassCorrection) -> str:
    if row.is_applied:
        return ""
    if row.num_samples == 1:
        return "no factor: one problem proves nothing"
    return "no factor: it would not help"


def _host_lines(calibration: Calibration) -> list[str]:
    hosts = (("plain", calibration.plain_host), ("profiled", calibration.profiled_host))
    lines = []
    for label, costs in hosts:
        if costs is None:
            lines.append(f"  host        {label}: not measured, as shipped")
            continue
        shown = ", ".join(
            f"{name.removesuffix('_us')} {costs[name]:.1f}"
            for name in ("op_us", "gemm_us", "view_us", "launch_us", "synchronize_us")
            if name in costs
        )
        lines.append(f"  host        {label}: {shown} µs")
    return lines
