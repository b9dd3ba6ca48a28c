"""Trains GPT-2 on synthetic tokens with mixed precision on one CUDA GPU."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Config:
    """The shape of a GPT-2 model."""

    num_layers: int
    num_heads: int
    width: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.1


SIZES = {
    "small": Config(num_layers=12, num_heads=12, width=768),
    "medium": Config(num_layers=24, num_heads=16, width=1024),
    "large": Config(num_layers=36, num_heads=20, width=1280),
}


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout_p = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        heads = (batch, seq, self.num_heads, width // self.num_heads)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout_p if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(batch, seq, width)
        out: Tensor = self.dropout(self.project(y))
        return out


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and around a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class GPT2(nn.Module):
    """GPT-2 with its output layer tied to the token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight
        self.apply(init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.num_layers))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def init_weights(module: nn.Module) -> None:
    """GPT-2's initial weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def synthetic_tokens(
    batch: int, seq: int, vocabulary: int, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random inputs and the next token of each, on the CPU, as a data loader would give them."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(vocabulary, (batch, seq + 1), generator=generator)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def make_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices, not biases and norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--checkpoint", metavar="PATH", help="save the model here at the end")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    config = SIZES[arguments.size]
    torch.manual_seed(0)
    model = GPT2(config).cuda().train()
    optimizer = make_optimizer(model, arguments.lr)
    autocast_dtype = DTYPES[arguments.dtype]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast_dtype == torch.float16)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"GPT-2 {arguments.size}: {num_parameters / 1e6:.1f} M parameters, {arguments.dtype}")

    batches = synthetic_tokens(arguments.batch, arguments.seq, config.vocabulary, arguments.steps)
    for step, (inputs, targets) in enumerate(batches):
        torch.cuda.synchronize()
        start = time.perf_counter()
        inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype != torch.float32):
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = arguments.batch * arguments.seq / seconds
        print(f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.0f} tokens/s")

    if arguments.checkpoint:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, arguments.checkpoint)


if __name__ == "__main__":
    main()
