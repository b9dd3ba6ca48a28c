"""Writes the timeline of a forecast where TensorBoard finds it, as torch.profiler would.

python examples/view_in_tensorboard.py runs/forecast
tensorboard --logdir runs/forecast
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import neusight


def train(forecast: neusight.Forecast) -> None:
    """Five steps; `forecast.step()` is what `profiler.step()` would be."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(16, 256, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        forecast.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("logdir", nargs="?", default="runs/forecast")
    logdir = parser.parse_args().logdir

    write = neusight.trace_handler(logdir)
    with neusight.forecast_on("H100", on_trace_ready=write) as forecast:
        train(forecast)

    print(forecast.key_averages().table(sort_by="cuda_time_total", row_limit=5))
    print(f"wrote {forecast.trace_path}")
    print(f"look at it with: tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main()
