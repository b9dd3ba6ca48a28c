"""The suite `published`: figures of whole programs that others published, each row a case.

`e2e_published_dev.csv` has a row for each figure: model, batch, precision, compilation, optimizer,
GPU, metric, value, source. Rows that no program here reaches are listed with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

from neusight.integrations.suites.case import CannotBuild, CaseProgram, LeftOut, Suite, SuiteCase
from neusight.integrations.suites.csv_files import Row, number_in, read_rows, whole_in
from neusight.predictors.errors import UnknownGPUError
from neusight.predictors.gpu import find_gpu

FIGURES = "e2e_published_dev.csv"

_COLUMNS = ("case_id", "source", "gpu_key", "n_gpus", "model", "batch", "seq_or_res", "dtype",
            "mode", "compile", "optimizer", "metric", "value", "notes")  # fmt: skip

#: The GPUs that the table's keys stand for where those are no name that neusight knows.
_GPUS = {
    "A100-SXM-80G": "A100-SXM4-80GB",
    "A100-UNKNOWN": "A100-PCIE-40GB",
    "V100-SXM-16G": "V100-SXM2-16GB",
    "V100-UNKNOWN": "V100-PCIE-16GB",
}
_UNKNOWN_FORM = "the source does not say which card: taken to be the PCIe one"

#: The mode of torch.compile behind the table's word; other words are reasons to leave a row out.
_COMPILED = {"no": "", "no (nvFuser/TorchScript used by repo)": "", "inductor": "default",
             "inductor default": "default", "max-autotune": "max-autotune"}  # fmt: skip

#: Who builds a row's program, by how its name begins; a text says why there is none.
_FAMILIES = {
    "timm-": "timm",
    "dle-train-resn": "timm",
    "dle-train-se_resnext": "timm",
    "dle-inf-": "timm",
    "hfcompile-": "vision",
    "samfast-": "sam",
}
_NOT_BUILT = {
    "dle-bertlarge": "its source runs fused kernels of its own, and logits of masked words alone",
    "diffusers-": "Stable Diffusion's UNet needs diffusers, and its weights' configuration",
    "gptfast-": "decoding token by token under CUDA graphs, in weights of its own format",
    "torchao-": "torchao's quantised weights and decoding loop",
    "torchtune-": "LoRA over packed sequences: a recipe of its own",
}

#: NVIDIA's names of the models that timm has too.
_TIMM_NAMES = {
    "resnext101-32x4d": "resnext101_32x4d",
    "se-resnext101-32x4d": "seresnext101_32x4d",
}


def published_suite(folder: Path) -> Suite:
    """Every row of one GPU; DataError where the file is missing or damaged."""
    path = folder / FIGURES
    cases: list[SuiteCase] = []
    left_out: list[LeftOut] = []
    for row in read_rows(path, _COLUMNS):
        if row["n_gpus"].strip() != "1":
            continue
        try:
            cases.append(_case(row, path))
        except (CannotBuild, UnknownGPUError) as reason:
            left_out.append(LeftOut(row["case_id"], _source(row), str(reason)))
    return Suite("published", tuple(cases), tuple(left_out))


def _source(row: Row) -> str:
    """The project that published the figure."""
    return row["source"].split(" ")[0]


def _case(row: Row, path: Path) -> SuiteCase:
    if "memory" in row["metric"]:
        raise CannotBuild("a figure of memory, not of time: benchmarks/memory.py has those")
    if row["compile"] not in _COMPILED:
        raise CannotBuild(_why_not(row) or f"compiled as {row['compile']!r}")
    program, torch = _program(row, path), _torch_of(f"{row['dtype']}; {row['notes']}")
    batch, value = program.batch, number_in(row, "value", path)
    gpu = find_gpu(_GPUS.get(row["gpu_key"], row["gpu_key"]))
    return SuiteCase(
        row["case_id"],
        _source(row),
        program,
        gpu,
        row["metric"],
        value,
        _step_ms(row["metric"], value, batch),
        assumed=_assumed(row, program, torch),
        torch=torch,
    )


#: How rows name the version of torch, and the torch of NVIDIA's containers (NVIDIA's support
#: matrix of frameworks).
_TORCH = re.compile(r"torch (\d+\.\d+)")
_CONTAINER = re.compile(r"NGC (?:pytorch )?(\d\d\.\d\d)")
_TORCH_OF_CONTAINER = {"21.03": "1.9"}


def _torch_of(text: str) -> str:
    """The version of torch that ran; "" where it is not stated."""
    container = _CONTAINER.search(text)
    if container:
        return _TORCH_OF_CONTAINER.get(container[1], "")
    stated = _TORCH.search(text)
    return stated[1] if stated else ""


def _step_ms(metric: str, value: float, batch: int) -> float:
    """The time of one step of `batch` samples."""
    if metric.startswith(("ms/", "latency")):
        return value
    if "iterations/s" in metric:
        return 1e3 / value
    return 1e3 * batch / value


def _program(row: Row, path: Path) -> CaseProgram:
    name = row["case_id"]
    family = next((made for start, made in _FAMILIES.items() if name.startswith(start)), None)
    if family is None:
        raise CannotBuild(_why_not(row) or "its program is not available")
    return CaseProgram(
        family,
        _TIMM_NAMES.get(row["model"], row["model"]),
        row["mode"],
        whole_in(row, "batch", path),
        int(number_in({"size": row["seq_or_res"].split(" ")[0]}, "size", path)),
        _precision(row["dtype"]),
        _COMPILED[row["compile"]],
        row["optimizer"],
        channels_last=_is_channels_last(row),
    )


def _is_channels_last(row: Row) -> bool:
    """As the row says. DeepLearningExamples says it of training alone: NHWC wherever it trains in
    mixed precision, by a setting (configs.yml) that its inference shares."""
    notes = row["notes"].lower()
    is_silent = row["case_id"].startswith("dle-inf-") and "memory_format" not in notes
    return "nhwc" in notes or (is_silent and _precision(row["dtype"]) == "amp")


def _why_not(row: Row) -> str:
    return next((why for start, why in _NOT_BUILT.items() if row["case_id"].startswith(start)), "")


def _precision(dtype: str) -> str:
    """ "fp32", "tf32", "amp", "bf16" or "fp16" of the table's words."""
    first = dtype.split(" ")[0]
    return "amp" if first.startswith("amp") else first


def _assumed(row: Row, program: CaseProgram, torch: str) -> tuple[str, ...]:
    found = ["the torch of this machine chose and fused the kernels, not the source's"]
    if torch:
        found = [f"kernels and dispatcher of torch {torch}; ops and fusion are this machine's"]
    if row["gpu_key"].endswith("UNKNOWN"):
        found.append(_UNKNOWN_FORM)
    if program.mode == "train":
        found.append("SGD with momentum; the sum of the logits stands for the loss")
    if "nvFuser" in row["compile"]:
        found.append("eager: what the source fuses by TorchScript is not fused")
    return tuple(found)
