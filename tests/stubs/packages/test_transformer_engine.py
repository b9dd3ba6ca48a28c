"""Transformer Engine: layers return, launch and keep what they should, in FP8 and without."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_calls import BF16, Case, assert_as_before, cuda

import neusight


def te() -> Any:
    return importlib.import_module("transformer_engine.pytorch")


def layer(name: str, *args: Any, shape: tuple[int, ...] = (128, 512)) -> Callable[[], Any]:
    made = getattr(te(), name)(*args, params_dtype=BF16)
    x = cuda(*shape)
    return lambda: made(x)


def in_fp8(name: str, *args: Any, **others: Any) -> Callable[[], Any]:
    call = layer(name, *args, **others)

    def run() -> Any:
        with te().fp8_autocast(enabled=True):
            return call()

    return run


def attention() -> Callable[[], Any]:
    core = te().DotProductAttention(4, 64, attention_dropout=0.0)
    heads = [cuda(256, 2, 4, 64) for _ in range(3)]
    return lambda: core(*heads)


CASES: dict[str, Case] = {
    "Linear": lambda: layer("Linear", 512, 256),
    "Linear, FP8": lambda: in_fp8("Linear", 512, 256),
    "LayerNormLinear": lambda: layer("LayerNormLinear", 512, 256),
    "LayerNormMLP": lambda: layer("LayerNormMLP", 512, 1024),
    "DotProductAttention": attention,
    "TransformerLayer, FP8": lambda: in_fp8("TransformerLayer", 512, 1024, 8, shape=(64, 2, 512)),
}


def test_each_layer_is_as_in_the_table() -> None:
    assert_as_before("transformer_engine", CASES)


def test_gated_perceptrons_and_float32_attention_run() -> None:
    with neusight.forecast_on("H100") as forecast:
        mlp = te().LayerNormMLP(64, 128, activation="swiglu", normalization="RMSNorm")
        mlp(cuda(16, 64, dtype=torch.float32)).sum().backward()
        core = te().DotProductAttention(2, 32, qkv_format="bshd", attention_dropout=0.0)
        heads = [cuda(2, 16, 2, 32, dtype=torch.float32) for _ in range(3)]
        out = core(*heads)

    assert out.shape == (2, 16, 64)
    assert forecast.unmapped == []


@pytest.mark.parametrize(("width", "rows"), [(100, 128), (120, 128), (128, 24)])
def test_sizes_that_fp8_does_not_take_are_refused(width: int, rows: int) -> None:
    with neusight.forecast_on("H100"):
        in_fp8("Linear", 48, 256, shape=(16, 48))()
        call = in_fp8("Linear", width, 256, shape=(rows, width))
        with pytest.raises(AssertionError, match="divisible by 16"):
            call()


def test_recipes_may_be_named() -> None:
    with neusight.forecast_on("H100"):
        cuda(1)
        recipe = importlib.import_module("transformer_engine.common.recipe")

        assert recipe.DelayedScaling(fp8_format=recipe.Format.HYBRID).settings
