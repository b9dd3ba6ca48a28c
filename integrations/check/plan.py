"""What a check runs: programs, the GPUs they are judged on, and how they are forecast."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from neusight.integrations.check.baseline import Case
from neusight.integrations.check.settings import Settings
from neusight.integrations.program.options import (
    STATED,
    STATED_OF_BATCH,
    STATED_OF_RANKS,
    ProgramOptions,
    checked_calibration,
    stated_options,
)
from neusight.integrations.program.program import Program, program_of
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.timeline.pricing import CALIBRATED_HOST


@dataclass(frozen=True)
class CheckRequest:
    """What is to be checked: a program, or all cases of the project (one of them).

    `stated` are options by name, None where only the project or the baseline says; `options` are
    the others.
    """

    program: Program | None = None
    gpu_names: tuple[str, ...] = ()
    case: str | None = None
    stated: Mapping[str, str | None] = field(default_factory=dict)
    options: ProgramOptions = field(default_factory=ProgramOptions)

    @property
    def is_of_everything(self) -> bool:
        """Whether no case is left out: then those of the baseline that are gone can be named."""
        return self.program is None and self.case is None and not self.gpu_names


@dataclass(frozen=True)
class Plan:
    """What is to be run: one program on some GPUs, as cases of these names, and how."""

    program: Program
    gpus: tuple[GPU, ...]
    names: tuple[str, ...]
    options: ProgramOptions


def plans_of(request: CheckRequest, settings: Settings, baseline: Mapping[str, Case]) -> list[Plan]:
    """What the command line asks for, else the project, else the baseline; OptionError where that
    is nothing, or something that is not there."""
    if request.program is not None:
        name = request.case or " ".join(request.program.words)
        plans = [_plan(name, request.program, request, settings)]
    elif settings.cases:
        plans = [
            _plan(name, program_of(case.command), request, settings, case.stated)
            for name, case in sorted(settings.cases.items())
            if request.case in (None, name)
        ]
    else:
        plans = list(_plans_of_baseline(request, settings, baseline))
    if not plans:
        what = f"no case {request.case!r}" if request.case else "nothing to check"
        raise OptionError(
            f"There is {what}: give a script (neusight check --gpu H100 train.py), or name cases "
            "in [tool.neusight.cases] of pyproject.toml."
        )
    for plan in plans:
        if not plan.gpus:
            raise OptionError('Say which GPU: --gpu H100, or gpu = "H100" in [tool.neusight].')
        plan.program.require_script()
    _require_calibrations(request, plans)
    return plans if len(plans) == 1 else [_keeping_apart(plan) for plan in plans]


def _plan(
    name: str,
    program: Program,
    request: CheckRequest,
    settings: Settings,
    of_case: Mapping[str, str] | None = None,
) -> Plan:
    gpus = _targets(request, settings)
    names = tuple(f"{name} on {target.name}" for target in gpus)
    options = _options(request, settings.stated, of_case or {})
    return Plan(program, gpus, names, options)


def _plans_of_baseline(
    request: CheckRequest, settings: Settings, baseline: Mapping[str, Case]
) -> Iterator[Plan]:
    chosen = {target.name for target in _targets(request, settings)}
    for name, case in sorted(baseline.items()):
        is_asked = not request.gpu_names or case.gpu in chosen
        if case.program and request.case in (None, name) and is_asked:
            options = _options(request, _stated_in(case.settings), settings.stated)
            yield Plan(program_of(case.program), (find_gpu(case.gpu),), (name,), options)


def _targets(request: CheckRequest, settings: Settings) -> tuple[GPU, ...]:
    found = [find_gpu(name) for name in request.gpu_names or settings.gpus]
    return tuple({target.name: target for target in found}.values())


def _options(request: CheckRequest, *stated: Mapping[str, str]) -> ProgramOptions:
    """What the command line says, else what the last of these states, else one before it."""
    layers: tuple[Mapping[str, str | None], ...] = (*stated, request.stated)
    chosen = {name: text for layer in layers for name, text in layer.items() if text is not None}
    return stated_options(chosen, request.options)


def _stated_in(of_baseline: Mapping[str, str]) -> dict[str, str]:
    """What a baseline says of options, as one asks for it: the names of a host and a predictor
    that are calibrated say so, and the profiled host of an older machine has one of its own."""
    stated = {
        name: text
        for name, text in of_baseline.items()
        if name in (*STATED, *STATED_OF_BATCH, *STATED_OF_RANKS)
    }
    for name in stated.keys() & {"host", "predictor"}:
        stated[name] = stated[name].removesuffix(CALIBRATED_HOST)
    if "host" in stated:
        stated["host"] = stated["host"].partition("-")[0]
    return stated


def _require_calibrations(request: CheckRequest, plans: Iterable[Plan]) -> None:
    """CalibrationError for one that is of none of the GPUs; the project's may be of one that was
    left out by --gpu."""
    targets: dict[ProgramOptions, list[GPU]] = {}
    for plan in plans:
        calibration = ProgramOptions(calibration=plan.options.calibration)
        if not request.gpu_names or request.stated.get("calibration") == calibration.calibration:
            targets.setdefault(calibration, []).extend(plan.gpus)
    for options, gpus in targets.items():
        checked_calibration(options, gpus)


def _keeping_apart(plan: Plan) -> Plan:
    """Of several programs, each keeps what it writes in a folder of its own."""
    folder = plan.options.keep_writes
    if folder is None:
        return plan
    own = re.sub(r"[^\w.-]+", "-", plan.names[0]).strip("-")
    return replace(plan, options=replace(plan.options, keep_writes=str(Path(folder) / own)))
