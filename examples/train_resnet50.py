"""Trains ResNet-50 on synthetic images with mixed precision on one CUDA GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NUM_CLASSES = 1000
#: (blocks, channels inside a block, stride of the first block) of the four stages.
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EXPANSION = 4


def convolution(num_in: int, num_out: int, *, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size but for the stride, without bias."""
    return nn.Conv2d(num_in, num_out, kernel, stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a residual."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = width * EXPANSION
        self.conv1 = convolution(num_in, width, kernel=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, kernel=3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, num_out, kernel=1)
        self.bn3 = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                convolution(num_in, num_out, kernel=1, stride=stride), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 with the stride on the 3x3 convolution (v1.5)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        num_in = 64
        for num_blocks, width, stride in STAGES:
            for index in range(num_blocks):
                blocks.append(Bottleneck(num_in, width, stride if index == 0 else 1))
                num_in = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(num_in, NUM_CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.blocks(self.stem(images)))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def synthetic_images(batch: int, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One random batch on the CPU, over and over."""
    images = torch.randn(batch, 3, size, size)
    labels = torch.randint(NUM_CLASSES, (batch,))
    for _ in range(steps):
        yield images, labels


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", metavar="PATH", help="save the model here at the end")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    model = ResNet50().cuda().train()
    # torch's annotations of Module.to do not know memory_format.
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr, momentum=0.9, weight_decay=1e-4
    )
    autocast_dtype = DTYPES[arguments.dtype]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast_dtype == torch.float16)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"ResNet-50: {num_parameters / 1e6:.1f} M parameters, {arguments.dtype}")

    batches = synthetic_images(arguments.batch, arguments.image_size, arguments.steps)
    for step, (images, labels) in enumerate(batches):
        torch.cuda.synchronize()
        start = time.perf_counter()
        images = images.cuda(non_blocking=True).to(memory_format=layout)
        labels = labels.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype != torch.float32):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = arguments.batch / seconds
        print(f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.0f} images/s")

    if arguments.checkpoint:
        torch.save({"model": model.state_dict()}, arguments.checkpoint)


if __name__ == "__main__":
    main()
