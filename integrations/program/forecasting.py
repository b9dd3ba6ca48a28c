"""What a program does on one GPU, and on others: recorded once, and again where it must be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neusight.integrations.program.fresh_process import recorded_apart
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.ranks.joining import refused
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.recording import recorded
from neusight.integrations.program.runner import Outcome
from neusight.predictors.errors import ForecastStateError, HangError, MismatchError

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.ops.user_ops import UserOps
    from neusight.predictors.gpu import GPU


@dataclass(frozen=True)
class ProgramForecast:
    """A program's forecast on a GPU, and how the program ended. `files` is a digest of the files
    that it is made of, `ops` what it said of ops of its own in another process."""

    program: Program
    options: ProgramOptions
    forecast: Forecast
    outcome: Outcome
    files: str
    ops: UserOps | None = None

    @classmethod
    def of(
        cls, found: Recorded, program: Program, gpu: GPU, options: ProgramOptions
    ) -> ProgramForecast:
        """The forecast of what another process, or this one, recorded. Ranks that do not agree, or
        wait for each other, are a failure of the program."""
        forecast = _priced(found.forecast(program, gpu, options), found.ops)
        try:
            forecast.ranks  # noqa: B018  (placed in time together here, once)
        except (HangError, MismatchError) as error:
            return cls.of(refused(found, error), program, gpu, options)
        return cls(program, options, forecast, found.outcome, found.files, found.ops)

    def on(self, gpu: GPU) -> ProgramForecast:
        """The same recording on another GPU; where the program would take another path there, it
        runs again, out of view. ForecastStateError where it would have to, but Ctrl-C ended it."""
        options = self.options
        try:
            there = self.forecast.on(
                gpu,
                host=options.host_beside_torch,
                calibration=options.calibration_for(gpu),
                topology=options.topology_for(gpu),
            )
        except ForecastStateError:
            if self.outcome.is_interrupted:
                raise
            again = replace(options, keep_writes=None, quiet=True)
            doing = "" if options.quiet else f"running it again for {gpu.name}"
            found = recorded_apart(self.program, gpu, again, doing=doing)
            if found.recording is None or not found.recording.steps:
                why = found.outcome.failure or "it does nothing on that GPU"
                raise ForecastStateError(
                    f"The script could not be recorded on {gpu.name}: {why}"
                ) from None
            return ProgramForecast.of(found, self.program, gpu, options)
        return replace(self, forecast=_priced(there, self.ops))


def forecast_program(
    program: Program, gpu: GPU, options: ProgramOptions, *, is_apart: bool = False
) -> ProgramForecast:
    """Records the program and prices it; `is_apart` in a fresh process, so that it finds nothing
    that a program before it left in this one."""
    if is_apart and not options.is_guarded:  # else it has a process of its own anyway
        found = recorded_apart(program, gpu, options, is_shown=True)
    else:
        found = recorded(program, gpu, options)
        if not options.is_guarded:
            found = replace(found, ops=None)  # this process knows them
    return ProgramForecast.of(found, program, gpu, options)


def _priced(forecast: Forecast, ops: UserOps | None) -> Forecast:
    """Priced at once where the program brought ops of its own: the next program may bring others of
    the same names."""
    if ops is not None and ops.names:
        from neusight.ops.user_ops import register_user_ops

        register_user_ops(ops)
        forecast.timeline  # noqa: B018  (computed here, and kept)
    return forecast
