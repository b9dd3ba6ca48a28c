"""`neusight.calibrate`: from profiles and folders of measurements to a calibration of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from neusight.integrations.profiles.host_costs import costs_of, merged_costs, scaled_costs
from neusight.integrations.profiles.measurements import measurements_of, reported_left_out
from neusight.integrations.profiles.reading.devices import (
    SAME_MODEL,
    NearestGPU,
    nearest_gpu,
    nearest_gpu_by_name,
)
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.predictors.errors import CalibrationError, TraceError, UnknownGPUError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.measuring.calibration import Calibration, Measurement
from neusight.predictors.measuring.folder import Sample, read_measured, rehearsed_gpu
from neusight.predictors.predictor import Predictor

#: What `calibrate` learns from: a trace or a folder (by path), a profile, measurements, or samples
#: of `neusight measure`.
Source = str | Path | Profile | Measurement | Sample

#: A time between events holds launches and gaps too; they are a small part of longer ones.
_LEAST_EVENT_US = 100.0

_TRACES = ("*.json", "*.json.gz")


@dataclass
class _Evidence:
    """What was found, source after source."""

    gpu: GPU | None
    measurements: list[Measurement] = field(default_factory=list)
    hosts: list[dict[str, float]] = field(default_factory=list)
    #: A step without the profiler over one with it, of programs that their host bounds.
    unprofiled: list[float] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kernel_ns: int = 0
    left_out_ns: Counter[str] = field(default_factory=Counter)
    torch_versions: set[str] = field(default_factory=set)
    about: dict[str, Any] = field(default_factory=dict)

    def meet_gpu(self, name: str, source: str, profile: Profile | None = None) -> GPU:
        """The GPU that is calibrated, now that a source names one; CalibrationError for another,
        which names the nearest for one that is not known, by what the profile says of it."""
        if target := rehearsed_gpu(name):
            self.notes.append(
                f"{source} is a rehearsal: its times are forecasts for {target}, and so this "
                "calibration says nothing of a real GPU"
            )
            name = target
        try:
            there = find_gpu(name)
        except UnknownGPUError:
            if self.gpu is None:
                raise CalibrationError(_unknown_gpu(name, source, profile)) from None
            if name:
                self.notes.append(f"{source}: {name!r} is taken to be {self.gpu.name}, as asked")
            return self.gpu
        if self.gpu is not None and self.gpu.name != there.name:
            raise CalibrationError(
                f"{source} was measured on {there.name}, the calibration is for {self.gpu.name}. "
                "Measurements of one GPU say nothing of another."
            )
        if self.gpu is None:
            self.gpu = there
        return self.gpu


def _unknown_gpu(name: str, source: str, profile: Profile | None) -> str:
    """What is said of a GPU that is not known, with the nearest one that is."""
    what = f"{source} was measured on {name or 'a GPU that it does not name'}, which neusight does"
    if profile is not None:
        found = nearest_gpu(profile)
    else:
        alike = nearest_gpu_by_name(name)
        found = None if alike is None else NearestGPU(alike, SAME_MODEL)
    if found is None:
        return f"{what} not know. Say which it was: --gpu NAME, or gpu= in Python."
    nearest = found.gpu.name
    return (
        f"{what} not know. The nearest is {nearest} ({found.likeness}): say --gpu {nearest}, or "
        "gpu= in Python, or write a file for it (--gpu mygpu.json, with the fields that `neusight "
        f"gpus {nearest}` shows)."
    )


def calibrate(
    source: Source | Sequence[Source],
    gpu: str | GPU | None = None,
    *,
    predictor: str | Predictor | None = None,
) -> Calibration:
    """What measurements of a GPU teach: its constants, corrections by class, its host's costs.

    `source` is the path of a torch.profiler trace (recorded with record_shapes=True) or of a
    folder that `neusight measure` wrote, a `Profile` read with its arguments, a
    `predictors.Measurement`, a sample, or several of those. `gpu` may be left out where the source
    names it. Each correction is kept only where it makes left-out problems come out nearer.

    CalibrationError where there is nothing to learn from, the source is of another GPU, or a trace
    has no shapes; TraceError and DataError where a file cannot be read.

    >>> from neusight.predictors import Kernel, predict
    >>> kernels = [Kernel.gemm(size, 1024, 1024) for size in (256, 512, 1024, 2048)]
    >>> estimates = predict(kernels, "L4")
    >>> slow = [Measurement((k,), 1.3 * e.latency_us) for k, e in zip(kernels, estimates)]
    >>> made = calibrate(slow, "L4")
    >>> made.source["loo_error_after"] < made.source["loo_error_before"]
    True
    """
    items = [source] if isinstance(source, Source) else list(source)
    if not items:
        raise CalibrationError("There is nothing to calibrate with: no measurements were given.")
    found = _Evidence(None if gpu is None else find_gpu(gpu))
    for item in items:
        if isinstance(item, Measurement):
            found.measurements.append(item)
        elif isinstance(item, Sample):
            found.measurements += _of_samples([item], found.notes)
        elif isinstance(item, Profile):
            _fit_profile(found, item, Path(item.source).name)
        else:
            _fit_path(found, Path(item))
    if found.gpu is None:
        raise CalibrationError("Say of which GPU these measurements are: calibrate(..., gpu=NAME).")
    if len(found.torch_versions) > 1:
        raise CalibrationError(
            f"The measurements are of several versions of torch: "
            f"{', '.join(sorted(found.torch_versions))}. Calibrate with those of one."
        )
    return _fitted(found, found.gpu, predictor)


def _fitted(found: _Evidence, gpu: GPU, predictor: str | Predictor | None) -> Calibration:
    from neusight.predictors.measuring.calibrate import fit_calibration

    if found.kernel_ns:
        used = 1.0 - sum(found.left_out_ns.values()) / found.kernel_ns
        found.notes.append(f"{used:.1%} of the kernel time in traces is used")
        found.notes += reported_left_out(found.left_out_ns, found.kernel_ns)
    profiled = merged_costs(found.hosts)
    plain = None
    if profiled is not None and found.unprofiled:
        plain = scaled_costs(profiled, median(found.unprofiled))
    return fit_calibration(
        found.measurements,
        gpu,
        predictor=predictor,
        plain_host=plain,
        profiled_host=profiled,
        torch_version=min(found.torch_versions, default=""),
        source={**found.about, "files": found.files, "notes": found.notes},
    )


def _fit_path(found: _Evidence, path: Path) -> None:
    if path.is_dir():
        if (path / "environment.json").exists():
            _fit_folder(found, path)
            return
        traces = sorted({trace for pattern in _TRACES for trace in path.glob(pattern)})
        if not traces:
            raise CalibrationError(
                f"{path} holds neither environment.json (which `neusight measure` writes) nor "
                "profiler traces (.json, .json.gz)."
            )
        for trace in traces:
            _fit_one_of_many(found, trace)
        if not found.files:
            raise CalibrationError(f"{path} holds no profiler trace: {'; '.join(found.notes)}")
        return
    if path.name == "quick.json" and (path.parent / "environment.json").exists():
        _fit_folder(found, path.parent, only_quick=True)
        return
    _fit_profile(found, read_profile(path, keep_arguments=True), path.name)


def _fit_one_of_many(found: _Evidence, path: Path) -> None:
    """A trace in a folder; other files there are shown and left out."""
    try:
        profile = read_profile(path, keep_arguments=True)
    except TraceError as error:
        found.notes.append(f"{path.name} is left out: {error}")
    else:
        _fit_profile(found, profile, path.name)


def _fit_profile(found: _Evidence, profile: Profile, name: str) -> None:
    gpu = found.meet_gpu(profile.device_name, name, profile)
    described = measurements_of(profile, gpu)
    if not profile.is_complete:
        found.notes += [f"{name}: {note}" for note in profile.notes]
    found.files.append(name)
    found.measurements += described.measurements
    found.kernel_ns += described.total_ns
    found.left_out_ns.update(described.left_out_ns)
    costs = costs_of(profile, gpu)
    if costs is None:
        found.notes.append(f"{name}: shows no launches, so nothing of its host")
    else:
        found.hosts.append(costs)


def _fit_folder(found: _Evidence, folder: Path, *, only_quick: bool = False) -> None:
    measured = read_measured(folder)
    environment = measured.environment
    found.meet_gpu(environment.gpu, folder.name)
    found.files.append(folder.resolve().name)
    found.torch_versions.add(environment.torch)
    found.about.update(driver=environment.driver, date=environment.date, host=environment.host)
    found.notes += [f"{folder.name}: {note}" for note in measured.notes]
    samples = () if only_quick else measured.samples
    quick = () if measured.quick is None else (sample for _, sample in measured.quick.samples)
    found.measurements += _of_samples([*samples, *quick], found.notes)
    for workload in () if only_quick else measured.workloads:
        if workload.host_bound and workload.profiled_step_us:
            found.unprofiled.append(workload.step_us["median"] / workload.profiled_step_us)
        trace = folder / "workloads" / workload.trace
        if workload.trace and trace.exists():
            _fit_profile(found, read_profile(trace, keep_arguments=True), workload.trace)


def _of_samples(samples: Iterable[Sample], notes: list[str]) -> list[Measurement]:
    """Kernel samples as measurements: of a probe both cold and hot the hot one, as forecasts are of
    kernels in a row."""
    chosen: dict[tuple[str, str], Sample] = {}
    too_short = 0
    for sample in samples:
        if sample.kernel_us is None and sample.latency_us < _LEAST_EVENT_US:
            too_short += 1
            continue
        key = (sample.probe, sample.clock_regime)
        if key not in chosen or sample.l2 == "hot":
            chosen[key] = sample
    if too_short:
        notes.append(
            f"{too_short} samples below {_LEAST_EVENT_US:.0f} µs were left out: only the time "
            "between events is known, of which launches are too large a part"
        )
    return [
        Measurement(sample.kernels, sample.latency_us, sample.clock_regime == "sustained")
        for sample in chosen.values()
    ]
