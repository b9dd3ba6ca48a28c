"""`neusight run --try compile`: the program once more, its models compiled, beside what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neusight.advice.advice import COMPILE, Advice
from neusight.integrations.program.fresh_process import recorded_apart
from neusight.integrations.report.side_by_side import text_table
from neusight.output.compiled import compiled_lines
from neusight.predictors.formatting import bytes_text, time_text
from neusight.recording.recording import TRIAL_OPTION

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.integrations.program.forecasting import ProgramForecast

#: What may be tried.
TRIALS = ("compile",)


@dataclass(frozen=True)
class Trial:
    """A program as it is, and with its models compiled; `problem` says why that is not known."""

    eager: Forecast
    compiled: Forecast | None = None
    problem: str = ""

    @property
    def models(self) -> str:
        """The classes of the modules that were compiled."""
        options = {} if self.compiled is None else self.compiled.recording.options
        return options.get(TRIAL_OPTION, "")

    @property
    def gain(self) -> float:
        """The share of the step that goes."""
        before = self.eager.step_latency_us.median
        if self.compiled is None or not before:
            return 0.0
        return 1 - self.compiled.step_latency_us.median / before


def tried_compiling(first: ProgramForecast, forecasts: Sequence[Forecast]) -> list[Trial]:
    """Runs the program again in a process of its own, its models compiled, for the GPU of each
    forecast; what it prints is kept from view."""
    if first.forecast.compiled is not None:
        problem = "the program compiles its models itself, as shown above"
        return [Trial(forecast, problem=problem) for forecast in forecasts]
    return [_tried(first, forecast) for forecast in forecasts]


def _tried(first: ProgramForecast, eager: Forecast) -> Trial:
    options = replace(first.options, compiles_models=True, keep_writes=None, quiet=True)
    doing = "" if first.options.quiet else "trying torch.compile"
    found = recorded_apart(first.program, eager.gpu, options, doing=doing)
    if found.outcome.failure or found.recording is None:
        return Trial(eager, problem=f"it did not run: {found.outcome.failure}")
    there = type(first).of(found, first.program, eager.gpu, options).forecast
    if TRIAL_OPTION not in there.recording.options:
        problem = "nothing to compile: the program calls no module with parameters on the GPU"
        return Trial(eager, problem=problem)
    return Trial(eager, there)


# -- what is shown ---------------------------------------------------------------------------------


def trial_lines(trial: Trial) -> list[str]:
    """Eager beside compiled, for the first screen."""
    there = trial.compiled
    if there is None:
        return [f"  --try compile: {trial.problem}"]
    rows = [_cells("eager", trial.eager), _cells("compiled", there)]
    header = ["", "a step", "80 % range", "GPU busy", "memory", "kernels"]
    table = [f"    {line}" for line in text_table(header, rows).splitlines()]
    reported = [] if there.compiled is None else compiled_lines(there.compiled)
    return [
        f"  what torch.compile gives: {-trial.gain + 0.0:+.1%} of the step's time. Compiled by "
        f"torch.compile(model): {trial.models}; all else, the optimizer too, ran as it is",
        *table,
        *reported,
        *(
            f"  note      compiled: {text}"
            for text in there.warnings
            if text not in trial.eager.warnings
        ),
    ]


def _cells(name: str, forecast: Forecast) -> list[str]:
    latency = forecast.step_latency_us
    return [
        name,
        time_text(latency.median),
        f"{time_text(latency.low)} to {time_text(latency.high)}",
        time_text(forecast.gpu_busy_us),
        bytes_text(forecast.peak_memory_bytes),
        f"{forecast.verdict.num_kernels:,}",
    ]


def with_trial(advice: list[Advice], trial: Trial, *, smallest_gain: float) -> list[Advice]:
    """Advice in which what compiling gives is what the trial says, not an estimate."""
    there = trial.compiled
    if there is None:
        return advice
    others = [item for item in advice if item.kind != COMPILE]
    if trial.gain < smallest_gain:
        return others
    computed = Advice(
        kind=COMPILE,
        what=f"torch.compile of {trial.models}, computed by compiling (--try compile)",
        latency_us=there.step_latency_us.median,
        gain=trial.gain,
        assumes="each model by torch.compile(model), the optimizer and all else as they are",
    )
    return sorted([*others, computed], key=lambda item: (-item.gain, item.kind))


def trial_json(trial: Trial) -> dict[str, Any]:
    """The same as plain values: the compiled program's figures, and how they differ."""
    there = trial.compiled
    if there is None:
        return {"problem": trial.problem, "models": None, "gain": None, "forecast": None}
    return {
        "problem": None,
        "models": trial.models,
        "gain": round(trial.gain, 6),
        "forecast": there.to_json(),
    }
