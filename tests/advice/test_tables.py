"""What is advised for small programs and what is said of kernels, as tables;
NEUSIGHT_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from small_programs import recorded
from torch import nn

import neusight
from neusight.advice.advice import advice_for, fitting_lines
from neusight.advice.explanation import explain_kernels
from neusight.advice.memory import memory_advice
from neusight.forecast import Forecast
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.registry import find_predictor
from neusight.recording.recording import Recording
from neusight.timeline.spans import KernelSpan
from places import require_golden
from timelines import op


class Images(nn.Module):
    """Convolutions, and a head of an odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(8, 128, 3), nn.ReLU(), nn.Conv2d(128, 64, 3))
        self.head = nn.Linear(64, 1003)

    def forward(self, x: Any) -> Any:
        return self.head(self.convs(x).mean((2, 3))).log_softmax(-1)


@cache
def trained(gpu: str, dtype: torch.dtype) -> Forecast:
    """Three steps of Adam on such images, each loss read."""
    with neusight.forecast_on(gpu) as forecast:
        net = Images().to("cuda", dtype)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.ones(32, 8, 32, 32, dtype=dtype, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    return forecast


IMAGE = ConvolutionSize(8, 64, 128, 1, (28, 28), (14, 14), (3, 3), (2, 2), "forward")
KERNELS = (
    Kernel.gemm(2048, 512, 4096, dtype="bfloat16", layout="nt"),
    Kernel.gemm(64, 64, 8192, batch=3, dtype="float16", out_dtype="float32"),
    Kernel.gemm(512, 512, 512, dtype="float32", compute="tf32"),
    Kernel.gemm(1, 4096, 4096, dtype="float32"),
    Kernel.convolution(IMAGE, dtype="float16", layout="channels_last"),
    Kernel.convolution(IMAGE._replace(groups=2, direction="weight_gradient"), dtype="float32"),
    Kernel.attention(2, 8, 2, 128, 256, 64, causal=True, dtype="float16"),
    Kernel.attention(2, 8, 8, 128, 256, 64, causal=False, dtype="float32", backward=True),
    Kernel.elementwise("add", 10**6, dtype="float32", num_inputs=2),
    Kernel.rows(
        KernelClass.REDUCTION, "sum", 1024, 2000, dtype="float16", out_dtype="float32",
        bytes_read=4_096_000, bytes_written=4096,
    ),
    Kernel.collective("all_reduce", 10**6, 8),
)  # fmt: skip


def test_programs_are_advised_as_the_golden_table_has_it() -> None:
    """All changes, whatever they gain."""
    forecasts = {name: recorded(name) for name in ("training", "inference", "streams", "graphs")}
    for gpu, dtype in (("H100", torch.float32), ("T4", torch.float32), ("V100", torch.bfloat16)):
        forecasts[f"images of {dtype} on {gpu}"] = trained(gpu, dtype)
    lines = []
    for name, forecast in forecasts.items():
        lines.append(f"{name}: {forecast.step_latency_us.median}")
        for advice in advice_for(forecast, smallest_gain=-10.0):
            what = re.sub(r"\.py:\d+", ".py", advice.what)
            lines.append(f"  {advice.kind} {advice.latency_us} {advice.to_json()['gain']} {what}")

    require_golden("advice.txt", lines)


def test_memory_is_advised_on_as_the_golden_table_has_it(plain: Forecast) -> None:
    """With nothing, most and all of the memory there."""
    needed = memory_advice(plain.recording, plain.gpu).needed_bytes

    def latency_of(changed: Recording) -> float:
        return plain.of(changed).step_latency_us.median

    lines = []
    for share in (0.0, 0.7, 0.9, 1.0):
        advice = memory_advice(
            plain.recording, plain.gpu, limit_bytes=int(share * needed), latency_of=latency_of
        )
        lines.append(f"{share} of {advice.needed_bytes}: {advice.fits} {advice.batch}")
        for remedy in advice.remedies:
            added_us = remedy.added_us and round(remedy.added_us, 3)
            lines.append(f"  {replace(remedy, added_us=added_us)}")
        lines += fitting_lines(advice)
    for alloc, spec in advice.tensors[:12]:
        shape = None if spec is None else spec.shape
        lines.append(f"  {alloc.module} {alloc.op} {alloc.num_bytes} {shape}")

    require_golden("memory_advice.txt", lines)


def test_kernels_are_explained_as_the_golden_table_has_it() -> None:
    lines = []
    for name, burst in (("H100", ""), ("V100", "_burst"), ("MI300X", "")):
        gpu, predictor = find_gpu(name), find_predictor(f"tiled{burst}")
        for kernel in KERNELS:
            [estimate] = predictor.predict([kernel], gpu)
            duration_ns = round(estimate.latency_us * 1000)
            span = KernelSpan(kernel, estimate, 0, 0, duration_ns, 0, 0, op(module="net.layer"))
            text = explain_kernels(
                "relu", [span], gpu=gpu, predictor=predictor, torch_version="2.13.0+cu130",
                step_us=1234.5,
            )  # fmt: skip
            lines += text.splitlines()[:-3]
    lines += text.splitlines()[-3:]

    require_golden("explained_kernels.txt", lines)
