"""What a trace says of a kernel's launch agrees with its price."""

from __future__ import annotations

import pytest

from neusight.output.trace.arguments import forecast_arguments, launch_arguments
from neusight.predictors import Kernel, KernelClass, Tiled, find_gpu
from neusight.predictors.kernel import ConvolutionSize

KERNELS = {
    "product": Kernel.gemm(8192, 8192, 8192),
    "fp32 product": Kernel.gemm(512, 768, 1024, dtype="float32"),
    "split product": Kernel.gemm(64, 64, 65536, dtype="float16"),
    "convolution": Kernel.convolution(
        ConvolutionSize(8, 64, 64, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward"),
        dtype="float16",
    ),
    "depthwise convolution": Kernel.convolution(
        ConvolutionSize(8, 64, 64, 64, (56, 56), (56, 56), (3, 3), (1, 1), "forward"),
        dtype="float16",
    ),
    "attention": Kernel.attention(8, 16, 16, 2048, 2048, 64, causal=True, dtype="float16"),
    "decoding": Kernel.attention(1, 8, 2, 1, 4096, 128, causal=False, dtype="float16"),
    "addition": Kernel.elementwise("add", 2**26, dtype="float32", num_inputs=2),
    "small addition": Kernel.elementwise("add", 100, dtype="float32", num_inputs=2),
    "softmax": Kernel.rows(
        KernelClass.SOFTMAX, "softmax", 4096, 512, dtype="float16", bytes_read=2**22,
        bytes_written=2**22,
    ),
    "optimizer": Kernel.rows(
        KernelClass.OPTIMIZER, "adam", 1, 2**24, dtype="float32", bytes_read=2**28,
        bytes_written=2**27,
    ),
    "all_reduce": Kernel.collective("all_reduce", 2**24, 8),
}  # fmt: skip


@pytest.mark.parametrize("gpu_name", ["H100", "A100", "T4", "B200", "MI210"])
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_grid_waves_and_occupancy_are_those_of_the_price(kernel_name: str, gpu_name: str) -> None:
    kernel, gpu = KERNELS[kernel_name], find_gpu(gpu_name)
    [estimate] = Tiled(correction=None).predict([kernel], gpu)

    launch, forecast = launch_arguments(kernel, estimate, gpu), forecast_arguments(kernel, estimate)

    assert launch["grid"] == [estimate.num_ctas, 1, 1]
    assert launch["block"] == [estimate.threads_per_cta, 1, 1]
    assert forecast["waves"] == round(estimate.num_waves, 3)
    blocks_per_sm = estimate.num_ctas / gpu.num_sms
    at_once = round(blocks_per_sm / estimate.num_waves)
    warps = -(-estimate.threads_per_cta // gpu.warp_size)
    share = min(blocks_per_sm, at_once) * warps / (gpu.max_threads_per_sm // gpu.warp_size)
    assert launch["est. achieved occupancy %"] == round(100 * min(1.0, share))


def test_rows_that_no_predictor_laid_out_get_a_grid_by_their_size() -> None:
    gpu = find_gpu("H100")
    grids = []
    for name in ("softmax", "addition"):
        kernel = KERNELS[name]
        [estimate] = Tiled(correction=None).predict([kernel], gpu)
        blank = type(estimate)(5.0, 4.0, 6.0, "memory", "physics", "mine")
        grids.append(launch_arguments(kernel, blank, gpu)["grid"])

    assert grids == [[4096, 1, 1], [2**26 // 1024, 1, 1]]
