"""DLRM: a recommender of embedding bags, dot products between them, and small MLPs."""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
import torch.nn.functional as F
from loop import Step, options, run, step_of
from torch import Tensor, nn

NUM_TABLES, TABLE_ROWS, WIDTH = 26, 200_000, 128
NUM_DENSE, LOOKUPS = 13, 4


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLUs between and after."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts)


class DLRM(nn.Module):
    """Dense features and bags of categories, their pairwise products, a click or not."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(TABLE_ROWS, WIDTH, mode="sum") for _ in range(NUM_TABLES)
        )
        self.bottom = mlp(NUM_DENSE, 512, 256, WIDTH)
        num_pairs = (NUM_TABLES + 1) * NUM_TABLES // 2
        self.top = mlp(WIDTH + num_pairs, 1024, 1024, 512, 256)
        self.output = nn.Linear(256, 1)
        rows, columns = torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, -1).unbind()
        self.register_buffer("pairs", rows * (NUM_TABLES + 1) + columns, persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        bags = [table(categories[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([bottom, *(bag.to(bottom.dtype) for bag in bags)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        top = torch.cat((bottom, products.index_select(1, self.pairs)), dim=1)
        return self.output(self.top(top)).squeeze(-1)


def loss(logits: Tensor, clicks: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits.float(), clicks.float())


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=2048)
    made.set_defaults(optimizer="sgd", dtype="tf32")
    return made


def build(settings: argparse.Namespace) -> Step:
    dense = torch.rand(settings.batch, NUM_DENSE)
    categories = torch.randint(TABLE_ROWS, (settings.batch, NUM_TABLES, LOOKUPS))
    clicks = torch.randint(2, (settings.batch,)).float()
    with torch.device("cuda"):
        model = DLRM()
    return step_of(settings, model, (dense, categories, clicks), loss)


if __name__ == "__main__":
    run(build, parser())
