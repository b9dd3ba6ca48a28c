"""The suite `paper`: the end-to-end cases of the NeuSight paper (arXiv 2407.13853, section 6).

`e2e_labels.csv` says which model ran how, on which GPU and how long a step took,
`model_configs.json` what the models are, and the kernel tables beside them which GPUs predictors
could be fitted on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from neusight.integrations.suites.case import CaseProgram, LeftOut, Suite, SuiteCase
from neusight.integrations.suites.csv_files import Row, number_in, read_rows, whole_in
from neusight.predictors.errors import DataError
from neusight.predictors.training.datasheet import KnownGPUs

LABELS, CONFIGURATIONS = "e2e_labels.csv", "model_configs.json"
SOURCE = "NeuSight paper"

_COLUMNS = ("gpu", "model", "mode", "seq_len", "batch", "option", "step_ms")

#: The labels' words for what is no plain eager step of one GPU: torch.compile's mode, or the split
#: with the number of GPUs.
_SPLITS = {"dp4": ("dp", 4), "tp4": ("tp", 4), "pp4_1": ("pp", 4)}
_FUSION = "fusion"

_ASSUMED = ("what the source measured is the mean of the five fastest of 25 steps",)
_ASSUMED_OF_MODE = {
    "train": ("the forward pass of the loss, which the source leaves out, is in the step",),
    "inf": (),
}
_ASSUMED_OF_SWITCH = (
    "each expert runs after the other, and all tokens, which are alike, go to one of them",
)
_ASSUMED_OF_SPLIT = (
    "embeddings and head are whole on each rank: how the source splits is not published",
)


def paper_suite(folder: Path, *, measured: Collection[str] | None = None) -> Suite:
    """All rows of the labels; DataError where a file is missing or damaged.

    `measured` names the GPUs whose kernels the folder's tables have (None: unknown).
    """
    path = folder / LABELS
    settings = model_settings(folder)
    known = KnownGPUs(folder)
    cases: list[SuiteCase] = []
    left_out: list[LeftOut] = []
    for row in read_rows(path, _COLUMNS):
        name = " ".join(row[column] for column in _COLUMNS[:-1] if row[column])
        gpu = known.find(row["gpu"])
        if isinstance(gpu, str):
            left_out.append(LeftOut(name, SOURCE, gpu))
            continue
        is_held_out = measured is not None and gpu.name not in measured
        program = _program(row, path, settings)
        step_ms = number_in(row, "step_ms", path)
        cases.append(
            SuiteCase(
                name, SOURCE, program, gpu, "ms a step", step_ms, step_ms, is_held_out,
                _assumed(program), _TORCH[gpu.vendor],
            )
        )  # fmt: skip
    return Suite("paper", tuple(cases), tuple(left_out))


#: The versions of torch that ran (arXiv 2407.13853, section 6; the artifact's tables).
_TORCH = {"nvidia": "2.1", "amd": "2.4"}


def model_settings(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """The configuration of each model, by the labels' names."""
    path = folder / CONFIGURATIONS
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}.") from error
    if not isinstance(document, dict) or not all(isinstance(v, dict) for v in document.values()):
        raise DataError(f"{path} must hold an object with one object a model.")
    return document


def _program(row: Row, path: Path, settings: Mapping[str, Mapping[str, Any]]) -> CaseProgram:
    model, mode, option = row["model"], row["mode"], row["option"]
    if model not in settings:
        raise DataError(f"{path}: the model {model!r} is not in {CONFIGURATIONS}.")
    if mode not in _ASSUMED_OF_MODE:
        raise DataError(f"{path}: the mode is {mode!r}; it must be 'inf' or 'train'.")
    if option and option != _FUSION and option not in _SPLITS:
        known = ", ".join((_FUSION, *_SPLITS))
        raise DataError(f"{path}: the option is {option!r}; known are: {known}, or none.")
    split, num_ranks = _SPLITS.get(option, ("", 1))
    is_switch = str(settings[model]["architectures"][0]).startswith("SwitchTransformers")
    return CaseProgram(
        "split" if split else "switch" if is_switch else "language",
        model,
        mode,
        whole_in(row, "batch", path),
        whole_in(row, "seq_len", path),
        compiled="default" if option == _FUSION else "",
        split=split,
        num_ranks=num_ranks,
    )


def _assumed(program: CaseProgram) -> tuple[str, ...]:
    if program.split:
        return _ASSUMED_OF_SPLIT
    switch = _ASSUMED_OF_SWITCH if program.family == "switch" else ()
    return (*_ASSUMED, *_ASSUMED_OF_MODE[program.mode], *switch)
