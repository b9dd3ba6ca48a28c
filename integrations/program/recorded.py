"""What running a program gave, as one process sends it to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.runner import Outcome

if TYPE_CHECKING:
    from neusight.forecast import Forecast, ForecastOptions
    from neusight.ops.user_ops import UserOps
    from neusight.predictors.gpu import GPU
    from neusight.recording.recording import Recording


@dataclass(frozen=True)
class Recorded:
    """How a program ended, what was recorded (None where its process was lost), the ops that it
    brought along (None where this process knows them), and a digest of its own files. `ranks` are
    the recordings of all ranks that were run side by side, `recording` that of the first; one of
    them that `was_stopped` was so by others. That of a rank whose steps are `like` those of another
    one holds the collectives alone."""

    outcome: Outcome
    recording: Recording | None = None
    ops: UserOps | None = None
    files: str = ""
    ranks: tuple[Recording, ...] = ()
    was_stopped: bool = False
    like: int | None = None

    def forecast(self, program: Program, gpu: GPU, options: ProgramOptions) -> Forecast:
        """The forecast that these options make of it."""
        import torch

        from neusight.forecast import Forecast
        from neusight.recording.recording import Recording

        # Of a program whose process ended before it could report anything, this much is known.
        recording = self.recording or Recording(
            (), gpu.name, torch.__version__, script=program.title
        )
        return Forecast(recording, forecast_options_for(gpu, options), ranks=self.ranks)


def forecast_options_for(gpu: GPU, options: ProgramOptions) -> ForecastOptions:
    """What the program's forecast on that GPU is made with."""
    from neusight.forecast import forecast_options

    return forecast_options(
        gpu,
        predictor=options.predictor,
        calibration=options.calibration_for(gpu),
        host=options.host_beside_torch,
        topology=options.topology_for(gpu),
    )
