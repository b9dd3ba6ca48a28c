"""Which GPU? A training step recorded once, priced on several, with the cost of a million tokens.

python examples/compare_gpus.py
neusight run --gpu H100 --gpu A100 --gpu L40S --price H100=2.99,A100=1.79,L40S=0.99 \
    examples/train_gpt2.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from train_gpt2 import GPT2, Config

import neusight
from neusight.advice.advice import advice_for
from neusight.integrations.report.side_by_side import lay_side_by_side

GPUS = ("H100", "A100", "L40S")
#: An hour of each, in any one currency: put in what you pay.
PRICES = {"H100": 2.99, "A100": 1.79, "L40S": 0.99}


def train(*, batch: int, steps: int) -> None:
    """GPT-2 small, cut to four layers."""
    config = Config(num_layers=4, num_heads=12, width=768)
    model = GPT2(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    for _ in range(steps):
        tokens = torch.randint(config.vocabulary, (batch, 513)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    with neusight.forecast_on(GPUS[0]) as forecast:
        train(batch=8, steps=4)

    forecasts = [forecast, *(forecast.on(name) for name in GPUS[1:])]
    compared = lay_side_by_side(forecasts, PRICES)
    print(compared.table())
    print(compared.words())
    for shown in forecasts:
        for advice in advice_for(shown)[:1]:
            print(f"{shown.gpu.name}, {-advice.gain:.0%} of a step: {advice.what}")


if __name__ == "__main__":
    main()
