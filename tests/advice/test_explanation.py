"""What stands behind the price of a kernel."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.advice.explanation import NothingToExplainError, explain_kernels
from neusight.predictors.kernel import ConvolutionSize, Kernel
from neusight.predictors.registry import find_predictor
from neusight.timeline.spans import KernelSpan
from timelines import ROUND_GPU, kernel_span, op


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(nn.Linear(4096, 4096), nn.LayerNorm(4096), nn.Linear(4096, 512))
        model = model.cuda().to(torch.bfloat16)
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(2048, 4096, device="cuda", dtype=torch.bfloat16))
    return forecast


def test_a_product_states_its_size_launch_bound_and_network(forecast: neusight.Forecast) -> None:
    text = forecast.explain("addmm")
    lines = text.splitlines()
    assert lines[0].startswith("addmm on H100-SXM5-80GB: 2 kernels of 4, ")
    assert "product of [2048 x 4096] by [4096 x 4096], nt, bfloat16" in text
    assert "aten::addmm in Sequential.0" in text
    assert "tiles of " in text and " waves on 132 SMs" in text
    assert "68.7 GFLOP take 69.5 µs at the peak in bf16" in text  # 2 * 2048 * 4096^2 / 989.4e12
    assert "the network gemm_16bit was fitted to" in text
    assert "inside the range of its measurements" in text
    assert "fitted on data/modern" in lines[-1]


def test_the_most_expensive_comes_first(forecast: neusight.Forecast) -> None:
    text = forecast.explain("*")
    assert text.index("[4096 x 4096]") < text.index("[4096 x 512]")
    assert "layer_norm of 2,048 x 4,096 elements" in text


def test_a_pattern_matches_whole_names(forecast: neusight.Forecast) -> None:
    assert "1 kernel of 4" in forecast.explain("*.1")
    with pytest.raises(ValueError, match="no module, op or kernel"):
        forecast.explain("equential*")


def test_what_is_not_there_is_reported_with_what_is_like_it(forecast: neusight.Forecast) -> None:
    with pytest.raises(ValueError, match=r"'admm' in its name; there are aten::addmm"):
        forecast.explain("admm")
    with pytest.raises(ValueError, match="nothing is called 'relu': the step has no kernels"):
        explain_kernels(
            "relu", (), gpu=forecast.gpu, predictor=forecast.predictor, torch_version="2.13",
            step_us=1.0,
        )  # fmt: skip


def test_each_class_of_kernels_can_be_explained() -> None:
    with neusight.forecast_on("A100", world_size=8) as forecast:
        torch.distributed.init_process_group("nccl")
        x = torch.ones(8, 64, 56, 56, device="cuda")
        nn.functional.conv2d(x, torch.ones(64, 64, 3, 3, device="cuda"), padding=1)
        query = torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.float16)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        torch.distributed.all_reduce(x)
        torch.mv(torch.ones(4096, 4096, device="cuda"), torch.ones(4096, device="cuda"))
    text = forecast.explain("*")
    assert "forward convolution of 8 x 64 maps of 56 x 56 to 64 channels, filter 3 x 3" in text
    assert "forward attention of 2 x 8 heads, 128 queries on 128 keys of 64, causal" in text
    assert "all_reduce of 6.1 MiB among 8 ranks" in text
    assert "how     a matrix by a vector: no tiles, as a stream" in text


def test_measured_rows_stand_beside_what_they_are_nearest_to(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="reading tables needs the extra [data]")
    (tmp_path / "gemm.csv").write_text(
        "gpu,dtype,m,n,k,latency_us\nH100,bf16,2048,4096,4096,100\nH100,bf16,64,64,64,3\n"
        "T4,bf16,2048,512,4096,9\n",
        encoding="utf-8",
    )
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(2048, 4096, device="cuda", dtype=torch.bfloat16)
        x @ torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16).T
        torch.ones(8, device="cuda")

    text = forecast.explain("*", measured=tmp_path)

    assert "near    the same: product of [2048 x 4096] by [4096 x 4096], nt, bfloat16" in text
    [percent] = re.findall(r"measured 100\.0 µs, forecast ([+-]\d+)%", text)
    assert -100 < int(percent) < 0
    assert "no measured row of H100-SXM5-80GB is of this class" in text


def test_a_convolution_names_its_algorithm_and_the_units_that_the_gpu_has() -> None:
    def reported(gpu: str) -> str:
        with neusight.forecast_on(gpu) as forecast, torch.no_grad():
            x = torch.ones(8, 64, 56, 56, device="cuda")
            nn.functional.conv2d(x, torch.ones(64, 64, 3, 3, device="cuda"), padding=1)
            nn.functional.conv2d(x, torch.ones(64, 1, 3, 3, device="cuda"), groups=64)
        return forecast.explain("conv")

    assert "how     Winograd in fp32 on ordinary cores" in reported("V100")
    assert "how     implicit product in tf32 on tensor cores" in reported("A100")
    assert "how     direct, a group a channel" in reported("V100")
    assert "tf32" not in reported("V100").replace("tf32f32", "")


def span(kernel: Kernel, microseconds: float, *, module: str = "", **estimate: Any) -> KernelSpan:
    made = kernel_span(kernel, microseconds, call=op(kernel.name, module=module))
    return made._replace(estimate=replace(made.estimate, **estimate))


def explained(*spans: KernelSpan, what: str = "*") -> list[str]:
    """The lines of each kernel, without their labels and their last, the price."""
    text = explain_kernels(
        what,
        spans,
        gpu=ROUND_GPU,
        predictor=find_predictor("tiled"),
        torch_version="2.13.0+cpu",
        step_us=2000.0,
    )
    return [line[14:] for line in text.splitlines() if line.startswith("      ")]


PRODUCT = Kernel.gemm(512, 256, 1024, batch=2, dtype="bfloat16", out_dtype="float32")
GROUPED = ConvolutionSize(
    batch=4, in_channels=64, out_channels=128, groups=2, input=(28, 28), output=(14, 14),
    kernel=(3, 3), stride=(2, 2), direction="forward",
)  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "lines"),
    [
        (
            [
                span(PRODUCT, 40, module="Net.a", tile=(128, 64), split_k=2, num_waves=0.5),
                span(PRODUCT, 40, module="Net.b"),
                span(PRODUCT, 40, module="Net.c"),
            ],
            """\
            product of 2 x [512 x 1024] by [1024 x 256], nt, bfloat16 to float32
            tiled product in bf16 on tensor cores, K split in 2
            aten::gemm in Net.a and 2 more
            tiles of 128 x 64, split-K 2, 1 CTA of 256 threads, 0.5 waves on 132 SMs
            memory; 0.537 GFLOP take 0.5 µs at the peak in bf16 (1%), \
4.0 MiB take 1.3 µs at the peak bandwidth (3%)""",
        ),
        (
            [span(Kernel.gemm(512, 256, 512, dtype="float32"), 40)],
            """\
            product of [512 x 512] by [512 x 256], nt, float32
            tiled product in fp32 on ordinary cores
            aten::gemm in (no module)
            1 CTA of 256 threads, 1 waves on 132 SMs
            memory; 0.134 GFLOP take 1.3 µs at the peak in fp32 (3%), \
2.0 MiB take 0.6 µs at the peak bandwidth (2%)""",
        ),
        (
            [span(Kernel.convolution(GROUPED, dtype="float16", variant="fastest"), 0.01)],
            """\
            forward convolution of 4 x 64 maps of 28 x 28 to 128 channels, filter 3 x 3, \
stride 2 x 2, 2 groups, contiguous, float16, fastest
            implicit product in fp16 on tensor cores, the fastest of cuDNN's (benchmark)
            aten::convolution_forward in (no module)
            1 CTA of 256 threads, 1 waves on 132 SMs
            memory; 0.0578 GFLOP take 0.6 µs at the peak in fp16 (100%), \
0.6 MiB take 0.2 µs at the peak bandwidth (100%)""",
        ),
        (
            [span(Kernel.attention(2, 8, 2, 128, 256, 64, causal=True, dtype="bfloat16"), 20)],
            """\
            forward attention of 2 x 8 heads (2 of keys), 128 queries on 256 keys of 64, \
causal, bfloat16
            flash_attention in bf16 on tensor cores""",
        ),
        (
            [span(replace(Kernel.elementwise("cat", 3000, dtype="float32"), num_parts=3), 8)],
            "            cat of 3 tensors, 1 x 3,000 elements, float32",
        ),
    ],
)  # fmt: skip
def test_a_kernel_states_its_size_algorithm_launch_and_bound(
    spans: list[KernelSpan], lines: str
) -> None:
    found = explained(*spans)

    assert found[: len(lines.splitlines())] == [line.strip() for line in lines.splitlines()]


def test_a_dozen_kernels_are_shown_and_the_rest_is_counted() -> None:
    spans = [span(Kernel.elementwise("relu", n, dtype="float32"), n) for n in range(1, 15)]

    text = explain_kernels(
        "relu", spans, gpu=ROUND_GPU, predictor=find_predictor("tiled"), torch_version="2.13",
        step_us=2000.0,
    )  # fmt: skip

    assert text.startswith(
        "relu on Round: 14 kernels of 14, 105.0 µs of GPU time in a step of 2.00"
    )
    assert text.count("relu of 1 x ") == 12
    assert "\n  and 2 more, 3.0 µs together\n" in text


def test_five_names_are_suggested() -> None:
    spans = [span(Kernel.elementwise(f"relu{n}", 8, dtype="float32"), 1.0) for n in range(7)]

    for what in ("aten::relux", "nothing like these"):
        with pytest.raises(NothingToExplainError) as refused:
            explained(*spans, what=what)

        assert str(refused.value).count("aten::relu") == 5 + (what == "aten::relux")
