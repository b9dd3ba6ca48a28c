"""Trains a DCGAN on synthetic 64x64 images on one CUDA GPU: two models, two optimizers."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

NOISE = 100
WIDTH = 64


def generator() -> nn.Sequential:
    """From a vector of noise to an image of 64x64 pixels."""
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(NOISE, WIDTH * 8, 4, 1, 0, bias=False),
        nn.BatchNorm2d(WIDTH * 8),
        nn.ReLU(inplace=True),
    ]
    for factor in (8, 4, 2):
        layers += [
            nn.ConvTranspose2d(WIDTH * factor, WIDTH * factor // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH * factor // 2),
            nn.ReLU(inplace=True),
        ]
    layers += [nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers)


def discriminator() -> nn.Sequential:
    """From an image to one number: real or not (before the sigmoid)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
    ]
    for factor in (1, 2, 4):
        layers += [
            nn.Conv2d(WIDTH * factor, WIDTH * factor * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH * factor * 2),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    layers += [nn.Conv2d(WIDTH * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0)]
    return nn.Sequential(*layers)


def init_weights(module: nn.Module) -> None:
    """The initial weights of the DCGAN paper."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-4)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    batch = arguments.batch
    torch.manual_seed(0)
    device = torch.device("cuda")
    generate = generator().to(device).apply(init_weights)
    judge = discriminator().to(device).apply(init_weights)
    criterion = nn.BCEWithLogitsLoss()
    generate_optimizer = torch.optim.Adam(
        generate.parameters(), lr=arguments.lr, betas=(0.5, 0.999)
    )
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=arguments.lr, betas=(0.5, 0.999))
    real_labels = torch.ones(batch, device=device)
    fake_labels = torch.zeros(batch, device=device)
    images = torch.rand(batch, 3, 64, 64) * 2 - 1

    for step in range(arguments.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()

        judge_optimizer.zero_grad()
        loss_real = criterion(judge(images.to(device)), real_labels)
        loss_real.backward()
        fakes = generate(torch.randn(batch, NOISE, 1, 1, device=device))
        loss_fake = criterion(judge(fakes.detach()), fake_labels)
        loss_fake.backward()
        judge_optimizer.step()

        generate_optimizer.zero_grad()
        loss_generate = criterion(judge(fakes), real_labels)
        loss_generate.backward()
        generate_optimizer.step()

        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        loss_judge = loss_real.item() + loss_fake.item()
        print(
            f"step {step}: discriminator {loss_judge:.4f}, generator {loss_generate.item():.4f}, "
            f"{seconds * 1e3:.2f} ms, {batch / seconds:,.0f} images/s"
        )


if __name__ == "__main__":
    main()
