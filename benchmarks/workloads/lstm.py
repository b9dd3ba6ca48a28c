"""An LSTM language model on random tokens."""

from __future__ import annotations

import argparse

import torch
from loop import Step, loss_of_tokens, options, run, step_of
from torch import Tensor, nn

VOCABULARY = 33278


class LanguageModel(nn.Module):
    """Embedding, LSTM layers, output layer."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers, dropout=0.2, batch_first=True)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.tokens(tokens))
        return self.output(hidden)


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=64)
    made.add_argument("--seq", type=int, default=128)
    made.add_argument("--width", type=int, default=1024)
    made.add_argument("--layers", type=int, default=2)
    return made


def build(settings: argparse.Namespace) -> Step:
    tokens = torch.randint(VOCABULARY, (settings.batch, settings.seq))
    with torch.device("cuda"):
        model = LanguageModel(settings.width, settings.layers)
    return step_of(settings, model, (tokens, tokens.roll(-1, 1)), loss_of_tokens)


if __name__ == "__main__":
    run(build, parser())
