"""Three small training steps whose kernels, by Inductor, are kept as a golden list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.recording.recording import OpCall
from recorded_programs import entries_of

#: Ops that are kept beside the fused kernels: extern calls of compiled code.
_EXTERN = ("mm", "addmm", "bmm", "convolution", "convolution_backward")


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(width, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(y), 0.1, self.training)
        up = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + F.dropout(self.down(up), 0.1, self.training)


def gpt2_block() -> None:
    compiled: Any = torch.compile(Block().cuda())
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            out = compiled(torch.randn(4, 128, 256, device="cuda"))
        out.float().sum().backward()


def mlp() -> None:
    _classify(
        nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.LayerNorm(512), nn.Dropout(0.1), nn.Linear(512, 10)
        ),
        (64, 256),
    )


def conv_net() -> None:
    first = (nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 3, 2, 1), nn.GroupNorm(8, 64), nn.SiLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    _classify(nn.Sequential(*first, *second, *last), (8, 3, 64, 64))


def _classify(net: nn.Module, shape: tuple[int, ...]) -> None:
    compiled: Any = torch.compile(net.cuda())
    for _ in range(2):
        labels = torch.randint(0, 10, shape[:1], device="cuda")
        F.cross_entropy(compiled(torch.randn(shape, device="cuda")), labels).backward()


def kernels_of(program: Callable[[], None]) -> list[str]:
    """What compiled code launches in the second step, in order."""
    with neusight.forecast_on("H100") as forecast:
        program()
    ops = [entry.signature.op.partition("::")[2] for entry in entries_of(forecast, OpCall)]
    kept = [op for op in ops if op.startswith("triton_") or op in _EXTERN or "attention" in op]
    assert kept[: len(kept) // 2] == kept[len(kept) // 2 :]
    return kept[len(kept) // 2 :]


PROGRAMS: dict[str, Callable[[], None]] = {
    "GPT-2 block, training": gpt2_block,
    "MLP, training": mlp,
    "convolutional net, training": conv_net,
}


def golden_text() -> str:
    """The list, to be written by a build of torch with CUDA and Triton."""
    lines = [f"# Made by torch {torch.__version__}, triton {_triton_version()}, without a GPU."]
    for title, program in PROGRAMS.items():
        lines += ["", f"## {title}", *kernels_of(program)]
    return "\n".join(lines) + "\n"


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


if __name__ == "__main__":
    print(golden_text(), end="")
