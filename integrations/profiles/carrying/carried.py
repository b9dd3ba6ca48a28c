"""`neusight.carry`: what a profile of a GPU that you own says of one that you do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from neusight.forecast import Forecast, forecast_options
from neusight.integrations.profiles.carrying.prices import CarriedKernel, carried_kernels
from neusight.integrations.profiles.carrying.program import CarriedProgram
from neusight.integrations.profiles.carrying.replay import replayed
from neusight.integrations.profiles.reading.devices import alike_gpus, nearest_gpu_by_name, words_of
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.predictors.errors import TraceError, UnknownGPUError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.predictor import Predictor
from neusight.recording.recording import MEMORY_OPTION, Recording

_NS_PER_US = 1000

#: A host differs from itself by this factor (runs on one machine, a day apart, data/kernelbench
#: v0 of L40S).
_SAME_HOST = 1.1

#: Share of the kernel time from which on it is reported that it was carried by bytes alone.
_NAMED_SHARE = 0.01


def carry(
    profile: str | Path | Profile,
    gpu: str | GPU,
    *,
    source: str | GPU | None = None,
    predictor: str | Predictor | None = None,
) -> Forecast:
    """The program of a profile on another GPU: its measured kernels carried over, its host's
    timeline played again around them. `source` is the GPU of the profile, where it does not state
    it.

    On the source itself it gives back what was measured. TraceError where the profile has no
    kernels, is itself a forecast or is of another GPU than `source`; UnknownGPUError;
    UnsupportedKernelError where `gpu` cannot run one of its kernels (FP8 on a V100).
    """
    read = _read(profile)
    there, here = source_of(read, source), find_gpu(gpu)
    options = forecast_options(here, predictor=predictor)
    host = replace(options.host, name="of the profile", fastest=1 / _SAME_HOST, slowest=_SAME_HOST)
    options = replace(options, host=host, profile_memory=False)
    kernels = carried_kernels(read, source=there, target=here, predictor=options.predictor)
    from_profile = {"carried_from": there.name}
    if read.peak_allocated_bytes is None:
        from_profile[MEMORY_OPTION] = "not in the profile"
    now = replayed(read, [round(item.estimate.latency_us * _NS_PER_US) for item in kernels])
    made = CarriedProgram(read, kernels, now)
    recording = Recording(
        made.steps(),
        gpu=here.name,
        torch_version=str(read.metadata.get("torch_version", "2.13.0")),
        warnings=tuple(_warnings(read, kernels, there, here)),
        script=Path(read.source).name,
        options=from_profile,
    )
    forecast = Forecast(recording, options)
    forecast.timeline = made.timeline(recording)
    return forecast


def source_of(profile: Profile, source: str | GPU | None) -> GPU:
    """The GPU that a profile is of: as stated, as it says, or the nearest one of that model.

    TraceError where it is of another model than `source`, or nothing states it.
    """
    stated = None if source is None else find_gpu(source)
    found = _stated_gpu(profile.device_name)
    if stated is None and found is None:
        alike = [gpu.name for gpu in alike_gpus(profile)]
        looks = f" By its figures it is {' or '.join(alike)}." if alike else ""
        nearest = alike[0] if alike else "GPU"
        raise TraceError(
            f"{profile.source} is of a GPU that neusight does not know"
            f" ({profile.device_name or 'it names none'}).{looks}"
            f" Say which one is nearest: --from {nearest}."
        )
    if stated is not None and found is not None and stated.architecture != found.architecture:
        raise TraceError(
            f"{profile.source} was taken on {profile.device_name}, not on {stated.name}."
            " Leave --from out, or give the profile of that GPU."
        )
    chosen = stated or found
    assert chosen is not None
    return chosen


def _stated_gpu(device_name: str) -> GPU | None:
    """The GPU of that name; of one that is not known (V100-DGXS) the one that shares most words
    with it, the model among them."""
    try:
        return find_gpu(device_name) if device_name else None
    except UnknownGPUError:
        return nearest_gpu_by_name(device_name)


def _read(profile: str | Path | Profile) -> Profile:
    read = profile
    if not isinstance(read, Profile):
        read = read_profile(read, keep_arguments=True)
    if read.is_forecast:
        raise TraceError(
            f"{read.source} is a forecast, not a profile: nothing in it was measured. Forecast the"
            " program for the other GPU instead (neusight run --gpu GPU SCRIPT)."
        )
    if not any(step.events for step in read.steps):
        raise TraceError(
            f"{read.source} has no kernels in its steps: was it taken with"
            " ProfilerActivity.CUDA, and after the first step had begun?"
        )
    return read


def _warnings(
    profile: Profile, kernels: Sequence[CarriedKernel], source: GPU, target: GPU
) -> Iterator[str]:
    yield f"carried over from a profile of {source.name}: {Path(profile.source).name}"
    if words_of(profile.device_name) not in (words_of(source.driver_name), words_of(source.name)):
        yield f"the profile is of {profile.device_name or 'some GPU'}, taken for {source.name}"
    if profile.peak_allocated_bytes is None:
        yield (
            "the profile has no memory events; torch.profiler records them with profile_memory=True"
        )
    if source.vendor != target.vendor:
        yield (
            f"the kernels of {target.name} are others: each takes what is forecast there, and the"
            " host goes on as it did"
        )
    refused = {item.kernel.dtype for item in kernels if item.kernel.compute == "fp8"}
    refused = {dtype for dtype in refused if not target.multiplies(dtype)}
    if refused:
        yield (
            f"{target.name} does not multiply {', '.join(sorted(refused))}: taken for its own 8-bit"
            " floats, which the program has to ask for"
        )
    total = sum(item.event.duration_ns for item in kernels) or 1
    by_bytes = sum(item.event.duration_ns for item in kernels if item.way == "bandwidth") / total
    if by_bytes > _NAMED_SHARE and source != target:
        yield (
            f"{by_bytes:.0%} of the kernel time is of kernels that neusight cannot describe: it is"
            " carried by the bandwidth alone"
        )
    for stuck in profile.notes:
        yield f"profile: {stuck}"
