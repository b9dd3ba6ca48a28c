"""GPT-QModel: checkpoints of GPTQ and AWQ have the bytes and the products that they should."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import neusight

IN, OUT, GROUP = 1024, 2048, 128


def layer(
    method: str, *, bits: int = 4, sym: bool = False, group: int = GROUP, device: str = "cuda"
) -> Any:
    select = importlib.import_module("gptqmodel.utils.importer").hf_select_quant_linear_v2
    made = select(quant_method=method, bits=bits)(
        bits=bits, group_size=group, desc_act=False, sym=sym, in_features=IN, out_features=OUT,
        bias=True,
    )  # fmt: skip
    return made.to(device)


@pytest.mark.parametrize(("method", "packed"), [("awq", (IN, OUT // 8)), ("gptq", (IN // 8, OUT))])
def test_a_product_reads_the_weight_as_it_is_packed(method: str, packed: tuple[int, int]) -> None:
    with neusight.forecast_on("H100") as forecast:
        made = layer(method)
        out = made(torch.zeros(2, 8, IN, device="cuda", dtype=torch.float16))

    assert tuple(made.qweight.shape) == packed
    assert (tuple(out.shape), out.dtype) == ((2, 8, OUT), torch.float16)
    (kernel,) = [kernel for kernel, _ in forecast.kernels if kernel.name == "marlin_gemm"]
    scales, zeros, bias = IN // GROUP * OUT * 2, IN // GROUP * OUT // 2, OUT * 2
    assert kernel.bytes_read == 16 * IN * 2 + IN * OUT // 2 + scales + zeros + bias


def test_symmetric_weights_have_no_zero_points_to_read() -> None:
    with neusight.forecast_on("H100") as forecast:
        for sym in (True, False):
            layer("gptq", sym=sym)(torch.zeros(1, IN, device="cuda", dtype=torch.float16))

    with_none, with_some = (k.bytes_read for k, _ in forecast.kernels if k.name == "marlin_gemm")
    assert with_some - with_none == IN // GROUP * OUT // 2


def test_what_is_not_forecast_is_refused() -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        with pytest.raises(NotImplementedError, match="of 4 and 8 bits, not 3"):
            layer("gptq", bits=3)
        quantize = importlib.import_module("gptqmodel.quantization").GPTQ
        with pytest.raises(NotImplementedError, match="load a checkpoint that is quantized"):
            quantize(torch.nn.Linear(4, 4))


@pytest.mark.slow
def test_transformers_loads_a_checkpoint_of_awq(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=512, dtype="float16",
    )  # fmt: skip
    tensors = {}
    for name, weight in transformers.LlamaForCausalLM(config).half().state_dict().items():
        if "layers" not in name or weight.dim() == 1:
            tensors[name] = weight.clone()
            continue
        (rows, columns), start = weight.shape, name.removesuffix("weight")
        groups = columns // GROUP
        tensors[f"{start}qweight"] = torch.zeros(columns, rows // 8, dtype=torch.int32)
        tensors[f"{start}qzeros"] = torch.zeros(groups, rows // 8, dtype=torch.int32)
        tensors[f"{start}scales"] = torch.ones(groups, rows, dtype=torch.float16)
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    method = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
    written = {**config.to_dict(), "quantization_config": method}
    written["architectures"] = ["LlamaForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(written))

    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cuda")
        model(torch.zeros(1, 16, dtype=torch.long, device="cuda"))

    products = [kernel for kernel, _ in forecast.kernels if kernel.name == "marlin_gemm"]
    assert len(products) == 2 * 7
    assert "gptqmodel is not installed; its functions are forecast by stubs" in str(
        forecast.warnings
    )


def test_an_activation_may_be_divided_by_scales() -> None:
    with neusight.forecast_on("H100") as forecast:
        kind = importlib.import_module("gptqmodel.quantization.awq.modules.act").ScaledActivation
        out = kind(torch.nn.GELU(), torch.ones(64)).cuda()(torch.ones(2, 8, 64, device="cuda"))

    assert tuple(out.shape) == (2, 8, 64)
    assert [kernel.name for kernel, _ in forecast.kernels][-2:] == ["gelu", "div"]


@pytest.mark.parametrize(
    ("bits", "group", "shapes"),
    [
        (4, GROUP, {"qweight": (IN // 8, OUT), "qzeros": (8, OUT // 8), "scales": (8, OUT)}),
        (8, 1000, {"qweight": (IN // 4, OUT), "qzeros": (2, OUT // 4), "scales": (2, OUT)}),
        (4, -1, {"qweight": (IN // 8, OUT), "qzeros": (1, OUT // 8), "scales": (1, OUT)}),
        (4, 0, {"qweight": (IN // 8, OUT), "qzeros": (1, OUT // 8), "scales": (1, OUT)}),
    ],
)
def test_a_layer_has_the_shapes_of_its_checkpoint(
    bits: int, group: int, shapes: dict[str, tuple[int, int]]
) -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        made = layer("gptq", bits=bits, group=group, device="cpu")

    held = {name: tuple(value.shape) for name, value in made.state_dict().items()}
    assert held == {**shapes, "g_idx": (IN,), "bias": (OUT,)}


def test_the_group_of_each_feature_that_enters_is_known() -> None:
    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        made = layer("gptq", device="cpu")

    assert made.g_idx.tolist() == [feature // GROUP for feature in range(IN)]
