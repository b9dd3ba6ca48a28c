"""What stands behind the price of a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight


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


def test_each_class_of_kernels_can_be_explained() -> None:
    with neusight.forecast_on("A100", world_size=8) as forecast:
        torch.distributed.init_process_group("nccl")
        x = torch.ones(8, 64, 56, 56, device="cuda")
        nn.functional.conv2d(x, torch.ones(64, 64, 3, 3, device="cuda"), padding=1)
        query = torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.float16)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        torch.distributed.all_reduce(x)
    text = forecast.explain("*")
    assert "forward convolution of 8 x 64 maps of 56 x 56 to 64 channels, filter 3 x 3" in text
    assert "forward attention of 2 x 8 heads, 128 queries on 128 keys of 64, causal" in text
    assert "all_reduce of 6.1 MiB among 8 ranks" in text


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
