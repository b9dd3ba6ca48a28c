"""The arithmetic of an op on a GPU, by the switches that the program set."""

from __future__ import annotations

from dataclasses import replace

from neusight.predictors.gpu import GPU
from neusight.recording.recording import MathMode

_HALVES = {"fp16": "float16", "bf16": "bfloat16"}


def math_mode_on(gpu: GPU, math: MathMode) -> MathMode:
    """The switches of a recorded op as that GPU takes them. torch gives MIOpen no TF32, whatever
    cuDNN's switch says (pull request 190711, open).

    >>> from neusight.predictors.gpu import find_gpu
    >>> [math_mode_on(find_gpu(name), MathMode()).half_dtypes for name in ("P100", "V100")]
    [(), ('float16',)]
    """
    if gpu.vendor == "amd":
        return replace(math, cudnn_tf32=False, miopen=True)
    able = tuple(dtype for unit, dtype in _HALVES.items() if gpu.has_matrix_unit(unit))
    return math if able == math.half_dtypes else replace(math, half_dtypes=able)
