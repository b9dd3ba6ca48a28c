"""Small programs, whose profiles lie beside this file; each gives the function that is its step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

Step = Callable[[], Any]


def cnn_amp() -> Step:
    """A data loader's two batches through a small CNN, in FP16 with a gradient scaler."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    ).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, pin_memory=True)

    def step() -> None:
        for images, labels in loader:
            x, y = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            loss.item()

    return step


class Tagger(nn.Module):
    """Embedding, LSTM, output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.rnn = nn.LSTM(128, 256, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(self.embed(x))
        return self.out(y)


def lstm() -> Step:
    """A recurrent network by Adam."""
    net = Tagger().cuda()
    opt = torch.optim.Adam(net.parameters())
    x = torch.randint(0, 1000, (16, 32))

    def step() -> float:
        tokens = x.to("cuda")
        loss = F.cross_entropy(net(tokens).transpose(1, 2), tokens)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return float(loss)

    return step


def gan() -> Step:
    """Two networks, ranges of the script's own within each other, Adam with and without foreach."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4),
        nn.BatchNorm2d(64),
        nn.ReLU(True),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
        nn.Tanh(),
    ).cuda()
    discriminator = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(32, 1, 4), nn.Flatten()
    ).cuda()
    betas = (0.5, 0.999)
    first = torch.optim.Adam(generator.parameters(), 2e-4, betas=betas)
    second = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=betas, foreach=False)
    real = torch.randn(16, 3, 8, 8, device="cuda")
    bce = nn.BCEWithLogitsLoss()

    def step() -> None:
        one = torch.full((16,), 1.0, device="cuda")
        zero = torch.zeros(16, device="cuda")
        with record_function("discriminator"):
            second.zero_grad()
            fake = generator(torch.randn(16, 32, 1, 1, device="cuda"))
            loss = bce(discriminator(real).view(-1), one)
            loss = loss + bce(discriminator(fake.detach()).view(-1), zero)
            loss.backward()
            second.step()
        with record_function("generator"):
            with record_function("inner"):
                first.zero_grad()
            bce(discriminator(fake).view(-1), one).backward()
            first.step()
        if torch.isnan(loss):
            raise ValueError

    return step


def hf_generate() -> Step:
    """Three tokens of a small Llama of transformers."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=8000,
    )
    net: Any = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    x = torch.randint(1, 8000, (2, 16)).cuda()

    def step() -> None:
        net.generate(
            x,
            attention_mask=torch.ones_like(x),
            max_new_tokens=3,
            min_new_tokens=3,
            do_sample=False,
            pad_token_id=0,
        )

    return step


def compiled() -> Step:
    """A compiled network under autocast, a fused optimizer."""
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10))
    fast = torch.compile(net.cuda())
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    x = torch.randn(64, 256, device="cuda")
    y = torch.randint(0, 10, (64,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(fast(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return step


def graph_and_threads() -> Step:
    """A replayed CUDA graph, a second stream, a thread of the script's own."""
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    x = torch.randn(64, 256, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        net(x)

    def work() -> None:
        with torch.no_grad():
            net(x).sum().item()

    def step() -> None:
        graph.replay()
        with torch.cuda.stream(stream):
            y = (x @ x.t()).relu_().sum()
            done = stream.record_event()
        torch.cuda.current_stream().wait_event(done)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        y.cpu()

    return step


def checkpointed() -> Step:
    """A transformer's layer recomputed, a scheduler, some ops that few programs call."""
    from torch.utils.checkpoint import checkpoint

    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, norm_first=True).cuda()
    opt = torch.optim.RMSprop(layer.parameters())
    x = torch.randn(8, 64, 128, device="cuda")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)

    def step() -> None:
        y = checkpoint(layer, x.requires_grad_(), use_reentrant=False)
        y.square().mean().backward()
        opt.step()
        opt.zero_grad()
        scheduler.step()
        torch.topk(y[0, 0], 5)
        torch.where(y > 0, y, -y).cumsum(-1).argmax()
        torch.einsum("bij,bkj->bik", y, y).logsumexp(-1)

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    build.__name__: build
    for build in (cnn_amp, lstm, gan, hf_generate, compiled, graph_and_threads, checkpointed)
}
