"""Chains of PyTorch operators with measured times and memory: data/fused_ops_baselines.

The plain eager side of Liger-Kernel's public benchmark, written again after what its scripts say
they ran: forward, backward (the graph kept) and full passes, behind a flush of the L2 (triton's
do_bench), and the peak of memory that is allocated during a full pass, MiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from tables import read_table
from torch import Tensor, nn

DATA = Path(__file__).parents[2] / "shared" / "data" / "fused_ops_baselines"

Mode = Literal["forward", "backward", "full"]

#: What do_bench zeroes before each timed call, bytes.
FLUSH_BYTES = 256 * 2**20

_GPUS = {
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "NVIDIA GeForce RTX 3090": "RTX-3090",
}


@dataclass(frozen=True)
class Case:
    """A measured chain: `settings` are the script's as JSON, `measured` is µs or MiB; `torch` is
    the version taken for it (the data say 2.3 to 2.6 and not which)."""

    chain: str
    mode: Mode
    metric: Literal["speed", "memory"]
    gpu: str
    settings: str
    measured: float
    torch: str = "2.5"

    @property
    def program(self) -> str:
        """What is recorded, in words that a file name can hold."""
        words = "_".join(str(value) for value in json.loads(self.settings).values())
        return f"{self.chain}_{self.mode}_{words}".replace(".", "_")


def cases(folder: Path = DATA) -> list[Case]:
    """Every measured row, in the order of the table."""
    return [_case(row) for row in read_table(folder / "timings.csv")]


def _case(row: dict[str, str]) -> Case:
    settings = json.loads(row["extra_benchmark_config_str"])
    settings[row["x_name"]] = int(float(row["x_value"]))
    metric = cast(Literal["speed", "memory"], row["metric_name"])
    scale = 1e3 if metric == "speed" else 1.0
    return Case(
        row["kernel_name"],
        cast(Mode, row["kernel_operation_mode"]),
        metric,
        _GPUS[row["gpu_name"]],
        json.dumps(settings),
        float(row["y_value_50"]) * scale,
    )


class Chain(NamedTuple):
    """A chain to run: its forward pass; the gradient of what that gave, and the backward pass with
    both; the tensors whose gradients are dropped before each timed call; and what the script holds
    beside, such as the weights of the layer that it compares with."""

    forward: Callable[[], Any]
    gradient_of: Callable[[Any], Any]
    backward: Callable[[Any, Any], object]
    grads: tuple[Tensor, ...] = ()
    held: tuple[Tensor, ...] = ()


def pass_of(chain: Chain, mode: Mode) -> Callable[[], object]:
    """What one call of that mode does; backward alone goes through one graph again and again."""
    if mode == "forward":
        return chain.forward
    if mode == "backward":
        kept = chain.forward()
        gradient = chain.gradient_of(kept)
        return lambda: chain.backward(kept, gradient)

    def full() -> None:
        found = chain.forward()
        chain.backward(found, chain.gradient_of(found))

    return full


def run(case: Case, steps: int, found: Any) -> None:
    """Times the chain `steps` times as its authors did, inside the forecast `found`."""
    with torch.device("cuda"):
        chain = CHAINS[case.chain](json.loads(case.settings))
        call = pass_of(chain, case.mode)
        torch.cuda.synchronize()
        for _ in range(steps):
            for tensor in chain.grads:
                tensor.grad = None
            torch.empty(FLUSH_BYTES // 4, dtype=torch.int32).zero_()
            call()
            found.step()


def _dtype(settings: dict[str, Any]) -> torch.dtype:
    name = settings.get("dtype", "torch.float32").removeprefix("torch.")
    return cast(torch.dtype, getattr(torch, name))


def _keeping(found: Tensor, gradient: Tensor | None) -> None:
    found.backward(gradient, retain_graph=True)


def _freeing(found: Tensor, gradient: Tensor | None) -> None:
    found.backward(gradient)


def _none(found: object) -> None:
    """A scalar's gradient."""


def _like(weights: Tensor) -> tuple[Tensor]:
    """Those of the layer that the script compares with, and did not run."""
    return (torch.empty_like(weights),)


def _cross_entropy(settings: dict[str, Any]) -> Chain:
    rows, vocabulary = settings["B"] * settings["T"], settings["V"]
    logits = torch.randn(rows, vocabulary, requires_grad=True)
    target = torch.randint(vocabulary, (rows, 1)).squeeze(1)
    return Chain(lambda: F.cross_entropy(logits, target), _none, _freeing)


def _embedding(settings: dict[str, Any]) -> Chain:
    table = nn.Embedding(settings["V"], settings["D"]).to(_dtype(settings))
    tokens = torch.randint(settings["V"], (settings["B"], settings["T"]))
    return Chain(lambda: table(tokens), torch.randn_like, _freeing, held=_like(table.weight))


def _fused_linear_cross_entropy(settings: dict[str, Any]) -> Chain:
    rows, width, vocabulary, dtype = (
        settings["BT"], settings["H"], settings["V"], _dtype(settings)
    )  # fmt: skip
    head = nn.Linear(width, vocabulary, bias=False, dtype=dtype)
    hidden = torch.randn(rows, width, requires_grad=True, dtype=dtype)
    target = torch.randint(vocabulary, (rows, 1), dtype=torch.long).squeeze(1)

    def loss() -> Tensor:
        # in BF16 throughout, as the script has it: each more row holds three tensors of logits in
        # 2 bytes, and with FP32 the product would run above its peak
        return F.cross_entropy(head(hidden), target)

    return Chain(loss, _none, _freeing, held=_like(head.weight))


def _geglu(settings: dict[str, Any]) -> Chain:
    width, inner, dtype = settings["hidden_size"], settings["intermediate_size"], _dtype(settings)
    gate, up = (nn.Linear(width, inner, bias=False, dtype=dtype) for _ in range(2))
    down = nn.Linear(inner, width, bias=False, dtype=dtype)
    hidden = torch.randn(settings["bsz"], settings["T"], width, dtype=dtype, requires_grad=True)

    def forward() -> Tensor:
        found: Tensor = down(F.gelu(gate(hidden), approximate="tanh") * up(hidden))
        return found

    return Chain(forward, torch.randn_like, _keeping, (hidden,))


def _layer_norm(settings: dict[str, Any]) -> Chain:
    shape, dtype = (settings["M"], settings["N"]), _dtype(settings)
    rows = torch.randn(shape, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(rows)
    norm = nn.LayerNorm(settings["N"], eps=settings["eps"], dtype=dtype)
    held = (*_like(norm.weight), *_like(norm.bias))
    return Chain(lambda: norm(rows), lambda found: gradient, _keeping, (rows,), held)


def _rms_norm(settings: dict[str, Any]) -> Chain:
    rows = torch.randn(settings["M"], settings["H"], dtype=_dtype(settings), requires_grad=True)
    weight = nn.Parameter(torch.ones(settings["H"]))

    def forward() -> Tensor:
        wide = rows.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return weight * (wide * torch.rsqrt(variance + settings["eps"])).to(rows.dtype)

    gradient = torch.randn_like(rows)
    return Chain(forward, lambda found: gradient, _keeping, (rows,), _like(weight))


def _rope(settings: dict[str, Any]) -> Chain:
    heads, dtype = (settings["num_q_heads"], settings["num_kv_heads"]), _dtype(settings)
    width = settings.get("hidden_size") or settings["H"]
    length = settings.get("seq_len") or settings["T"]
    depth = width // heads[0]
    query, key = (
        torch.randn(1, length, count, depth, dtype=dtype, requires_grad=True).transpose(1, 2)
        for count in heads
    )
    gradients = (torch.randn_like(query), torch.randn_like(key))
    cos, sin = (torch.randn(1, length, depth, dtype=dtype) for _ in range(2))
    angles_of = (torch.arange(length).unsqueeze(0), torch.ones(depth // 2))

    def turned(states: Tensor) -> Tensor:
        return torch.cat((-states[..., depth // 2 :], states[..., : depth // 2]), dim=-1)

    def rotated(states: Tensor) -> Tensor:
        return (states * cos.unsqueeze(1)) + (turned(states) * sin.unsqueeze(1))

    def backward(found: tuple[Tensor, Tensor], gradient: tuple[Tensor, Tensor]) -> object:
        return torch.autograd.grad(
            found, (query, key), gradient, allow_unused=True, retain_graph=True
        )

    def forward() -> tuple[Tensor, Tensor]:
        return rotated(query), rotated(key)

    return Chain(forward, lambda found: gradients, backward, held=angles_of)


def _softmax(settings: dict[str, Any]) -> Chain:
    shape, dtype = (settings["M"], settings["N"]), _dtype(settings)
    rows = torch.randn(shape, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(rows)
    return Chain(lambda: rows.softmax(-1), lambda found: gradient, _keeping, (rows,))


CHAINS: dict[str, Callable[[dict[str, Any]], Chain]] = {
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "fused_linear_cross_entropy": _fused_linear_cross_entropy,
    "geglu": _geglu,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "softmax": _softmax,
}
