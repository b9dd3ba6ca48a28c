"""Fits a calibration: first the GPU's constants, then a correction for each class and dtype.

Both are fitted on the logarithm of measured over forecast time, shrunk towards what is shipped the
more the fewer measurements there are, and kept only where they make left-out problems come out
nearer. Outliers count little (Huber 1964, "Robust Estimation of a Location Parameter").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import CalibrationError, UnsupportedKernelError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibration import (
    CONSTANTS,
    Calibration,
    ClassCorrection,
    HostCosts,
    Measurement,
    behaviour_of,
    moved,
    variant_of,
    with_constants,
)
from neusight.predictors.physics.power import filled_in
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.registry import find_predictor

Floats = NDArray[np.float64]

#: Half an 80 % interval in standard deviations of a normal error.
_Z80 = 1.2816
#: Error beyond which a measurement's pull no longer grows, in standard deviations (Huber's c).
_HUBER = 1.345
#: Median absolute deviation to standard deviation, for a normal error.
_MAD = 1.4826
#: What noise is believed before any is seen, log, and for how many measurements that counts: the
#: sources of data/modern differ by 0.03 to 0.09 on the same products.
_PRIOR_NOISE, _PRIOR_NOISE_COUNT = 0.05, 2.0
#: How near a predictor is believed to be at most, log, whatever it says itself: another torch,
#: another driver or another clock moves a whole class (small products in public profiles of H100
#: take 20 to 60 % longer than forecast).
_LEAST_PRIOR_SD = 0.15

#: How far constants are thought to be off, log: datasheet priors, and fitted ones.
_PRIOR_SD, _FITTED_SD = 0.2, 0.1
#: Floors differ more: 1.5 to 2.8 µs on the GPUs that were measured.
_FLOOR_SD = 0.4
#: A problem determines a constant where 1 % of it moves the problem's time by so many percent.
_SENSITIVE = 0.4
#: A constant on which fewer problems than this depend is left alone.
_MIN_INFORMATIVE = 3
#: Problems that fit one constant at most: more add nothing to one number.
_MAX_INFORMATIVE = 400
#: How far a constant is searched, log, in the sweeps.
_SEARCH = (1.0, 0.25, 0.08)
_GRID = 9
_FINE = 401

#: How far a class correction's exponent is thought to be from 0, and how far it may get.
_SLOPE_SD, _SLOPE_MOST = 0.06, 0.3
#: Problems, and ratio of longest to shortest, below which no exponent is fitted.
_LEAST_FOR_SLOPE, _RANGE_FOR_SLOPE = 6, 4.0
#: How far variants are thought to be from their class, log, and problems that make one.
_VARIANT_SD, _LEAST_FOR_VARIANT = 0.1, 3

#: A correction must take so much of the error away, left out, or it is not worth its risk; an
#: exponent and a variant more, as there are more ways for them to fit by chance.
_WORTH, _WORTH_MORE = 0.02, 0.05
#: And so much in all, log: less is rounding.
_WORTH_AT_LEAST = 0.002

#: Problems up to which each is left out alone; beyond, so many parts are left out in turn.
_LEFT_OUT_ALONE = 40

#: Weight of the predictor's own interval against the measured spread, in measurements.
_INTERVAL_WEIGHT = 5.0
#: Widest spread that is written.
_WIDEST = 20.0


class _MeasuredLaunches(NamedTuple):
    """What was measured once or more: equal launches at equal clocks."""

    launches: tuple[Kernel, ...]
    sustained: bool
    latency_us: float


@dataclass(frozen=True)
class _Prices:
    """What a predictor says of each problem, and which of its launches takes longest."""

    log_us: Floats
    log_width: Floats
    dominant: tuple[Kernel, ...]
    dominant_us: Floats


class _Constant(NamedTuple):
    """A fitted constant; `shifts` is how much each problem's log price moves if its part is left
    out of the fit."""

    name: str
    value: float
    shifts: Floats
    is_kept: bool


def fit_calibration(
    measurements: Sequence[Measurement],
    gpu: str | GPU,
    *,
    predictor: str | Predictor | None = None,
    plain_host: HostCosts | None = None,
    profiled_host: HostCosts | None = None,
    torch_version: str = "",
    source: Mapping[str, Any] | None = None,
) -> Calibration:
    """What the measurements teach the predictor of that GPU.

    CalibrationError where there is nothing to learn from, or a measurement cannot be.

    >>> kernel = Kernel.elementwise("relu", 1 << 24, dtype="float32")
    >>> fit_calibration([Measurement((kernel,), 60.0)], "H100").corrections[0].is_applied
    False
    """
    target = filled_in(find_gpu(gpu))
    base = find_predictor(predictor)
    problems, left_out = _priceable(_merged(measurements), target, base)
    if not problems and plain_host is None and profiled_host is None:
        raise CalibrationError(
            f"There is nothing to calibrate {target.name} with: no kernel that was measured can "
            f"be forecast ({left_out or 'no measurements were given'})."
        )
    described: dict[str, Any] = {**(source or {}), "num_measurements": len(measurements)}
    described["num_problems"] = len(problems)
    if left_out:
        described["left_out"] = left_out
    constants: list[_Constant] = []
    rows: tuple[ClassCorrection, ...] = ()
    if problems:
        measured = np.log([problem.latency_us for problem in problems])
        # The part with which each problem is left out: its own, where there are few.
        parts = np.arange(len(problems)) % min(len(problems), _LEFT_OUT_ALONE)
        tuned, constants = _constants(problems, measured, parts, target, base)
        before, after = _prices(problems, target, base), _prices(problems, tuned, base)
        shifts: Floats = sum((item.shifts for item in constants), np.zeros(len(problems)))
        rows, errors = _corrections(measured, before, after, shifts, parts)
        described["loo_error_before"] = _rounded(_mean_error(measured - before.log_us))
        described["loo_error_after"] = _rounded(_mean_error(errors))
        described["shipped_constants"] = {
            item.name: getattr(target, item.name) for item in constants if item.is_kept
        }
        described["constants_kept"] = [item.name for item in constants if not item.is_kept]
    return Calibration(
        gpu=target.name,
        predictor=base.name,
        behaviour=behaviour_of(base, target),
        constants={item.name: item.value for item in constants if item.is_kept},
        corrections=rows,
        plain_host=plain_host,
        profiled_host=profiled_host,
        torch_version=torch_version,
        source=described,
    )


# -- problems and prices ---------------------------------------------------------------------------


def _merged(measurements: Sequence[Measurement]) -> list[_MeasuredLaunches]:
    """Equal launches once, with the median of what they took; in a stable order."""
    times: dict[tuple[tuple[Kernel, ...], bool], list[float]] = {}
    for index, item in enumerate(measurements):
        if not (math.isfinite(item.latency_us) and item.latency_us > 0):
            raise CalibrationError(
                f"Measurement {index} took {item.latency_us} µs; a duration must be above 0 and "
                "finite. Leave it out."
            )
        if not item.launches:
            raise CalibrationError(f"Measurement {index} launched no kernel. Leave it out.")
        times.setdefault((item.launches, item.sustained), []).append(item.latency_us)
    found = [
        _MeasuredLaunches(launches, sustained, float(np.median(values)))
        for (launches, sustained), values in times.items()
    ]
    return sorted(found, key=lambda p: ([kernel.key for kernel in p.launches], p.sustained))


def _priceable(
    problems: Sequence[_MeasuredLaunches], gpu: GPU, base: Predictor
) -> tuple[list[_MeasuredLaunches], str]:
    """Those that the GPU can run, and what is said of the others."""
    try:
        base.predict([kernel for problem in problems for kernel in problem.launches], gpu)
    except UnsupportedKernelError:
        pass
    else:
        return list(problems), ""
    found, reasons = [], []
    for problem in problems:
        try:
            base.predict(problem.launches, gpu)
        except UnsupportedKernelError as error:
            reasons.append(str(error))
        else:
            found.append(problem)
    return found, f"{len(reasons)} problems: {reasons[0]}" if reasons else ""


def _prices(problems: Sequence[_MeasuredLaunches], gpu: GPU, base: Predictor) -> _Prices:
    estimates: dict[int, list[Estimate]] = {}
    for sustained in (False, True):
        chosen = [index for index, item in enumerate(problems) if item.sustained == sustained]
        flat = [kernel for index in chosen for kernel in problems[index].launches]
        # At the clocks of the measurement, where the predictor knows both.
        is_burst = base.name == "tiled" and not sustained
        own = find_predictor("tiled_burst") if is_burst else base
        priced = iter(own.predict(flat, gpu))
        for index in chosen:
            estimates[index] = [next(priced) for _ in problems[index].launches]
    totals, highs, dominant, times = [], [], [], []
    for index, problem in enumerate(problems):
        rows = estimates[index]
        longest = max(range(len(rows)), key=lambda position: rows[position].latency_us)
        totals.append(sum(row.latency_us for row in rows))
        highs.append(sum(row.high_us for row in rows))
        dominant.append(problem.launches[longest])
        times.append(rows[longest].latency_us)
    return _Prices(
        log_us=np.log(totals),
        log_width=np.log(np.array(highs) / np.array(totals)),
        dominant=tuple(dominant),
        dominant_us=np.array(times),
    )


# -- constants -------------------------------------------------------------------------------------


def _constants(
    problems: Sequence[_MeasuredLaunches],
    measured: Floats,
    parts: NDArray[np.intp],
    gpu: GPU,
    base: Predictor,
) -> tuple[GPU, list[_Constant]]:
    """The GPU with the constants that make left-out problems come out nearer, and those tried."""
    tuned = gpu
    found: dict[str, _Constant] = {}
    for width in _SEARCH:
        for name in CONSTANTS:
            if width != _SEARCH[0] and name not in found:
                continue
            fitted = _fitted(name, width, problems, measured, parts, (gpu, tuned), base)
            if fitted is None:
                continue
            found[name] = fitted
            if fitted.is_kept:
                tuned = with_constants(tuned, {name: fitted.value})
            elif getattr(tuned, name) != getattr(gpu, name):
                tuned = with_constants(tuned, {name: getattr(gpu, name)})
    if not any(item.is_kept for item in found.values()):
        tuned = gpu
    return tuned, list(found.values())


def _fitted(
    name: str,
    width: float,
    problems: Sequence[_MeasuredLaunches],
    measured: Floats,
    parts: NDArray[np.intp],
    gpus: tuple[GPU, GPU],
    base: Predictor,
) -> _Constant | None:
    """One constant, the others as in `gpus[1]`; None where too few problems depend on it."""
    shipped, tuned = (getattr(gpu, name) for gpu in gpus)
    allowed = _allowed(name, problems)
    informative = allowed[_is_informative(name, [problems[i] for i in allowed], gpus[1], base)]
    informative = informative[:: max(1, len(informative) // _MAX_INFORMATIVE)]
    if len(informative) < _MIN_INFORMATIVE:
        return None
    chosen = [problems[index] for index in informative]
    most = min(math.log(CONSTANTS[name]), math.log(tuned) + width)
    coarse = np.linspace(math.log(tuned) - width, most, _GRID)
    prices = np.stack(
        [_prices(chosen, moved(gpus[1], {name: math.exp(x)}), base).log_us for x in coarse],
        axis=1,
    )
    fine = np.linspace(coarse[0], coarse[-1], _FINE)
    table = np.stack([np.interp(fine, coarse, row) for row in prices])
    errors = measured[informative, None] - table
    at_shipped = (
        measured[informative] - _prices(chosen, moved(gpus[1], {name: shipped}), base).log_us
    )
    penalty = 0.5 * ((fine - math.log(shipped)) / _prior_sd(name, gpus[0])) ** 2
    whole = _best(errors, penalty)
    own = parts[informative]
    without = {part: _best(errors[own != part], penalty) for part in sorted(set(own.tolist()))}
    left_out = np.array([errors[row, without[part]] for row, part in enumerate(own.tolist())])
    helps = _is_worth(left_out, at_shipped, _WORTH)
    shifts = np.zeros(len(problems))
    if helps:
        rows = np.arange(len(informative))
        shifts[informative] = left_out - errors[rows, whole]
    value = float(np.exp(fine[whole])) if helps else shipped
    return _Constant(name, _rounded(value), shifts, helps)


def _allowed(name: str, problems: Sequence[_MeasuredLaunches]) -> NDArray[np.intp]:
    """The problems that may depend on it: clocks under load from sustained runs alone, and the
    share of peak from bursts where there are any, so that the two can be distinguished."""
    every = np.arange(len(problems))
    sustained = np.array([problem.sustained for problem in problems], dtype=np.bool_)
    num_burst = int((~sustained).sum())
    if name == "sustained_factor":
        return every[sustained] if num_burst >= _MIN_INFORMATIVE else every[:0]
    if name == "gemm_utilization" and num_burst >= _MIN_INFORMATIVE:
        return every[~sustained]
    return every


def _is_informative(
    name: str, problems: Sequence[_MeasuredLaunches], gpu: GPU, base: Predictor
) -> NDArray[np.intp]:
    """Positions of the problems whose time follows the constant."""
    if not problems:
        return np.arange(0)
    step = 0.05
    value = getattr(gpu, name)
    here = _prices(problems, moved(gpu, {name: value * math.exp(-step)}), base).log_us
    there = _prices(problems, moved(gpu, {name: value * math.exp(-2 * step)}), base).log_us
    return np.flatnonzero(np.abs(there - here) / step > _SENSITIVE)


def _prior_sd(name: str, gpu: GPU) -> float:
    if name == "floor_us" and gpu.constants_origin.startswith("prior"):
        return _FLOOR_SD
    return _PRIOR_SD if gpu.constants_origin.startswith("prior") else _FITTED_SD


def _best(errors: Floats, penalty: Floats) -> int:
    """The column of least loss: Huber's over the noise, and the prior's penalty."""
    if not len(errors):
        return int(np.argmin(penalty))
    noise = _noise(errors[:, np.argmin(np.median(np.abs(errors), axis=0))])
    scaled = np.abs(errors) / noise
    loss = np.where(scaled <= _HUBER, 0.5 * scaled * scaled, _HUBER * (scaled - 0.5 * _HUBER))
    return int(np.argmin(loss.sum(axis=0) + penalty))


# -- corrections by class --------------------------------------------------------------------------


class _Terms(NamedTuple):
    """A fitted class: log factor at the centre, exponent, and what each variant adds."""

    level: float = 0.0
    slope: float = 0.0
    variants: Mapping[str, float] = {}


class _Members(NamedTuple):
    """The problems of one class and dtype."""

    errors: Floats
    #: The same if the problem's part had not fitted the constants.
    shifted: Floats
    #: Log of the forecast time, from `center`.
    position: Floats
    center: float
    #: Log of the upper end of the forecast's interval over the forecast.
    widths: Floats
    variants: tuple[str, ...]
    parts: NDArray[np.intp]

    @property
    def prior_sd(self) -> float:
        """How far the predictor thinks it may be off, log."""
        return max(_LEAST_PRIOR_SD, float(np.median(self.widths)) / _Z80)

    def chosen(self, mask: NDArray[np.bool_]) -> _Members:
        return self._replace(
            errors=self.errors[mask],
            shifted=self.shifted[mask],
            position=self.position[mask],
            widths=self.widths[mask],
            variants=tuple(np.array(self.variants, dtype=object)[mask].tolist()),
            parts=self.parts[mask],
        )


class _Form(NamedTuple):
    """What is fitted of a class."""

    level: bool = False
    slope: bool = False
    variants: frozenset[str] = frozenset()


def _corrections(
    measured: Floats, before: _Prices, after: _Prices, shifts: Floats, parts: NDArray[np.intp]
) -> tuple[tuple[ClassCorrection, ...], Floats]:
    """A row a class and dtype, one more for each variant that differs; and what is left of each
    problem's log error when it is left out. A class that the constants make worse keeps the
    shipped ones."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, kernel in enumerate(after.dominant):
        groups.setdefault((kernel.kernel_class.value, kernel.dtype), []).append(index)
    rows: list[ClassCorrection] = []
    left: Floats = np.zeros(len(measured))
    for name, indices in sorted(groups.items()):
        own = np.array(indices)
        tuned = _members(measured, after, shifts, parts, own)
        shipped = _members(measured, before, np.zeros(len(measured)), parts, own)
        form, shipped_form = _form_of(tuned), _form_of(shipped)
        left[own] = _left_out_errors(tuned, form)
        shipped_left = _left_out_errors(shipped, shipped_form)
        keeps_constants = _mean_error(left[own]) <= _mean_error(shipped_left)
        if not keeps_constants:
            tuned, form, left[own] = shipped, shipped_form, shipped_left
        rows += _rows_of(name, tuned, form, left[own], shipped.errors, keeps_constants)
    return tuple(rows), left


def _members(
    measured: Floats,
    prices: _Prices,
    shifts: Floats,
    parts: NDArray[np.intp],
    own: NDArray[np.intp],
) -> _Members:
    errors = measured[own] - prices.log_us[own]
    times = np.log(prices.dominant_us[own])
    return _Members(
        errors=errors,
        shifted=errors + shifts[own],
        center=float(np.median(times)),
        position=times - np.median(times),
        widths=prices.log_width[own],
        variants=tuple(variant_of(prices.dominant[index]) for index in own.tolist()),
        parts=parts[own],
    )


def _form_of(members: _Members) -> _Form:
    """The simplest form that makes left-out problems come out nearest."""
    form = _Form()
    left = _left_out_errors(members, form)
    tried = form._replace(level=True)
    with_level = _left_out_errors(members, tried)
    if _is_worth(with_level, left, _WORTH):
        form, left = tried, with_level
    span = math.exp(np.ptp(members.position))
    if len(members.errors) >= _LEAST_FOR_SLOPE and span >= _RANGE_FOR_SLOPE:
        tried = _Form(level=True, slope=True)
        if _is_worth(_left_out_errors(members, tried), left, _WORTH_MORE):
            form = tried
    names = sorted(set(members.variants))
    if len(names) < 2:
        return form
    for name in names:
        own = np.array([variant == name for variant in members.variants])
        if own.sum() < _LEAST_FOR_VARIANT:
            continue
        tried = form._replace(variants=form.variants | {name})
        now = _left_out_errors(members, form)[own]
        if _is_worth(_left_out_errors(members, tried)[own], now, _WORTH_MORE):
            form = tried
    return form


def _is_worth(left: Floats, before: Floats, share: float) -> bool:
    """Whether left-out problems come out nearer by enough, and not worse as a share of the
    measured time either, which counts forecasts that are too long more."""
    now, then = _mean_log(left), _mean_log(before)
    is_nearer = now < (1.0 - share) * then and now < then - _WORTH_AT_LEAST
    return is_nearer and _mean_error(left) <= _mean_error(before)


def _left_out_errors(members: _Members, form: _Form) -> Floats:
    """The log error that each problem keeps when its part is left out of the fit."""
    left = np.zeros(len(members.errors))
    for part in sorted(set(members.parts.tolist())):
        out = members.parts == part
        terms = _terms(members.chosen(~out), form)
        left[out] = members.shifted[out] - _predicted(terms, members.chosen(out))
    return left


def _terms(members: _Members, form: _Form) -> _Terms:
    if not len(members.errors):
        return _Terms()
    columns, sds = [], []
    if form.level:
        columns.append(np.ones(len(members.errors)))
        sds.append(members.prior_sd)
    if form.slope:
        columns.append(members.position)
        sds.append(_SLOPE_SD)
    level = slope = 0.0
    if columns:
        solved = _robust(members.errors, np.stack(columns, axis=1), np.array(sds))
        level = float(solved[0])
        slope = float(np.clip(solved[1], -_SLOPE_MOST, _SLOPE_MOST)) if form.slope else 0.0
    rest = members.errors - level - slope * members.position
    variants = {}
    for name in sorted(form.variants):
        own = rest[np.array([variant == name for variant in members.variants], dtype=np.bool_)]
        if len(own):
            solved = _robust(own, np.ones((len(own), 1)), np.array([_VARIANT_SD]))
            variants[name] = float(solved[0])
    return _Terms(level, slope, variants)


def _predicted(terms: _Terms, members: _Members) -> Floats:
    own = np.array([terms.variants.get(variant, 0.0) for variant in members.variants])
    described: Floats = terms.level + terms.slope * members.position + own
    return described


#: Rounds of reweighting: the weights settle in five or six.
_ROUNDS = 8


def _robust(errors: Floats, columns: Floats, sds: Floats) -> Floats:
    """Coefficients of least Huber loss with normal priors around 0, by reweighted least squares."""
    noise = _noise(errors - np.median(errors))
    solved: Floats = np.zeros(columns.shape[1])
    if (columns[:, 0] == 1.0).all():
        solved[0] = float(np.median(errors))
    for _ in range(_ROUNDS):
        rest = np.abs(errors - columns @ solved)
        weights = np.minimum(1.0, _HUBER * noise / np.maximum(rest, 1e-12))
        matrix = (columns.T * weights) @ columns / noise**2 + np.diag(1.0 / sds**2)
        wanted = (columns.T * weights) @ errors / noise**2
        solved = np.asarray(np.linalg.solve(matrix, wanted), dtype=np.float64)
    return solved


def _noise(errors: Floats) -> float:
    """Standard deviation of what is left, by its median, and what is believed beforehand."""
    own, count = float(_MAD * np.median(np.abs(errors))), len(errors)
    squared = _PRIOR_NOISE_COUNT * _PRIOR_NOISE**2 + count * own**2
    return math.sqrt(squared / (_PRIOR_NOISE_COUNT + count))


def _rows_of(
    name: tuple[str, str],
    members: _Members,
    form: _Form,
    left: Floats,
    raw: Floats,
    keeps_constants: bool,
) -> list[ClassCorrection]:
    """The class's row, and one for each variant of its own."""
    terms = _terms(members, form)
    rows = []
    for variant in ("", *sorted(form.variants)):
        own = np.array([variant in ("", item) for item in members.variants])
        times = np.exp(members.position[own] + members.center)
        level = terms.level + terms.variants.get(variant, 0.0)
        rows.append(
            ClassCorrection(
                kernel_class=name[0],
                dtype=name[1],
                variant=variant,
                factor=_rounded(math.exp(min(max(level, -_MOST_LEVEL), _MOST_LEVEL))),
                slope=_rounded(terms.slope),
                center_us=_rounded(math.exp(members.center)),
                low_us=_rounded(float(times.min())),
                high_us=_rounded(float(times.max())),
                spread=_rounded(_spread(left[own], members.widths[own])),
                num_samples=int(own.sum()),
                loo_error_before=_rounded(_mean_error(raw[own])),
                loo_error_after=_rounded(_mean_error(left[own])),
                is_applied=form.level or (variant in form.variants),
                keeps_constants=keeps_constants,
            )
        )
    return rows


#: Largest correction, log: 20 times.
_MOST_LEVEL = math.log(20.0)


def _spread(left: Floats, widths: Floats) -> float:
    """Half width of the 80 % interval: the errors of left-out problems, and the predictor's own
    interval for as long as they are few."""
    own = float(np.quantile(np.abs(left), 0.8))
    prior = float(np.median(widths))
    count = len(left)
    squared = (_INTERVAL_WEIGHT * prior**2 + count * own**2) / (_INTERVAL_WEIGHT + count)
    return min(_WIDEST, math.expm1(math.sqrt(squared)))


def _mean_log(errors: Floats) -> float:
    return float(np.abs(errors).mean())


def _mean_error(errors: Floats) -> float:
    """Mean of |forecast / measured − 1| from log(measured / forecast)."""
    return float(np.abs(np.expm1(-errors)).mean())


def _rounded(value: float) -> float:
    """Six digits: more would only differ from machine to machine."""
    return float(f"{value:.6g}")
