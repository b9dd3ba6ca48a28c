"""Records a program, in a process that the kernel guards or in this one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.integrations.program.guard.guarded_process import in_guarded_process
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program, digest_of_files, own_files
from neusight.integrations.program.runner import (
    Outcome,
    hide_gpus,
    run_program,
    telling_progress,
)

if TYPE_CHECKING:
    from neusight.fake_cuda.store.store import Store
    from neusight.forecast import Forecast, ForecastOptions
    from neusight.ops.own_ops import OwnOps
    from neusight.predictors.gpu import GPU
    from neusight.recording.recording import Recording
    from neusight.session import SessionOptions

__all__ = ["Recorded", "forecast_options_for", "recorded"]


@dataclass(frozen=True)
class Recorded:
    """What running a program gave, as one process tells it another: how it ended, what was recorded
    (None where its process was lost), the ops that it brought along (None where this process knows
    them), and a digest of its own files."""

    outcome: Outcome
    recording: Recording | None = None
    ops: OwnOps | None = None
    files: str = ""

    def forecast(self, program: Program, gpu: GPU, options: ProgramOptions) -> Forecast:
        """The forecast that these options make of it."""
        from neusight.forecast import Forecast

        recording = self.recording or _nothing(program, gpu)
        return Forecast(recording, forecast_options_for(gpu, options))


def recorded(program: Program, gpu: GPU, options: ProgramOptions) -> Recorded:
    """Records the program: in this process, or behind a guard in one that is its own."""
    hide_gpus()
    if not options.is_guarded:
        return _recorded_here(program, gpu, options)
    ended = in_guarded_process(
        lambda store: _recorded_here(program, gpu, options, store),
        program.possible_paths,
        keep=options.keep_writes,
    )
    if ended.answer is None:
        return Recorded(Outcome(failure=ended.failure, exit_code=ended.exit_code, is_lost=True))
    return ended.answer


def forecast_options_for(gpu: GPU, options: ProgramOptions) -> ForecastOptions:
    """What the program's forecast on that GPU is made with."""
    from neusight.forecast import forecast_options

    return forecast_options(
        gpu,
        predictor=options.predictor,
        calibration=options.learnt_of(gpu),
        host=options.host,
        topology=options.topology_for(gpu),
    )


def _recorded_here(
    program: Program, gpu: GPU, options: ProgramOptions, store: Store | None = None
) -> Recorded:
    """Records in this process; with a store, in one that is the program's alone."""
    from neusight.ops import formulas
    from neusight.ops.own_ops import own_ops_of
    from neusight.session import Session

    formulas_before, modules_before = formulas(), set(sys.modules)
    session = Session(_session_options(program, gpu, options), store=store)
    with telling_progress(session, quiet=options.quiet):
        outcome = run_program(program, session, is_guarded=store is not None)
    recording = session.forecast.recording
    files = own_files(Path.cwd(), set(sys.modules) - modules_before)
    if not program.is_module:
        files.add(Path(program.target).resolve())
    return Recorded(
        outcome, recording, own_ops_of(recording, formulas_before), digest_of_files(files)
    )


def _session_options(program: Program, gpu: GPU, options: ProgramOptions) -> SessionOptions:
    from neusight.session import SessionOptions

    return SessionOptions(
        forecast_options_for(gpu, options),
        on_out_of_memory=options.out_of_memory,
        strict=options.strict,
        with_stack=options.with_stack,
        virtual_time=True,
        allow_writes=options.allow_writes,
        keep_writes=options.keep_writes,
        steady_steps=options.steps,
        max_ops=options.max_ops,
        script=program.title,
        stated=options.stated,
        compiles_models=options.compiles_models,
        rank=options.rank,
    )


def _nothing(program: Program, gpu: GPU) -> Recording:
    """What is known of a program whose process ended before it could tell anything."""
    import torch

    from neusight.recording.recording import Recording

    return Recording((), gpu.name, torch.__version__, script=program.title)
