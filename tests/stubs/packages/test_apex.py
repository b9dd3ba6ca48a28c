"""Apex: norms, dense layers and functions over lists return, launch and keep what they should."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_calls import BF16, Case, assert_as_before, cuda

import neusight
from neusight.predictors.errors import UnmappedOpError


def module(name: str, *args: Any) -> Callable[[], Any]:
    """A call of one of the package's modules on a few rows."""
    where, _, kind = name.rpartition(".")
    made = getattr(importlib.import_module(where), kind)(*args).cuda().to(BF16)
    rows = cuda(128, 512)
    return lambda: made(rows)


def norm(name: str, *args: Any) -> Callable[[], Any]:
    """A call of one of the package's functions that normalize a few rows."""
    function = getattr(importlib.import_module("apex.normalization.fused_layer_norm"), name)
    rows = cuda(128, 512)
    return lambda: function(rows, *args, 512)


def over_lists(name: str, *args: Any, lists: int = 1) -> Callable[[], Any]:
    applier = importlib.import_module("apex.multi_tensor_apply").multi_tensor_applier
    function = getattr(importlib.import_module("amp_C"), name)
    held = [[cuda(64, 64, grad=False), cuda(64, grad=False)] for _ in range(lists)]
    return lambda: applier(function, cuda(1, dtype=torch.int32), held, *args)


CASES: dict[str, Case] = {
    "normalization.FusedLayerNorm": lambda: module("apex.normalization.FusedLayerNorm", 512),
    "normalization.FusedRMSNorm": lambda: module("apex.normalization.FusedRMSNorm", 512),
    "normalization.fused_layer_norm": lambda: norm("fused_layer_norm"),
    "normalization.fused_layer_norm_affine": lambda: norm(
        "fused_layer_norm_affine", cuda(512), cuda(512)
    ),
    "normalization.fused_rms_norm": lambda: norm("fused_rms_norm"),
    "normalization.fused_rms_norm_affine": lambda: norm("fused_rms_norm_affine", cuda(512)),
    "fused_dense.FusedDense": lambda: module("apex.fused_dense.FusedDense", 512, 256),
    "fused_dense.FusedDenseGeluDense": lambda: module(
        "apex.fused_dense.FusedDenseGeluDense", 512, 1024, 512
    ),
    "amp_C.multi_tensor_l2norm": lambda: over_lists("multi_tensor_l2norm", True),
    "amp_C.multi_tensor_scale": lambda: over_lists("multi_tensor_scale", 0.5, lists=2),
    "amp_C.multi_tensor_axpby": lambda: over_lists("multi_tensor_axpby", 0.5, 2.0, lists=3),
}


def test_each_function_is_as_in_the_table() -> None:
    assert_as_before("apex", CASES)


def test_amp_is_refused_with_the_line_and_what_to_do() -> None:
    with neusight.forecast_on("H100"):
        cuda(1)
        from apex import amp  # type: ignore[import-not-found]

        with pytest.raises(UnmappedOpError, match=r"test_apex\.py:\d+ .* torch\.autocast"):
            amp.initialize(None)
