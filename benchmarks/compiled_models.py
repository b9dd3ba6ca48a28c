"""Well-known models eager, compiled and with CUDA graphs, on one GPU: times, memory, launches.

    python benchmarks/compiled_models.py                  all, on H100; needs transformers
    python benchmarks/compiled_models.py resnet50 --gpu L40S

These are forecasts side by side, not scores: nothing measured stands beside them.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neusight

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

#: None leaves a model uncompiled.
MODES = (None, "default", "reduce-overhead")

#: Steps of a forecast: CUDA graphs warm up in the first and record in the second.
STEPS = 5


class Workload(NamedTuple):
    """A model on the GPU, what it is called with, and how: in inference, or in training with the
    sum of what it returns as its loss."""

    model: nn.Module
    inputs: tuple[Any, ...]
    dtype: torch.dtype | None
    is_training: bool


def gpt2() -> Workload:
    """GPT-2 small, 8 x 1,024 tokens, BF16 autocast, training."""
    from train_gpt2 import GPT2, SIZES

    config = SIZES["small"]
    tokens = torch.randint(config.vocabulary, (8, 1024), device="cuda")
    return Workload(GPT2(config).cuda(), (tokens,), torch.bfloat16, is_training=True)


def llama_block() -> Workload:
    """One layer of Llama 3 8B with its head left out, BF16, 1 x 2,048 tokens, inference."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=1024, use_cache=False,
    )  # fmt: skip
    model = LlamaModel(config).to(torch.bfloat16).cuda()
    return Workload(model, (torch.randint(1024, (1, 2048), device="cuda"),), None, False)


def bert() -> Workload:
    """BERT-base, FP32, 8 x 128 tokens, inference."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).cuda()
    return Workload(model, (torch.randint(30522, (8, 128), device="cuda"),), None, False)


def resnet50() -> Workload:
    """ResNet-50, 32 images, BF16 autocast, training."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda()
    images = torch.randn(32, 3, 224, 224, device="cuda")
    return Workload(model, (images,), torch.bfloat16, is_training=True)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, time_width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for width in (before, after))
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.of_time = nn.Linear(time_width, after)
        self.around = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.norms[0](x)))
        hidden = hidden + self.of_time(F.silu(moment))[:, :, None, None]
        found: Tensor = self.around(x) + self.second(F.silu(self.norms[1](hidden)))
        return found


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, rows, columns = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        heads = (batch, rows * columns, 8, width // 8)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.inputs(tokens).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.output(mixed).transpose(1, 2).view_as(x)


class _UNet(nn.Module):
    """Two resolutions of a latent diffusion model: convolutions, group norms, attention."""

    def __init__(self, width: int = 320, time_width: int = 1280) -> None:
        super().__init__()
        self.width = width
        self.moment = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = _Residual(width, width, time_width)
        self.shrink = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = _Residual(2 * width, 2 * width, time_width)
        self.attention = _Attention(2 * width)
        self.enlarge = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = _Residual(2 * width, width, time_width)
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latents: Tensor, moments: Tensor) -> Tensor:
        rates = torch.exp(-0.1 * torch.arange(self.width // 2, device=latents.device))
        angles = moments[:, None] * rates[None]
        moment = self.moment(torch.cat([angles.sin(), angles.cos()], dim=-1))
        kept = self.down(self.enter(latents), moment)
        hidden = self.attention(self.middle(self.shrink(kept), moment))
        hidden = self.enlarge(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        found: Tensor = self.leave(F.silu(self.up(torch.cat([hidden, kept], dim=1), moment)))
        return found


def unet() -> Workload:
    """A UNet as Stable Diffusion's, 4 latents of 64 x 64, BF16 autocast, training."""
    latents = torch.randn(4, 4, 64, 64, device="cuda")
    moments = torch.rand(4, device="cuda")
    return Workload(_UNet().cuda(), (latents, moments), torch.bfloat16, is_training=True)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    made.__name__: made for made in (gpt2, llama_block, resnet50, bert, unet)
}


def run(workload: Workload, mode: str | None) -> None:
    """Its steps, as a script would write them."""
    model: Any = workload.model.train(workload.is_training)
    call = model if mode is None else torch.compile(model, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    autocast = torch.autocast("cuda", workload.dtype, enabled=workload.dtype is not None)
    for _ in range(STEPS):
        with torch.set_grad_enabled(workload.is_training), autocast:
            found = call(*workload.inputs)
            found = found if isinstance(found, Tensor) else found[0]
        if workload.is_training:
            found.float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--gpu", default="H100")
    options = parser.parse_args()
    print(f"{'':12} {'mode':16} {'step ms':>8} {'peak GiB':>9} {'kernels':>8} {'CPU s':>6}")
    for name in options.names or WORKLOADS:
        for mode in MODES:
            begin = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with neusight.forecast_on(options.gpu) as forecast:
                    run(WORKLOADS[name](), mode)
            figures = forecast.to_json()
            step_ms = figures["step_latency_us"]["median"] / 1e3
            print(
                f"{name:12} {mode or 'eager':16} {step_ms:>8.2f} "
                f"{figures['peak_memory_bytes'] / 2**30:>9.2f} {figures['num_kernels']:>8} "
                f"{time.process_time() - begin:>6.1f}",
                flush=True,
            )
            for warning in forecast.recording.warnings:
                print(f"{'':12} {warning[:110]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
