"""Small programs of every kind, recorded once: for the tables of times, figures and memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import neusight


class Block(nn.Module):
    """Attention, a convolution and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(256, 768), nn.LayerNorm(256)
        self.conv = nn.Conv1d(256, 256, 3, padding=1)
        self.mlp = nn.Sequential(
            nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)
        )

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.conv(y.transpose(1, 2).reshape(x.shape).mT).mT
        return x + self.mlp(x)


def training() -> None:
    """Two steps of AdamW under autocast, with a scaler and a loss that is read."""
    net = nn.Sequential(Block(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler()
    for _ in range(2):
        x = torch.randn(16, 128, 256).cuda()
        with torch.autocast("cuda", torch.float16):
            loss = net(x).float().logsumexp(-1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss.item()


def inference() -> None:
    """Batches of two sizes without gradients; what they return is copied to the host."""
    net = Block().half().cuda().eval()
    with torch.inference_mode():
        for batch in (1, 64, 1):
            net(torch.empty(batch, 300, 256, dtype=torch.half, device="cuda")).cpu()


def streams() -> None:
    """Two streams that wait for each other, events that time them, pinned copies."""
    side, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    started = torch.cuda.Event(enable_timing=True)
    x, held = torch.randn(2048, 2048, device="cuda"), torch.empty(2048, 2048, pin_memory=True)
    started.record()
    for _ in range(3):
        y = x @ x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = (y * 2).softmax(-1)
            held.copy_(z, non_blocking=True)
            done.record()
        z.record_stream(side)
        x = x + y.relu()
        done.wait()
        x += z
    done.record()
    done.synchronize()
    started.elapsed_time(done)


def graphs() -> None:
    """A captured forward, replayed."""
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
    x = torch.empty(64, 512, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        for _ in range(3):
            x.copy_(torch.empty(64, 512).pin_memory(), non_blocking=True)
            graph.replay()
        y.sum().item()


def churn() -> None:
    """Allocations of many sizes, freed in another order, and a cache that is emptied."""
    kept = []
    for step in range(40):
        kept.append(torch.empty((step * 7919) % 50_000_000 + 300, dtype=torch.uint8, device="cuda"))
        if step % 3 == 2:
            del kept[step % len(kept)]
        if step == 25:
            torch.cuda.empty_cache()
    sorted_ = torch.sort(torch.empty(300_000, device="cuda"))
    embedding = nn.Embedding(5000, 64, device="cuda")
    embedding(torch.zeros(8, 50, dtype=torch.long, device="cuda")).sum().backward()
    torch.linalg.svd(torch.empty(100, 100, device="cuda"))
    del sorted_


def recurrent() -> None:
    """Sequences through an LSTM of cuDNN, and back."""
    net = nn.LSTM(128, 256, bidirectional=True, device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    for _ in range(2):
        y, _state = net(torch.empty(6, 8, 128, device="cuda"))
        y.sum().backward()
        optimizer.step()


PROGRAMS: dict[str, Callable[[], None]] = {
    "training": training, "inference": inference,
    "streams": streams, "graphs": graphs, "churn": churn, "recurrent": recurrent,
}  # fmt: skip


@cache
def recorded(name: str) -> neusight.Forecast:
    """A program's forecast for an H100."""
    with warnings.catch_warnings(), neusight.forecast_on("H100") as forecast:
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        PROGRAMS[name]()
    return forecast
