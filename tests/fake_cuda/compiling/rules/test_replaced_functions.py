"""Functions that stand for torch's are traced as torch's are, in a forecast and afterwards."""

from __future__ import annotations

from typing import Any

import torch
from compiled_net import ops, torch_compile

import neusight


def scaled(x: torch.Tensor) -> torch.Tensor:
    assert torch.cuda.is_available() == x.is_cuda
    return x * torch.tensor(0.5, device=x.device) + torch.cuda.current_device() * 0


def halved(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(0.5)


def test_torchs_own_functions_break_no_graph() -> None:
    with neusight.forecast_on("H100") as forecast:
        torch_compile(scaled, fullgraph=True)(torch.ones(4, device="cuda"))

    assert [name for name in ops(*forecast.recording.steps) if "triton" in name] == [
        "inductor::triton_poi_fused__to_copy_add_mul_0"
    ]


def test_afterwards_torch_is_traced_as_before() -> None:
    from torch._dynamo import trace_rules

    known = len(trace_rules.get_torch_obj_rule_map())
    with neusight.forecast_on("H100"):
        torch_compile(scaled)(torch.ones(4, device="cuda"))
    after: Any = torch_compile(halved, backend="eager", fullgraph=True)

    assert after(torch.ones(2)).tolist() == [0.5, 0.5]
    assert len(trace_rules.get_torch_obj_rule_map()) == known
