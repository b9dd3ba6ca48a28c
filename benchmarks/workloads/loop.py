"""What the workloads share: their options, one training or inference step, and the loop."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], None]
Batch = tuple[Tensor, ...]

#: What computes in half precision: autocast over fp32 weights, or weights of that type.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
WEIGHTS = {"bf16-weights": torch.bfloat16, "fp16-weights": torch.float16}

#: Images of ImageNet: their classes, and pixels of a side.
NUM_CLASSES, IMAGE = 1000, 224


def options(description: str | None, *, batch: int) -> argparse.ArgumentParser:
    """A parser with the options that all workloads have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mode", choices=("train", "inference"), default="train")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=("fp32", "tf32", *AUTOCAST, *WEIGHTS), default="bf16")
    parser.add_argument("--optimizer", choices=("adamw", "adamw-fused", "adam-loop", "sgd"),
                        default="adamw")  # fmt: skip
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--benchmark", action="store_true", help="cudnn.benchmark")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--clip", action="store_true", help="clip the norm of the gradients")
    return parser


def step_of(
    settings: argparse.Namespace,
    model: nn.Module,
    batch: Batch,
    loss_of: Callable[..., Tensor],
) -> Step:
    """One step of the model: `batch` lies on the host and is copied in each step; `loss_of` gets
    the model's output and the last tensor of the batch, all others are the model's inputs."""
    torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
    torch.backends.cudnn.benchmark = settings.benchmark
    model.cuda()
    if settings.dtype in WEIGHTS:
        model.to(WEIGHTS[settings.dtype])
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    if settings.compile:
        model.compile()
    pinned = tuple(tensor.pin_memory() for tensor in batch)
    if settings.mode == "inference":
        return _inference_step(settings, model.eval(), pinned)
    return _training_step(settings, model.train(), pinned, loss_of)


def _on_gpu(settings: argparse.Namespace, batch: Batch) -> list[Tensor]:
    moved = [tensor.to("cuda", non_blocking=True) for tensor in batch]
    if settings.dtype in WEIGHTS:
        kind = WEIGHTS[settings.dtype]
        moved = [tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in moved]
    if settings.channels_last:
        moved = [
            tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
            for tensor in moved
        ]
    return moved


def _precision(settings: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    if settings.dtype not in AUTOCAST:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=AUTOCAST[settings.dtype])


def _training_step(
    settings: argparse.Namespace,
    model: nn.Module,
    batch: Batch,
    loss_of: Callable[..., Tensor],
) -> Step:
    optimizer = _optimizer(settings, model)
    scaler = torch.amp.GradScaler("cuda", enabled=settings.dtype == "fp16")

    def step() -> None:
        *inputs, target = _on_gpu(settings, batch)
        with _precision(settings):
            loss = loss_of(model(*inputs), target)
        scaler.scale(loss).backward()
        if settings.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _optimizer(settings: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    if settings.optimizer == "adam-loop":
        return torch.optim.Adam(parameters, lr=1e-4, foreach=False)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=settings.optimizer == "adamw-fused")


def _inference_step(settings: argparse.Namespace, model: nn.Module, batch: Batch) -> Step:
    def step() -> None:
        with torch.inference_mode(), _precision(settings):
            *inputs, _ = _on_gpu(settings, batch)
            model(*inputs)

    return step


def loss_of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of a model that gives each token's logits."""
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def classifying_step(settings: argparse.Namespace, build: Callable[[], nn.Module]) -> Step:
    """One step of a model of random images, built on the GPU."""
    images = torch.randn(settings.batch, 3, IMAGE, IMAGE)
    labels = torch.randint(NUM_CLASSES, (settings.batch,))
    with torch.device("cuda"):
        model = build()
    return step_of(settings, model, (images, labels), F.cross_entropy)


def run(build: Callable[[argparse.Namespace], Step], parser: argparse.ArgumentParser) -> None:
    """The script's own loop: a step, a wait for the GPU, a line."""
    settings = parser.parse_args()
    torch.manual_seed(0)
    step = build(settings)
    for number in range(settings.steps):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        print(f"step {number}: {(time.perf_counter() - start) * 1e3:.3f} ms")
