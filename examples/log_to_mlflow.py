"""Logs what a forecast says to MLflow.

MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/log_to_mlflow.py --gpu H100
"""

from __future__ import annotations

import argparse

import mlflow
import torch
from torch import nn

import neusight


def train(*, num_steps: int = 4) -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(num_steps):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu", default="H100")
    gpu = parser.parse_args().gpu

    with neusight.forecast_on(gpu) as forecast:
        train()

    # Outside of the block: the tracker's own clock and files are the real ones.
    reported = forecast.to_dict()
    with mlflow.start_run(run_name=forecast.gpu.name):
        mlflow.log_params({name: word for name, word in reported.items() if isinstance(word, str)})
        mlflow.log_metrics({name: x for name, x in reported.items() if not isinstance(x, str)})
    print(forecast)


if __name__ == "__main__":
    main()
