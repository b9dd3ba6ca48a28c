"""Trains a small language model with Lightning on one CUDA GPU; the script knows of no forecast."""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY = 8192


class LanguageModel(lightning.LightningModule):
    """A transformer encoder that predicts the next token."""

    def __init__(self, *, width: int, num_layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        out: Tensor = self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))
        return out

    def training_step(self, batch: list[Tensor]) -> Tensor:
        [tokens] = batch
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (arguments.batch * arguments.steps, arguments.seq + 1))
    batches = DataLoader(TensorDataset(tokens), batch_size=arguments.batch)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=arguments.steps,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LanguageModel(width=arguments.width, num_layers=arguments.layers), batches)


if __name__ == "__main__":
    main()
