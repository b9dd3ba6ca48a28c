"""Kernels that a GPU would choose by timing are the default ones, and each graph says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from compiled_net import Net, infer, ops, quiet
from torch._inductor import config as inductor_config

import neusight
from neusight.fake_cuda.compiling.choices import tuning
from neusight.fake_cuda.compiling.choices.tuning import TuningGain
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.predictors.tiled import Tiled

BEGINNING = "max-autotune is forecast with default kernels; a GPU would choose by timing at "


def inferred(**options: Any) -> neusight.Forecast:
    with quiet(), neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval(), **options))
    return forecast


@pytest.fixture(scope="module")
def tuned() -> neusight.Forecast:
    return inferred(mode="max-autotune-no-cudagraphs")


def test_a_graph_says_what_a_gpu_would_time(tuned: neusight.Forecast) -> None:
    [line] = tuned.warnings

    assert line.startswith(BEGINNING + "compiled_net.py:")
    assert line.endswith(": 2 products, with nothing to fuse")  # a norm is no epilogue
    assert any("triton" in name for name in ops(*tuned.recording.steps))


def test_kernels_are_those_without_tuning(tuned: neusight.Forecast) -> None:
    assert ops(*tuned.recording.steps) == ops(*inferred().recording.steps)


def test_what_follows_a_product_is_what_fusing_could_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced: list[Kernel] = []

    class Noting(Tiled):
        def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
            priced.extend(kernels)
            return super().predict(kernels, gpu)

    monkeypatch.setattr(tuning, "find_predictor", Noting)
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        weight = torch.randn(2048, 2048, device="cuda")

        @torch.compile(options={"max_autotune": True})
        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ weight)

        for _ in range(3):
            function(torch.randn(2048, 2048, device="cuda"))
            torch.cuda.synchronize()
            forecast.step()
    epilogue = next(
        estimate.latency_us
        for kernel, estimate in forecast.kernels
        if kernel.name.startswith("triton_poi_fused")
    )

    [line] = forecast.warnings
    [kernel] = priced
    assert kernel.flops == 2048 * 2048
    assert kernel.bytes_read == kernel.bytes_written == 4 * 2048 * 2048
    assert line.endswith(f": 1 product, 1 fused would save {epilogue:.0f} us a call at most")


def test_settings_ask_as_modes_do() -> None:
    with inductor_config.patch(max_autotune_gemm=True):
        [line] = inferred().warnings

    assert line.startswith(BEGINNING)


def test_tuned_graphs_are_launched_as_cuda_graphs_in_their_mode() -> None:
    forecast = inferred(mode="max-autotune")

    assert "cudaGraphLaunch" in {span.name for span in forecast.timeline.host}


def test_the_line_of_a_graph_without_products() -> None:
    assert TuningGain(0, 0, 0.0).words("coordinate_descent_tuning", "net.py:7") == (
        "coordinate_descent_tuning is forecast with default kernels; a GPU would choose by timing "
        "at net.py:7: no product"
    )
