"""The switches of torch as the GPU that prices takes them."""

from __future__ import annotations

import pytest

from neusight.ops import map_op
from neusight.ops.math_mode import math_mode_on
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import MathMode
from op_calls import convolution


@pytest.mark.parametrize(("gpu", "num_kernels"), [("V100", 4), ("GTX 1080 Ti", 1), ("MI300X", 1)])
def test_images_are_turned_to_nhwc_for_tensor_cores_alone(gpu: str, num_kernels: int) -> None:
    kernels = map_op(convolution("float16"), math_mode_on(find_gpu(gpu), MathMode())).kernels

    assert len(kernels) == num_kernels


def test_an_amd_gpu_has_miopen_and_no_tf32() -> None:
    mode = math_mode_on(find_gpu("MI300X"), MathMode(cudnn_benchmark=True))

    assert mode == MathMode(cudnn_benchmark=True, cudnn_tf32=False, miopen=True)
