"""Forecasts a Lightning training from Python: the callback ends it after a few steps.

python examples/forecast_lightning.py --gpu H100
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from train_lightning import VOCABULARY, LanguageModel

import neusight
from neusight.integrations.frameworks.lightning import LightningForecastCallback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu", default="H100")
    gpu = parser.parse_args().gpu

    tokens = torch.randint(VOCABULARY, (1024, 129))
    with neusight.forecast_on(gpu) as forecast:
        # The Trainer looks for its GPU when it is made, so it is made in here.
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=1,
            callbacks=[LightningForecastCallback(steps=4)],
            enable_checkpointing=False,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        batches = DataLoader(TensorDataset(tokens), batch_size=16)
        trainer.fit(LanguageModel(width=256, num_layers=4), batches)
    print(forecast.summary())


if __name__ == "__main__":
    main()
