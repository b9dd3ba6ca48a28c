"""Checks of a comparison's validity, above all whether both sides are the same program."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from math import prod
from statistics import median

from neusight.integrations.profiles.comparison.figures import NS_PER_US, step_time_text
from neusight.integrations.profiles.comparison.work import Work
from neusight.integrations.profiles.reading.profile import Profile
from neusight.predictors.errors import UnknownGPUError
from neusight.predictors.kernel import KernelClass


def differences_by_class(paired_share: float) -> list[str]:
    """As `differences`, where the profile has no shapes."""
    if paired_share >= _SAME_PROGRAM_SHARE:
        return []
    return [
        f"only {paired_share:.0%} of the measured kernel time has a partner of its class in the "
        "forecast, and the profile has no shapes: these are two programs. The errors "
        "below compare what is not alike."
    ]


def differences(
    measured: Sequence[Work],
    only_measured: Sequence[Work],
    only_forecast: Sequence[Work],
    matched_share: float,
) -> list[str]:
    """Why the forecast may be of another program than the profile, in words."""
    if matched_share >= _SAME_PROGRAM_SHARE:
        return []
    scale, share = _common_scale(measured, only_measured, only_forecast)
    if share >= _SAME_PROGRAM_SHARE:
        return [
            f"the forecast's problems are {scale:g} times as large as the measured ones, in "
            f"{share:.0%} of the measured kernel time: batch, sequence or width differ. Forecast "
            "the program with the settings that were measured."
        ]
    return [
        f"only {matched_share:.0%} of the measured kernel time has a partner of its class and size "
        "in the forecast: these are two programs, or two settings of one. The errors below compare "
        "what is not alike."
    ]


#: Below this share of matched kernel time a forecast is not of the program that was measured:
#: forecasts of public profiles match 0.9 and more.
_SAME_PROGRAM_SHARE = 0.5


def _common_scale(
    measured: Sequence[Work], only_measured: Sequence[Work], only_forecast: Sequence[Work]
) -> tuple[float, float]:
    """The factor that most often lies between the sizes of work without partners, operator by
    operator in order, and the share of the measured kernel time that it explains."""
    waiting: dict[object, deque[Work]] = defaultdict(deque)
    for work in only_forecast:
        waiting[work.kind, work.op, work.size.kind].append(work)
    times: Counter[float] = Counter()
    for work in only_measured:
        queue = waiting[work.kind, work.op, work.size.kind]
        if queue:
            ours, theirs = prod(queue.popleft().size.values), prod(work.size.values)
            times[round(ours / theirs, 3) if theirs else 0.0] += work.duration_ns
    del times[1.0], times[0.0]
    if not times:
        return 1.0, 0.0
    scale, time_ns = times.most_common(1)[0]
    return scale, time_ns / (sum(work.duration_ns for work in measured) or 1)


def notes_of(ours: Profile, theirs: Profile, measured: list[Work]) -> list[str]:
    """What both sides note, and where they are of other kinds."""
    notes = [f"measured: {text}" for text in theirs.notes]
    notes += [f"forecast: {text}" for text in ours.notes]
    if not ours.is_forecast:
        notes.append("the first trace is not marked as a forecast: two profiles were compared")
    if theirs.is_forecast:
        notes.append("the second trace is a forecast itself, not a profile")
    if _gpu_name(ours.device_name) != _gpu_name(theirs.device_name):
        notes.append(
            f"the GPUs differ: the forecast is for {ours.device_name or '?'}, measured was "
            f"{theirs.device_name or '?'}"
        )
    loader_us = median(step.loader_ns for step in theirs.steps) / NS_PER_US
    if loader_us and not any(step.loader_ns for step in ours.steps):
        notes.append(
            f"the measured program spends {step_time_text(loader_us)} a step in its DataLoader; "
            "the forecast knows of none"
        )
    unknown = sum(work.num_kernels for work in measured if work.kind is KernelClass.UNKNOWN)
    if unknown:
        notes.append(f"{unknown} measured kernels are of no known class")
    return notes


def _gpu_name(name: str) -> str:
    from neusight.predictors.gpu import find_gpu

    try:
        return find_gpu(name).name
    except UnknownGPUError:
        return name
