"""A case's program recorded once, to be priced for each GPU and by each predictor."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight._version import __version__
from neusight.forecast import Forecast, ForecastOptions, forecast_options
from neusight.integrations.suites.case import CaseProgram, Step
from neusight.integrations.suites.paper import model_settings
from neusight.predictors.errors import RecordingError
from neusight.predictors.gpu import GPU
from neusight.recording.saving import load_recordings

if TYPE_CHECKING:
    from neusight.recording.recording import Recording

#: The modules of `programs` that a family is written in, for the names of what is kept; and the
#: families that are built from the configurations beside the data.
_WRITTEN_IN = {
    "language": ("language",),
    "switch": ("language", "switch"),
    "split": ("language", "split"),
    "timm": ("vision",),
    "vision": ("vision",),
    "sam": ("vision",),
}
_OF_CONFIGURATIONS = ("language", "switch", "split")

#: Steps of a case: the first builds caches, states and gradients.
STEPS = 4


def record_program(
    program: CaseProgram, gpu: GPU, data: Path, kept: Path | None = None
) -> Forecast:
    """The program's steps on that GPU; read from the folder `kept` where it is there.

    CannotBuild where a package or a configuration is missing.
    """
    options = forecast_options(gpu)
    path = None if kept is None else kept / f"{_key(program, gpu)}.json.gz"
    if path is not None and path.exists():
        try:
            return _together(load_recordings(path)[0], options)
        except RecordingError:
            path.unlink()
    ranks = range(program.num_ranks)
    if program.split != "pp":  # all ranks do the same: one of them is recorded
        ranks = range(1)
    made = _together(tuple(_recording(program, gpu, data, rank) for rank in ranks), options)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return made


def _together(recordings: tuple[Recording, ...], options: ForecastOptions) -> Forecast:
    ranks = recordings if len(recordings) > 1 else ()
    return Forecast(recordings[0], options, ranks=ranks)


def _key(program: CaseProgram, gpu: GPU) -> str:
    """Names what is kept: the program, what wrote it down, and the versions that ran it."""
    import torch

    texts = [repr(program), gpu.name, torch.__version__, __version__, f"{STEPS}"]
    folder = Path(__file__).parent / "programs"
    texts += [(folder / f"{name}.py").read_text() for name in _WRITTEN_IN[program.family]]
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def _recording(program: CaseProgram, gpu: GPU, data: Path, rank: int) -> Recording:
    import torch

    from neusight.session import forecast_on

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    was = matmul.allow_tf32, cudnn.benchmark
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with forecast_on(gpu, world_size=program.num_ranks, rank=rank) as found:
                step = _step_of(program, data)
                for _ in range(STEPS):
                    step()
                    found.step()
                _leave_the_group()
    finally:
        matmul.allow_tf32, cudnn.benchmark = was
    return found.recording


def _leave_the_group() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _step_of(program: CaseProgram, data: Path) -> Step:
    if program.family in _OF_CONFIGURATIONS:
        return _step_of_settings(program, model_settings(data)[program.model])
    from neusight.integrations.suites.programs.vision import sam_step, timm_step, vision_step

    builders = {"timm": timm_step, "vision": vision_step, "sam": sam_step}
    return builders[program.family](program)


def _step_of_settings(program: CaseProgram, settings: Mapping[str, Any]) -> Step:
    from neusight.integrations.suites.programs.language import language_step
    from neusight.integrations.suites.programs.split import split_step
    from neusight.integrations.suites.programs.switch import switch_step

    builders = {"language": language_step, "split": split_step, "switch": switch_step}
    return builders[program.family](program, settings)
