"""Forecasts for a GPU that is not in the list: a file with its datasheet is all it takes.

python examples/new_gpu.py
neusight run --gpu examples/a30.json examples/train_gpt2.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import neusight

DATASHEET = Path(__file__).with_name("a30.json")


def train() -> None:
    """A few steps of a small network."""
    model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(4):
        data = torch.randn(4096, 2048, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    # What the datasheet does not state (which share of peak and bandwidth programs reach) starts as
    # a prior: `constants_origin` says so, and the intervals are as wide.
    a30 = neusight.register_gpu(DATASHEET)
    # Or in Python: any GPU is a value, and so is one that nobody has built.
    twice = neusight.register_gpu(
        replace(a30, name="My-A30 with twice the bandwidth", driver_name="My A30 x2", aliases=(),
                bandwidth_gbps=2 * a30.bandwidth_gbps)
    )  # fmt: skip

    with neusight.forecast_on("My-A30") as forecast:
        train()
    for shown in (forecast, forecast.on(twice)):
        low, high = shown.step_latency_us.low, shown.step_latency_us.high
        print(
            f"{shown.gpu.name}: {shown.step_latency_us.median:,.0f} us a step "
            f"({low:,.0f} to {high:,.0f}), constants: {shown.gpu.constants_origin}"
        )


if __name__ == "__main__":
    main()
