"""Mamba: scans, the short convolution and layers return, launch and keep what they should."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_calls import BF16, Case, assert_as_before, cuda

import neusight
from neusight.recording.recording import OpCall, TensorSpec

F32 = torch.float32


def function(home: str, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    found = getattr(importlib.import_module(home), name)
    return lambda: found(*args, **kwargs)


def layer(name: str) -> Callable[[], Any]:
    made = getattr(importlib.import_module("mamba_ssm"), name)(256, device="cuda", dtype=BF16)
    x = cuda(2, 512, 256)
    return lambda: made(x)


CASES: dict[str, Case] = {
    "causal_conv1d.causal_conv1d_fn": lambda: function(
        "causal_conv1d", "causal_conv1d_fn", cuda(2, 256, 512), cuda(256, 4), cuda(256),
        activation="silu",
    ),
    "causal_conv1d.causal_conv1d_fn, with its states": lambda: function(
        "causal_conv1d", "causal_conv1d_fn", cuda(2, 256, 512), cuda(256, 4), cuda(256),
        return_final_states=True,
    ),
    "causal_conv1d.causal_conv1d_update": lambda: function(
        "causal_conv1d", "causal_conv1d_update",
        cuda(2, 256, grad=False), cuda(2, 256, 4, grad=False), cuda(256, 4, grad=False),
    ),
    "mamba_ssm.selective_scan_fn": lambda: function(
        "mamba_ssm", "selective_scan_fn",
        *(cuda(2, 256, 512), cuda(2, 256, 512), cuda(256, 16, dtype=F32)),
        *(cuda(2, 16, 512), cuda(2, 16, 512), cuda(256, dtype=F32)),
        *(cuda(2, 256, 512), cuda(256, dtype=F32), True),
    ),
    "mamba_ssm.selective_scan_fn of 2049 steps, without its options": lambda: function(
        "mamba_ssm", "selective_scan_fn",
        *(cuda(2, 256, 2049), cuda(2, 256, 2049), cuda(256, 16, dtype=F32)),
        *(cuda(2, 16, 2049), cuda(2, 16, 2049)),
    ),
    "mamba_ssm.ops.triton.selective_state_update": lambda: function(
        "mamba_ssm.ops.triton.selective_state_update", "selective_state_update",
        *(cuda(2, 256, 16, grad=False), cuda(2, 256, grad=False), cuda(2, 256, grad=False)),
        *(cuda(256, 16, grad=False), cuda(2, 16, grad=False), cuda(2, 16, grad=False)),
    ),
    "mamba_ssm.ops.triton.mamba_chunk_scan_combined": lambda: function(
        "mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined",
        *(cuda(2, 512, 8, 64), cuda(2, 512, 8), cuda(8, dtype=F32)),
        *(cuda(2, 512, 1, 128), cuda(2, 512, 1, 128), 256),
        D=cuda(8),
    ),
    "mamba_ssm.Mamba": lambda: layer("Mamba"),
    "mamba_ssm.Mamba2": lambda: layer("Mamba2"),
}  # fmt: skip


def test_each_function_is_as_in_the_table() -> None:
    assert_as_before("mamba_ssm", CASES)


def test_a_last_state_comes_with_the_result_where_it_is_asked_for() -> None:
    with neusight.forecast_on("H100"):
        u = cuda(2, 8, 32)
        states = cuda(2, 4, 32)
        out, last = function(
            "mamba_ssm", "selective_scan_fn", u, u, cuda(8, 4), states, states,
            return_last_state=True,
        )()  # fmt: skip

    assert (out.shape, last.shape) == ((2, 8, 32), (2, 8, 4))


def test_a_layer_scans_steps_of_each_channel() -> None:
    with neusight.forecast_on("H100") as forecast:
        mamba = importlib.import_module("mamba_ssm").Mamba(64, device="cuda")
        mamba(cuda(2, 32, 64, dtype=F32))

    calls = (entry for step in forecast.recording.steps for entry in step.entries)
    arguments = {
        call.signature.op: call.signature.by_name for call in calls if isinstance(call, OpCall)
    }
    weight = arguments["causal_conv1d::conv"]["weight"]
    given = arguments["mamba_ssm::selective_scan"]
    assert isinstance(weight, TensorSpec) and weight.shape == (128, 4)
    batch, channels, steps, states = 2, 128, 32, 16
    assert given["delta"] == TensorSpec(  # of [channels, batch, steps]
        (batch, channels, steps), (steps, batch * steps, 1), "float32", "cuda"
    )
    of_steps = TensorSpec((batch, states, steps), (states * steps, steps, 1), "float32", "cuda")
    assert given["B"] == given["C"] == of_steps


def test_other_activations_are_refused_as_by_the_package() -> None:
    with neusight.forecast_on("H100"):
        x, weight = cuda(2, 8, 32), cuda(8, 4)
        with pytest.raises(NotImplementedError, match="None, silu, or swish"):
            function("causal_conv1d", "causal_conv1d_fn", x, weight, activation="gelu")()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "Mamba",
            {
                "A_log": (512, 16), "D": (512,),
                "in_proj.weight": (1024, 256), "out_proj.weight": (256, 512),
                "conv1d.weight": (512, 1, 4), "conv1d.bias": (512,),
                "x_proj.weight": (16 + 2 * 16, 512),
                "dt_proj.weight": (512, 16), "dt_proj.bias": (512,),
            },
        ),
        (
            "Mamba2",
            {
                "A_log": (8,), "D": (8,), "dt_bias": (8,),
                "in_proj.weight": (2 * 512 + 2 * 128 + 8, 256), "out_proj.weight": (256, 512),
                "conv1d.weight": (512 + 2 * 128, 1, 4), "conv1d.bias": (512 + 2 * 128,),
                "norm.weight": (512,),
            },
        ),
    ],
)  # fmt: skip
def test_a_layer_has_the_parameters_of_the_package(
    name: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    with neusight.forecast_on("H100"):
        cuda(1)
        made = getattr(importlib.import_module("mamba_ssm"), name)(256)
        found = {key: tuple(value.shape) for key, value in made.named_parameters()}

    assert found == shapes
    assert made.conv1d.padding == (3,)
