"""Trains an LSTM encoder-decoder with attention (after GNMT) on one CUDA GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Encoder(nn.Module):
    """A bidirectional layer, then plain ones with residuals from the third on."""

    def __init__(self, vocabulary: int, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.bidirectional = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.layers = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(num_layers - 2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor
        x, _ = self.bidirectional(self.dropout(self.embedding(tokens)))
        x, _ = self.second(self.dropout(x))
        for layer in self.layers:
            y, _ = layer(self.dropout(x))
            x = x + y
        return x


class Attention(nn.Module):
    """Dot-product attention of the decoder's states over the encoder's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.scale = width**-0.5

    def forward(self, states: Tensor, memory: Tensor) -> Tensor:
        scores = torch.bmm(self.query(states), memory.transpose(1, 2)) * self.scale
        return torch.bmm(F.softmax(scores, dim=-1), memory)


class Decoder(nn.Module):
    """The first layer asks the attention; its answer goes into every further layer."""

    def __init__(self, vocabulary: int, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(num_layers - 1)
        )
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x, _ = self.first(self.dropout(self.embedding(tokens)))
        context = self.attention(x, memory)
        for layer in self.layers:
            y, _ = layer(self.dropout(torch.cat((x, context), dim=-1)))
            x = x + y
        logits: Tensor = self.classifier(x)
        return logits


class Translator(nn.Module):
    """Encoder and decoder, trained on pairs of sentences."""

    def __init__(self, vocabulary: int, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, width, num_layers, dropout)
        self.decoder = Decoder(vocabulary, width, num_layers, dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self.decoder(target, self.encoder(source))
        return logits


def synthetic_sentences(
    batch: int, seq: int, vocabulary: int, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pairs of sentences on the CPU; the target has one token more."""
    for _ in range(steps):
        source = torch.randint(vocabulary, (batch, seq))
        yield source, torch.randint(vocabulary, (batch, seq + 1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seq", type=int, default=50)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model = Translator(arguments.vocabulary, arguments.width, arguments.layers, dropout=0.2)
    model = model.cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    autocast_dtype = DTYPES[arguments.dtype]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast_dtype == torch.float16)

    sentences = synthetic_sentences(
        arguments.batch, arguments.seq, arguments.vocabulary, arguments.steps
    )
    for step, (source, target) in enumerate(sentences):
        torch.cuda.synchronize()
        start = time.perf_counter()
        source, target = source.cuda(), target.cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype != torch.float32):
            logits = model(source, target[:, :-1])
            loss = F.cross_entropy(
                logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1
            )
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = arguments.batch * arguments.seq / seconds
        print(f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.0f} tokens/s")


if __name__ == "__main__":
    main()
